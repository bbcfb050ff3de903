"""What a check before an upgrade finds: differences, each with a verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

ACCEPTS = ""
"""What an engine says to a difference that it accepts: nothing."""

SPARK = "Spark"
EPOCHAL = "Epochal"
"""The engines, as a report names them."""


@dataclass(frozen=True, slots=True)
class Safe:
    """The query continues, and its results are right."""

    why: str
    command: str = ""
    """What would make the checkpoint follow the query, if that is possible and wanted."""


@dataclass(frozen=True, slots=True)
class AfterCommand:
    """The query continues after this command."""

    command: str
    why: str


@dataclass(frozen=True, slots=True)
class Unclear:
    """Only the author of the query knows whether the results are right."""

    why: str


@dataclass(frozen=True, slots=True)
class Impossible:
    """The query cannot continue from this checkpoint with right results."""

    why: str


Verdict: TypeAlias = Safe | AfterCommand | Unclear | Impossible


class Outcome(IntEnum):
    """The worst verdict of a check; its number is the exit status."""

    SAFE = 0
    NEEDS_ACTION = 1
    IMPOSSIBLE = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between the checkpoint and the query."""

    subject: str
    """What differs: `source 0`, `operator 1`, `spark.sql.shuffle.partitions`, …"""
    was: str
    wants: str
    verdict: Verdict
    refusal: str = ACCEPTS
    """A part of the message with which the engine refuses to start, or `ACCEPTS`."""

    @property
    def outcome(self) -> Outcome:
        """How bad it is."""
        match self.verdict:
            case Safe():
                return Outcome.SAFE
            case AfterCommand() | Unclear():
                return Outcome.NEEDS_ACTION
            case Impossible():
                return Outcome.IMPOSSIBLE

    @property
    def is_silent(self) -> bool:
        """Whether the engine would start the query although its results may be wrong."""
        return self.refusal == ACCEPTS and not isinstance(self.verdict, Safe)


@dataclass(frozen=True, slots=True)
class Report:
    """All differences, the worst first."""

    checkpoint: str
    differences: tuple[Difference, ...] = ()
    not_compared: tuple[str, ...] = ()
    """What the checkpoint does not record, so that a change of it cannot be found."""
    engine: str = SPARK
    """Who would run the query."""

    @property
    def outcome(self) -> Outcome:
        """The worst of all differences."""
        return max((each.outcome for each in self.differences), default=Outcome.SAFE)

    @property
    def starts(self) -> bool:
        """Whether the engine itself would start the query as it is."""
        return all(each.refusal == ACCEPTS for each in self.differences)


def report_of(
    checkpoint: str, found: list[Difference], not_compared: tuple[str, ...], engine: str
) -> Report:
    """Make a report, with the worst differences first.

    Commands stay in the order of `found`, in which they must be run.
    """
    ordered = sorted(found, key=lambda each: -each.outcome)
    return Report(checkpoint, tuple(ordered), not_compared, engine)
