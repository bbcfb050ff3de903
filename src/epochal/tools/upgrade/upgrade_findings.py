"""The values of a check before an upgrade: facts, differences with verdicts, commands. Pure.

What a checkpoint pins and what a query needs are said in the same words, so that both can be
compared. `checkpoint_facts` and `check_query` fill these values.

The commands can be pasted into a shell. Where a query writes is not in its checkpoint, so those
that add a batch ask for it: `OUTPUT` stands for the directory of its file sink.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar

from epochal.checkpoint.restart import conf_of_new_query
from epochal.state.files.schema_file import FamilySchema

FILE = "file"
KAFKA = "kafka"
RATE = "rate"
RATE_MICRO_BATCH = "rate-micro-batch"
NUMBER = "number"
"""A source whose offset is a plain number: rate, socket, memory or a user's own."""
OTHER = "other"

ANY_CHECKPOINT = "CHECKPOINT"
"""Stands in commands for the checkpoint of a query that was not run."""


@dataclass(frozen=True, slots=True)
class SourceFact:
    """One source: a line of the offset log, or a leaf of the plan."""

    key: str
    """The position as text, or the name if sources are named."""
    kind: str
    """One of the constants above; for a plan, the format if it is none of them."""
    places: frozenset[str] = frozenset()
    """The directories of its files or its topics, as far as known."""
    pattern: str = ""
    """The regular expression of its topics, if it reads all that match one."""
    fails_on_loss: bool = True
    """Whether a Kafka source ends the query if it cannot read all that the checkpoint lists."""
    shares: bool = False
    """Whether an earlier branch of the plan reads the same source. Spark logs its offset for every
    branch, but such a source has only one log of its files."""

    def __str__(self) -> str:
        listed = ", ".join(sorted(self.places)) or self.pattern
        return f"{self.kind} ({listed})" if listed else self.kind


@dataclass(frozen=True, slots=True)
class StoreFact:
    name: str
    families: Mapping[str, FamilySchema]
    """By name; a store without column families has only `default`."""
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class OperatorFact:
    number: int
    name: str
    """As in Spark's operator metadata; empty if the checkpoint has none."""
    stores: Mapping[str, StoreFact] = field(default_factory=dict)
    properties: Mapping[str, object] = field(default_factory=dict)
    """The settings of an operator with its own metadata log: time mode, output mode, variables."""
    keys: tuple[tuple[str, ...], ...] | None = None
    """The names of the key's columns, by input; None if not known. Spark does not store them."""


@dataclass(frozen=True, slots=True)
class Pins:
    url: str
    next_batch: int
    """The batch that a restart runs first; 0 if there is nothing to continue."""
    offset_version: int
    sources: tuple[SourceFact, ...]
    operators: Mapping[int, OperatorFact]
    conf: Mapping[str, str]
    commit_version: int = 1
    is_ours: bool = False
    """Whether our engine has written it."""
    failure: str = ""
    """Why no query can start on it; empty if one can."""
    failure_condition: str = ""
    unpublished: int | None = None
    """The newest batch, if our engine has not written its state under Spark's names yet."""


@dataclass(frozen=True, slots=True)
class Needs:
    release: tuple[int, int]
    """Of the Spark that would run it."""
    sources: tuple[SourceFact, ...]
    operators: Mapping[int, OperatorFact]
    session: Mapping[str, str] = field(default_factory=dict)
    """The settings that the session sets itself, without defaults."""
    output_mode: str = "append"
    ours: bool = False
    """Whether our engine runs it."""
    refused: str = ""
    """Why the engine refuses the query on any checkpoint; empty if it does not."""
    refused_here: str = ""
    """Why our engine refuses the query on this checkpoint, in its own words; empty if it does not.
    """


def pins_of(needs: Needs) -> Pins:
    return Pins(
        ANY_CHECKPOINT,
        next_batch=1,
        offset_version=1 if all(source.key.isdigit() for source in needs.sources) else 2,
        sources=needs.sources,
        operators=needs.operators,
        conf=conf_of_new_query(needs.session),
        is_ours=needs.ours,
    )


ACCEPTS = ""
"""What an engine says to a difference that it accepts: nothing."""

SPARK = "Spark"
EPOCHAL = "Epochal"
"""The engines, as a report names them."""


class Outcome(IntEnum):
    """The worst verdict of a check; its number is the exit status."""

    SAFE = 0
    NEEDS_ACTION = 1
    IMPOSSIBLE = 2


@dataclass(frozen=True, slots=True)
class UpgradeVerdict:
    """Whether the query can continue in spite of a difference. Each kind is a class below."""

    why: str
    command: str = ""
    outcome: ClassVar[Outcome]
    word: ClassVar[str]


class Safe(UpgradeVerdict):
    """The query continues, and its results are right.

    A command would make the checkpoint follow the query, if that is possible and wanted.
    """

    outcome, word = Outcome.SAFE, "safe"


class AfterCommand(UpgradeVerdict):
    """The query continues after this command."""

    outcome, word = Outcome.NEEDS_ACTION, "after a command"


class Unclear(UpgradeVerdict):
    """Only the author of the query knows whether the results are right."""

    outcome, word = Outcome.NEEDS_ACTION, "unclear"


class Impossible(UpgradeVerdict):
    """The query cannot continue from this checkpoint with right results."""

    outcome, word = Outcome.IMPOSSIBLE, "impossible"


@dataclass(frozen=True, slots=True)
class UpgradeDifference:
    """One difference between the checkpoint and the query."""

    subject: str
    """What differs: `source 0`, `operator 1`, `spark.sql.shuffle.partitions`, …"""
    was: str
    wants: str
    verdict: UpgradeVerdict
    refusal: str = ACCEPTS
    """A part of the message with which the engine refuses to start, or `ACCEPTS`."""

    @property
    def outcome(self) -> Outcome:
        return self.verdict.outcome

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
    place = ["--operator", str(operator)]
    if store != "default":
        place += ["--store", store]
    return edit_command("evolve", url, *place, *words)


def rename_words(was: Sequence[str], wants: Sequence[str]) -> list[str] | None:
    """The options that rename columns; None if the command cannot express it."""
    pairs = [(one, other) for one, other in zip(was, wants, strict=True) if one != other]
    names = [name for pair in pairs for name in pair]
    if len(set(was)) < len(was) or any("=" in name or not name for name in names):
        return None
    return [word for one, other in pairs for word in ("--rename", f"{one}={other}")]


def migrate_command(url: str, names: Mapping[int, str]) -> str:
    words = [word for index in sorted(names) for word in ("--name", f"{index}={names[index]}")]
    return shell_command("checkpoint", "migrate-offsets", url, *words, "--execute")


def edit_command(*words: str) -> str:
    return shell_command("state", *words, *ASKS_FOR_SINK.split(), "--execute")


def shell_command(*words: str) -> str:
    return shlex.join(("epochal", *words))
