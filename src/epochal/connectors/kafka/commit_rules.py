"""Decides what may be committed to a group, by which query, and when to retry. Pure.

The rules keep three promises:

- A group never moves backwards unless the user allows it. The broker is asked for the group's
  offsets before every commit, because topics are recreated and groups deleted while a query runs.
- A group shows one query. If two queries in one process share a group, the first keeps it. If they
  run in two processes, the later one takes the group; the earlier one finds the other's mark and
  stops.
- Pending work is bounded: one offset per group and partition, the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from epochal.connectors.kafka.offsets import Cluster, CommitRequest, KafkaPartition, Mark

FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 30.0


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


class Claims:
    """Which query of this process may commit to which group: the first to claim it keeps it."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str], str] = {}

    def claim(self, cluster: Cluster, group: str, query_id: str) -> str | None:
        """Claim a group; return the other query if one holds it already."""
        owner = self._owners.setdefault((servers_key(cluster), group), query_id)
        return None if owner == query_id else owner

    def release(self, query_id: str) -> None:
        """Release all groups of a query."""
        self._owners = {key: owner for key, owner in self._owners.items() if owner != query_id}


def servers_key(cluster: Cluster) -> str:
    """The brokers' addresses, sorted, so that the order of a list does not matter."""
    names = (name.strip().lower() for name in cluster.bootstrap_servers.split(","))
    return ",".join(sorted(name for name in names if name))
