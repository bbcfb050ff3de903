"""What the thread that owns a run hears, how an attempt ends, and what the handle shows. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from epochal.epoch.effects import ReadingHeld


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """The attempt cannot decide any further epoch."""

    attempt: int
    error: Exception


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The Spark job is over; without an error if its tasks were sent `Leave`."""

    attempt: int
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The user asked to stop; the query ends where an epoch ends."""


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A source has partitions that no task reads yet."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RefreshDue:
    """The tables that the query joins must be read again: `staticRefresh`."""


@dataclass(frozen=True, slots=True)
class AllRead:
    """Everything that the sources contained at the start is committed: `availableNow`."""


Event: TypeAlias = (
    StopAsked | AllRead | NewPartitions | RefreshDue | ReadingHeld | JobEnded | AttemptFailed
)


@dataclass(frozen=True, slots=True)
class Stopped:
    """The attempt ended as the user asked."""


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """The attempt ended at an epoch's end, to restart with more readers or newer tables."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed."""

    error: Exception


Outcome: TypeAlias = Stopped | Reconfigured | Failed


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the query's handle shows."""

    message: str = "Initializing sources"
    committed: int = -1
    attempt: int = -1
    restarts: int = 0
    degraded: str = ""
    """Why a source cannot be reached at the moment; empty if all can."""
    outage: str = ""
    """What the query waits for before it restarts, and since when; empty if for nothing."""

    @property
    def trouble(self) -> str:
        """What is wrong at the moment; empty if nothing is."""
        return self.outage or self.degraded
