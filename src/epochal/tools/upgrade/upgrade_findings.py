"""What a check before an upgrade finds: differences, each with a verdict, and what to do. Pure.

The commands can be pasted into a shell. Where a query writes is not in its checkpoint, so those
that add a batch ask for it: `OUTPUT` stands for the directory of its file sink.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
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
class UpgradeDifference:
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
class UpgradeReport:
    """All differences, the worst first."""

    checkpoint: str
    differences: tuple[UpgradeDifference, ...] = ()
    not_compared: tuple[str, ...] = ()
    """What the checkpoint does not record, so that a change of it cannot be found."""
    engine: str = SPARK
    """Who would run the query."""

    @property
    def outcome(self) -> Outcome:
        """The worst of all differences."""
        return max((difference.outcome for difference in self.differences), default=Outcome.SAFE)

    @property
    def starts(self) -> bool:
        """Whether the engine itself would start the query as it is."""
        return all(difference.refusal == ACCEPTS for difference in self.differences)


def report_of(
    checkpoint: str,
    differences: list[UpgradeDifference],
    not_compared: tuple[str, ...],
    engine: str,
) -> UpgradeReport:
    """Make a report, with the worst differences first.

    Commands stay in the order of `found`, in which they must be run.
    """
    ordered = sorted(differences, key=lambda difference: -difference.outcome)
    return UpgradeReport(checkpoint, tuple(ordered), not_compared, engine)


ASKS_FOR_SINK = "--sink OUTPUT"


def evolve_command(url: str, operator: int, store: str, words: Sequence[str]) -> str:
    """The command that rewrites a store for another schema."""
    place = ["--operator", str(operator)]
    if store != "default":
        place += ["--store", store]
    return _edit("evolve", url, *place, *words)


def rename_words(was: Sequence[str], wants: Sequence[str]) -> list[str] | None:
    """The options that rename columns; None if the command cannot express it."""
    pairs = [(one, other) for one, other in zip(was, wants, strict=True) if one != other]
    names = [name for pair in pairs for name in pair]
    if len(set(was)) < len(was) or any("=" in name or not name for name in names):
        return None
    return [word for one, other in pairs for word in ("--rename", f"{one}={other}")]


def migrate_command(url: str, names: Mapping[int, str]) -> str:
    """The command that gives names to the sources of a checkpoint."""
    words = [word for index in sorted(names) for word in ("--name", f"{index}={names[index]}")]
    return _shell("checkpoint", "migrate-offsets", url, *words, "--execute")


def publish_command(url: str) -> str:
    """The command that writes the newest state under Spark's names."""
    return _shell("checkpoint", "publish", url, "--execute")


def repartition_command(url: str, partitions: str) -> str:
    """The command that gives state another number of partitions."""
    return _edit("repartition", url, "--partitions", partitions)


def convert_command(url: str, provider: str) -> str:
    """The command that gives state the files of another provider."""
    return _edit("convert", url, "--to", provider)


def _edit(*words: str) -> str:
    return _shell("state", *words, *ASKS_FOR_SINK.split(), "--execute")


def _shell(*words: str) -> str:
    return shlex.join(("epochal", *words))
