"""Decides which snapshots of an Iceberg table are expired, and which files with them. Pure.

A snapshot is kept if a rule keeps it: the number or the age that the options name, a tag, the end
of a branch. The chain from the end of the query's branch back to the query's newest epoch is always
kept, because Spark follows it, parent by parent, to see which epochs are in the table.

Note: snapshots on no branch may be staged by someone who will publish them. They are expired by age
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownSnapshot:
    """A snapshot of a table, as the rules see it."""

    snapshot: int
    parent: int | None
    timestamp_ms: int
    query_id: str | None
    """The streaming query that wrote it."""


@dataclass(frozen=True, slots=True)
class ExpiryRule:
    """Which snapshots of a branch are kept."""

    keep: int | None
    """At least this many; None if only the age counts."""
    oldest_ms: int | None
    """All that are not older than this; None if only the number counts."""


def expired_snapshots(
    snapshots: Iterable[KnownSnapshot],
    branches: Mapping[str, int],
    tags: Set[int],
    *,
    branch: str,
    query_id: str,
    rule: ExpiryRule,
) -> list[int]:
    """The snapshots to expire, oldest first. `branches` has the newest snapshot of each."""
    by_id = {each.snapshot: each for each in snapshots}
    kept, reachable = set(tags), set(tags)
    for name, head in branches.items():
        chain = _chain(by_id, head)
        reachable |= {each.snapshot for each in chain}
        marked = [n for n, each in enumerate(chain) if each.query_id == query_id]
        needed = marked[0] if marked and name == branch else 0
        kept |= {
            each.snapshot
            for n, each in enumerate(chain)
            if n <= needed or _keeps(rule, n, each.timestamp_ms)
        }
    gone = [
        each
        for each in by_id.values()
        if each.snapshot not in kept
        and (each.snapshot in reachable or _is_old(rule, each.timestamp_ms))
    ]
    return [each.snapshot for each in sorted(gone, key=lambda each: each.timestamp_ms)]


def _chain(by_id: Mapping[int, KnownSnapshot], head: int) -> list[KnownSnapshot]:
    chain: list[KnownSnapshot] = []
    found = by_id.get(head)
    while found is not None:
        chain.append(found)
        found = None if found.parent is None else by_id.get(found.parent)
    return chain


def _keeps(rule: ExpiryRule, place: int, timestamp_ms: int) -> bool:
    if place < (rule.keep or 1):
        return True
    return rule.oldest_ms is not None and timestamp_ms >= rule.oldest_ms


def _is_old(rule: ExpiryRule, timestamp_ms: int) -> bool:
    return rule.oldest_ms is not None and timestamp_ms < rule.oldest_ms


def unreferenced(expired: Sequence[Set[str]], kept: Iterable[Set[str]]) -> set[str]:
    """What expired snapshots refer to and no other snapshot does."""
    gone: set[str] = set().union(*expired)
    for each in kept:
        gone -= each
    return gone
