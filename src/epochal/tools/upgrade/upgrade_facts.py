"""What a checkpoint pins, and what a query needs, in the same words so that both can be compared.

Pure: `checkpoint_facts` and the plan readers fill these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from epochal.checkpoint.pinned import conf_of_new_query
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
    """One state store of an operator."""

    name: str
    families: Mapping[str, FamilySchema]
    """By name; a store without column families has only `default`."""
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class OperatorFact:
    """One stateful operator."""

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
    """What a checkpoint pins."""

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
    """What a query needs."""

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
    """What a query pins in a new checkpoint."""
    return Pins(
        ANY_CHECKPOINT,
        next_batch=1,
        offset_version=1 if all(source.key.isdigit() for source in needs.sources) else 2,
        sources=needs.sources,
        operators=needs.operators,
        conf=conf_of_new_query(needs.session),
        is_ours=needs.ours,
    )
