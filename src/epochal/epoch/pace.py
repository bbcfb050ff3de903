"""The limits of an attempt: how long its phases may take, and how much may be in flight."""

from __future__ import annotations

from dataclasses import dataclass

EPOCH_SECONDS = 0.1
MAX_EPOCHS_IN_FLIGHT = 8
MAX_BACKLOG = 10_000
"""Spark's default of spark.sql.streaming.continuous.epochBacklogQueueSize."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Time limits in seconds, and limits on what may be in flight."""

    epoch_seconds: float = EPOCH_SECONDS
    idle_epoch_seconds: float = 10.0
    """An epoch without any rows or timers ends after this time."""
    max_epochs_in_flight: int = MAX_EPOCHS_IN_FLIGHT
    """Epochs that have ended but are not committed. At the limit, no epoch is ended."""
    max_backlog: int = MAX_BACKLOG
    register_seconds: float = 60.0
    ready_seconds: float = 600.0
    publish_seconds: float = 10.0
    """How often tasks write their state under Spark's names."""
    stall_seconds: float = 120.0
    """How long an epoch that has ended may take to be committed."""
