"""Decides what may be committed to a group, who may, and when to try again. Pure.

Three promises are kept here. A group never moves backwards unless that was asked for: the broker
itself is asked what the group holds, each time, because topics are recreated and groups deleted
while a query runs. A group shows one query: of two in one process the first keeps it; of two
processes the later one does, and the earlier finds the other's mark and stops. And what is pending
is bounded: one offset per group and partition, the newest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from epochal.connectors.kafka.offsets import Cluster, Mark, Place, Want

FIRST_RETRY_SECONDS = 0.5
LAST_RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Held:
    """What a group holds for one partition."""

    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to commit of a want, and what not to."""

    commit: Mapping[Place, int]
    behind: Mapping[Place, tuple[int, int]] = field(default_factory=dict)
    """Places where the group is further than the query: (held, wanted). Left alone."""
    taken_by: str | None = None
    """Another query writes the group by now: nothing is committed."""
    taken_from: str | None = None
    """The query whose offsets are replaced, when the group is written for the first time."""


def plan_commit(
    want: Want, held: Mapping[Place, Held], *, owned: bool, allow_backwards: bool
) -> Plan:
    """Compare what a group should hold with what it does hold.

    `owned` says that this process has written the group for this query before.
    """
    foreign = _foreign(want, held)
    if foreign is not None and owned:
        return Plan({}, taken_by=foreign)
    commit: dict[Place, int] = {}
    behind: dict[Place, tuple[int, int]] = {}
    for place, offset in want.offsets.items():
        there = held.get(place)
        if there is None or there.offset < offset:
            commit[place] = offset
        elif there.offset > offset:
            if allow_backwards:
                commit[place] = offset
            else:
                behind[place] = (there.offset, offset)
        elif foreign is not None:
            commit[place] = offset  # same offset, but the mark must become ours
    return Plan(commit, behind, taken_from=foreign)


def _foreign(want: Want, held: Mapping[Place, Held]) -> str | None:
    for place in want.offsets:
        mark = Mark.parse(held[place].metadata) if place in held else None
        if mark is not None and mark.query_id != want.query_id:
            return mark.query_id
    return None


def retry_seconds(failures: int, jitter: float) -> float:
    """How long to wait after the n-th failure in a row; `jitter` is from 0 to 1."""
    whole = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 16))
    return whole * (0.5 + jitter / 2)


def newest(pending: Want | None, want: Want) -> Want:
    """Both in one: per partition what came last. Partitions only the older one has stay."""
    if pending is None or pending.query_id != want.query_id:
        return want
    return replace(want, offsets={**pending.offsets, **want.offsets})


class Claims:
    """Which query may write which group, in this process: the first to ask, until it ends."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str], str] = {}

    def claim(self, cluster: Cluster, group: str, query_id: str) -> str | None:
        """Claim a group; the query that holds it already if that is another one."""
        owner = self._owners.setdefault((servers_key(cluster), group), query_id)
        return None if owner == query_id else owner

    def release(self, query_id: str) -> None:
        """Give up everything a query holds."""
        self._owners = {key: owner for key, owner in self._owners.items() if owner != query_id}


def servers_key(cluster: Cluster) -> str:
    """The brokers' addresses in one order, so that the same list is the same cluster."""
    names = (name.strip().lower() for name in cluster.bootstrap_servers.split(","))
    return ",".join(sorted(name for name in names if name))
