"""Which snapshots are expired, and which files with them."""

from __future__ import annotations

from epochal.connectors.iceberg.iceberg_expiry import (
    ExpiryRule,
    KnownSnapshot,
    expired_snapshots,
    unreferenced,
)


def chain(*ids: int, queries: dict[int, str] | None = None) -> list[KnownSnapshot]:
    """Snapshots from the oldest on; a snapshot's time is its id in seconds."""
    parents = (None, *ids[:-1])
    found = queries or {}
    return [
        KnownSnapshot(snapshot, parent, snapshot * 1000, found.get(snapshot))
        for snapshot, parent in zip(ids, parents, strict=True)
    ]


def expired(
    snapshots: list[KnownSnapshot],
    branches: dict[str, int],
    *,
    keep: int | None = None,
    oldest_ms: int | None = None,
    tags: frozenset[int] = frozenset(),
) -> list[int]:
    rule = ExpiryRule(keep, oldest_ms)
    return expired_snapshots(snapshots, branches, tags, branch="main", query_id="q", rule=rule)


def test_a_number_of_snapshots_is_kept() -> None:
    assert expired(chain(1, 2, 3, 4, 5), {"main": 5}, keep=2) == [1, 2, 3]


def test_an_age_is_kept_and_the_end_of_a_branch_always() -> None:
    assert expired(chain(1, 2, 3, 4, 5), {"main": 5}, oldest_ms=4000) == [1, 2, 3]
    assert expired(chain(1, 2, 3), {"main": 3}, oldest_ms=9000) == [1, 2]


def test_with_number_and_age_both_must_let_go() -> None:
    assert expired(chain(1, 2, 3, 4, 5), {"main": 5}, keep=4, oldest_ms=4000) == [1]
    assert expired(chain(1, 2, 3, 4, 5), {"main": 5}, keep=1, oldest_ms=2000) == [1]


def test_the_chain_back_to_the_querys_newest_epoch_is_kept() -> None:
    snapshots = chain(1, 2, 3, 4, 5, queries={1: "q", 2: "q", 4: "other"})
    assert expired(snapshots, {"main": 5}, keep=1) == [1]


def test_tags_and_ends_of_other_branches_are_kept() -> None:
    snapshots = [*chain(1, 2, 3, 4), KnownSnapshot(9, 2, 9000, None)]
    found = expired(snapshots, {"main": 4, "audit": 9}, keep=1, tags=frozenset({1}))
    assert found == [2, 3]


def test_snapshots_on_no_branch_go_by_age_only() -> None:
    snapshots = [*chain(4, 5), KnownSnapshot(1, None, 1000, None)]
    assert expired(snapshots, {"main": 5}, keep=1) == [4]
    assert expired(snapshots, {"main": 5}, keep=5, oldest_ms=2000) == [1]


def test_what_a_kept_snapshot_refers_to_stays() -> None:
    assert unreferenced([{"a", "b"}, {"c"}], [{"b"}, {"d"}]) == {"a", "c"}
    assert unreferenced([], [{"a"}]) == set()
