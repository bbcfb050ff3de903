"""Turns the positions of a query's sources into offsets for consumer groups. Pure.

Sources other than Kafka write offsets in other forms; these are skipped.

Note: Spark's `endOffset` and Kafka's committed offset both name the *next* record to read, so no
code here adds 1.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

KafkaPartition = tuple[str, int]
"""A topic and the number of one of its partitions; a variable of this type is named `tp`."""

MARK_VERSION = 1
_PARTITION = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Cluster:
    """How to reach a Kafka cluster: the client's settings, sorted and hashable."""

    settings: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Cluster:
        return cls(tuple(sorted(settings.items())))

    @property
    def bootstrap_servers(self) -> str:
        return dict(self.settings).get("bootstrap.servers", "")

    def __repr__(self) -> str:  # settings contain passwords, and reprs end up in logs
        return f"Cluster({self.bootstrap_servers!r})"


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """One source of a query and the group that should show its position."""

    group: str
    cluster: Cluster
    source: int | None = None
    """The source's index in the progress report; None means every Kafka source."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a query has come: the end of its newest finished batch."""

    query_id: str
    batch_id: int
    ends: tuple[str | None, ...]
    """The offset of each source, in the form that the source writes."""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """The offsets that a group should have for a query."""

    cluster: Cluster
    group: str
    query_id: str
    batch_id: int
    offsets: Mapping[KafkaPartition, int]


@dataclass(frozen=True, slots=True)
class Mark:
    """Names the query and batch that committed an offset; stored as the offset's metadata."""

    query_id: str
    batch_id: int

    def to_text(self) -> str:
        return json.dumps(
            {"epochal": MARK_VERSION, "query": self.query_id, "batch": self.batch_id},
            separators=(",", ":"),
        )

    @classmethod
    def parse(cls, text: str | None) -> Mark | None:
        """The mark in an offset's metadata; None if another program committed the offset."""
        try:
            fields = json.loads(text or "")
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict) or fields.get("epochal") != MARK_VERSION:
            return None
        query, batch = fields.get("query"), fields.get("batch")
        if not isinstance(query, str) or not isinstance(batch, int):
            return None
        return cls(query, batch)


def parse_offsets(text: str | None) -> dict[KafkaPartition, int] | None:
    """The offsets in `{"topic":{"0":42}}`; None if the text has another form.

    Spark Connect before 4.1 gives listeners the Python repr of this object instead of JSON.
    """
    parsed = _parse(text)
    if not isinstance(parsed, dict) or not parsed:
        return None
    offsets: dict[KafkaPartition, int] = {}
    for topic, partitions in parsed.items():
        if not isinstance(topic, str) or not isinstance(partitions, dict):
            return None
        for partition, offset in partitions.items():
            if not (isinstance(partition, str) and _PARTITION.fullmatch(partition)):
                return None
            if isinstance(offset, bool) or not isinstance(offset, int):
                return None
            if offset >= 0:  # -2 and -1 mean "earliest" and "latest", which are not positions yet
                offsets[topic, int(partition)] = offset
    return offsets


def commit_requests(position: Position, targets: Iterable[CommitTarget]) -> list[CommitRequest]:
    """The commits that show a query's position in its groups.

    If two sources share a group and a partition, the lower offset counts: records above it were
    processed by only one of them.
    """
    merged: dict[tuple[Cluster, str], dict[KafkaPartition, int]] = {}
    for target in targets:
        for end in _ends(position.ends, target.source):
            offsets = merged.setdefault((target.cluster, target.group), {})
            for tp, offset in (parse_offsets(end) or {}).items():
                offsets[tp] = min(offset, offsets.get(tp, offset))
    return [
        CommitRequest(cluster, group, position.query_id, position.batch_id, offsets)
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
    except RecursionError:
        return None
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
