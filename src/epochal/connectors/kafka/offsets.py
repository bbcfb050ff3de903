"""Turns the positions of a query's sources into what a consumer group should hold. Pure.

Spark's `endOffset` and Kafka's committed offset both name the *next* record to read: there is no
`+ 1` anywhere. A source that is not Kafka's has another offset form and is passed over.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Place = tuple[str, int]
"""A topic and one of its partitions."""

MARK_VERSION = 1


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to reach a Kafka cluster: the client's settings, sorted, as a value that can be a key."""

    settings: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Cluster:
        return cls(tuple(sorted(settings.items())))

    @property
    def bootstrap_servers(self) -> str:
        return dict(self.settings).get("bootstrap.servers", "")

    def __repr__(self) -> str:  # settings hold passwords, and reprs end up in logs
        return f"Cluster({self.bootstrap_servers!r})"


@dataclass(frozen=True, slots=True)
class Target:
    """One source of a query and the group that should show its position."""

    group: str
    cluster: Cluster
    source: int | None = None
    """The source's place in the progress report; None stands for every Kafka source."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a query is: the end of its newest finished batch."""

    query_id: str
    batch_id: int
    ends: tuple[str | None, ...]
    """The sources' offsets, as they wrote them."""


@dataclass(frozen=True, slots=True)
class Want:
    """What a group should hold once everything has been told to the cluster."""

    cluster: Cluster
    group: str
    query_id: str
    batch_id: int
    offsets: Mapping[Place, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """Who committed an offset; travels as the offset's metadata."""

    query_id: str
    batch_id: int

    def to_text(self) -> str:
        return json.dumps(
            {"epochal": MARK_VERSION, "query": self.query_id, "batch": self.batch_id},
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, text: str | None) -> Mark | None:
        """The mark in an offset's metadata; None if somebody else wrote it."""
        try:
            found = json.loads(text or "")
        except ValueError:
            return None
        if not isinstance(found, dict) or found.get("epochal") != MARK_VERSION:
            return None
        query, batch = found.get("query"), found.get("batch")
        if not isinstance(query, str) or not isinstance(batch, int):
            return None
        return cls(query, batch)


def parse_offsets(text: str | None) -> dict[Place, int] | None:
    """The offsets in `{"topic":{"0":42}}`; None if it is no such text.

    Spark Connect before 4.1 hands Python's form of the same object to listeners.
    """
    found = _parse(text)
    if not isinstance(found, dict) or not found:
        return None
    offsets: dict[Place, int] = {}
    for topic, partitions in found.items():
        if not isinstance(topic, str) or not isinstance(partitions, dict):
            return None
        for partition, offset in partitions.items():
            if not (isinstance(partition, str) and partition.isascii() and partition.isdigit()):
                return None
            if isinstance(offset, bool) or not isinstance(offset, int):
                return None
            if offset >= 0:  # below are "earliest" and "latest", which are no position yet
                offsets[topic, int(partition)] = offset
    return offsets


def wants_of(position: Position, targets: Iterable[Target]) -> list[Want]:
    """What each group should hold, now that the query is at `position`.

    Two sources that share a group and a partition agree on the lower offset: what lies above was
    processed by one of them only.
    """
    merged: dict[tuple[Cluster, str], dict[Place, int]] = {}
    for target in targets:
        for end in _ends(position.ends, target.source):
            held = merged.setdefault((target.cluster, target.group), {})
            for place, offset in (parse_offsets(end) or {}).items():
                held[place] = min(offset, held.get(place, offset))
    return [
        Want(cluster, group, position.query_id, position.batch_id, offsets)
        for (cluster, group), offsets in merged.items()
        if offsets
    ]


def _ends(ends: Sequence[str | None], source: int | None) -> Sequence[str | None]:
    if source is None:
        return ends
    return ends[source : source + 1]


def _parse(text: str | None) -> object:
    if not text or not text.startswith("{"):
        return None
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
