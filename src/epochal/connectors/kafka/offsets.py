"""Offsets of Kafka partitions, and what may be committed of them to which group. Pure.

The positions of a query's sources are turned into offsets. Sources other than Kafka write offsets
in other forms; these are skipped. Three rules say which offsets are committed, and by which query:

- A group never moves backwards unless the user allows it. The broker is asked for the group's
  offsets before every commit, because topics are recreated and groups deleted while a query runs.
- A group shows one query. If two queries in one process share a group, the first keeps it. If they
  run in two processes, the later one takes the group; the earlier one finds the other's mark and
  stops.
- Pending work is bounded: one offset per group and partition, the newest.

Note: Spark's `endOffset` and Kafka's committed offset both name the *next* record to read, so no
code here adds 1.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

KafkaPartition = tuple[str, int]
"""A topic and the number of one of its partitions; a variable of this type is named `tp`."""

FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 30.0
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


def lowest_offsets(ends: Iterable[str | None]) -> dict[KafkaPartition, int]:
    """The offsets in the ends of Kafka sources.

    If two sources read the same partition, the lower offset counts: records above it were processed
    by only one of them.
    """
    offsets: dict[KafkaPartition, int] = {}
    for end in ends:
        for tp, offset in (parse_offsets(end) or {}).items():
            offsets[tp] = min(offset, offsets.get(tp, offset))
    return offsets


def commit_requests(position: Position, targets: Iterable[CommitTarget]) -> list[CommitRequest]:
    """The commits that show a query's position in its groups."""
    ends: dict[tuple[Cluster, str], list[str | None]] = {}
    for target in targets:
        index = target.source
        own = position.ends if index is None else position.ends[index : index + 1]
        ends.setdefault((target.cluster, target.group), []).extend(own)
    return [
        CommitRequest(cluster, group, position.query_id, position.batch_id, offsets)
        for (cluster, group), group_ends in ends.items()
        if (offsets := lowest_offsets(group_ends))
    ]


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


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset for one partition, with its metadata."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """Which offsets of a request to commit, and which to leave alone."""

    commit: Mapping[KafkaPartition, int]
    behind: Mapping[KafkaPartition, tuple[int, int]] = field(default_factory=dict)
    """Partitions where the group is ahead of the query: (committed, requested). Left alone."""
    taken_by: str | None = None
    """The other query that commits to the group now. If set, nothing is committed."""
    taken_from: str | None = None
    """The query whose offsets this query replaces with its first commit."""


def plan_commit(
    request: CommitRequest,
    committed: Mapping[KafkaPartition, CommittedOffset],
    *,
    owned: bool,
    allow_backwards: bool,
) -> CommitPlan:
    """Compare a request with the offsets that the group has now.

    `owned` means that this process has already committed to the group for this query.
    """
    foreign = _foreign_query(request, committed)
    if foreign is not None and owned:
        return CommitPlan({}, taken_by=foreign)
    commit: dict[KafkaPartition, int] = {}
    behind: dict[KafkaPartition, tuple[int, int]] = {}
    for tp, offset in request.offsets.items():
        held = committed.get(tp)
        if held is None or held.offset < offset:
            commit[tp] = offset
        elif held.offset > offset:
            if allow_backwards:
                commit[tp] = offset
            else:
                behind[tp] = (held.offset, offset)
        elif foreign is not None:
            commit[tp] = offset  # same offset, but the mark must name this query
    return CommitPlan(commit, behind, taken_from=foreign)


def _foreign_query(
    request: CommitRequest, committed: Mapping[KafkaPartition, CommittedOffset]
) -> str | None:
    for tp in request.offsets:
        mark = Mark.parse(committed[tp].metadata) if tp in committed else None
        if mark is not None and mark.query_id != request.query_id:
            return mark.query_id
    return None


def retry_seconds(failures: int, jitter: float) -> float:
    """How long to wait after this many failures in a row; `jitter` is from 0 to 1."""
    longest = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 16))
    return longest * (0.5 + jitter / 2)


def merge_requests(pending: CommitRequest | None, request: CommitRequest) -> CommitRequest:
    """Add a newer request to a pending one; the newer offset of each partition wins.

    A pending request of another query is replaced.
    """
    if pending is None or pending.query_id != request.query_id:
        return request
    return replace(request, offsets={**pending.offsets, **request.offsets})


def servers_key(cluster: Cluster) -> str:
    """The brokers' addresses, sorted, so that the order of a list does not matter."""
    names = (name.strip().lower() for name in cluster.bootstrap_servers.split(","))
    return ",".join(sorted(name for name in names if name))
