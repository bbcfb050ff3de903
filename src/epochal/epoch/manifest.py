"""What a decision names: the attempt, exact positions, state and sink output. Pure.

It is kept under `epochal` in the metadata of the offset entry, where Spark does not look. What is
not named there does not exist: state is loaded by these names and checksums, never by number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from epochal.epoch.messages import PreparedState

MANIFEST_KEY = "epochal"
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that makes up a decided epoch."""

    attempt: int
    run_id: str
    positions: tuple[Mapping[str, str], ...]
    """Per source, by partition id: where the epoch ended."""
    messages: tuple[bytes, ...]
    """What each task's writer returned, by task."""
    state: tuple[PreparedState, ...]
    watermarks: tuple[int, ...] = field(default=())
    """Highest event time seen, per watermark of the plan; -1 if none."""
