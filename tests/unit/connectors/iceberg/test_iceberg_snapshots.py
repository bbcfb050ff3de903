"""Which epoch of a query is the newest in a table, which snapshots are expired, and their files."""

from __future__ import annotations

from epochal.connectors.iceberg.iceberg_snapshots import (
    QUERY_KEY,
    MarkProperty,
    SnapshotMark,
    encode_property,
    expired_snapshots,
    newest_attempt,
    newest_mark,
    property_name,
    summary_of,
    unreferenced,
)
from epochal.connectors.staging.epoch_marker import Marker, Refuse

QUERY = "q"


def ours(snapshot: int, epoch: int, token: str = "t", attempt: int = 1) -> SnapshotMark:
    return SnapshotMark(snapshot, snapshot, summary_of(QUERY, Marker(epoch, token), attempt))


def sparks(snapshot: int, epoch: int, query: str = QUERY) -> SnapshotMark:
    summary = {"spark.sql.streaming.queryId": query, "spark.sql.streaming.epochId": str(epoch)}
    return SnapshotMark(snapshot, snapshot, summary)


def other(snapshot: int) -> SnapshotMark:
    return SnapshotMark(snapshot, snapshot, {"added-records": "1"})


def prop(epoch: int, snapshot: int | None, sequence: int) -> str:
    return encode_property(MarkProperty(epoch, "t", sequence, snapshot))


def newest(text: str | None, *chain: SnapshotMark, also: tuple[int, ...] = ()) -> object:
    return newest_mark(QUERY, text, chain, {*(each.snapshot for each in chain), *also})


def test_the_property_and_the_snapshot_of_one_commit_say_the_same() -> None:
    assert newest(prop(5, 7, 7), other(9), ours(7, 5), ours(6, 4)) == Marker(5, "t")


def test_the_property_outlives_its_snapshot() -> None:
    assert newest(prop(5, 7, 7), other(9), other(8)) == Marker(5, "t")
    assert newest(prop(5, 7, 7)) == Marker(5, "t")


def test_an_epoch_that_spark_has_written_later_counts() -> None:
    assert newest(prop(5, 7, 7), sparks(8, 6), ours(7, 5)) == Marker(6, "")
    assert newest(None, other(9), sparks(8, 6)) == Marker(6, "")


def test_a_marker_that_was_reset_counts_more_than_older_snapshots() -> None:
    assert newest(prop(2, None, 9), sparks(9, 6), ours(7, 5)) == Marker(2, "t")


def test_other_queries_do_not_count() -> None:
    assert newest(None, sparks(8, 6, query="other")) is None
    assert newest("[]", other(8)) is None


def test_a_snapshot_that_was_rolled_back_is_refused() -> None:
    found = newest(prop(5, 7, 7), ours(6, 4), also=(7,))
    assert isinstance(found, Refuse)
    assert "snapshot 7 with epoch 5" in found.reason


def test_the_attempt_of_the_newest_epoch_is_known() -> None:
    assert newest_attempt(QUERY, [other(9), ours(7, 5, attempt=12), ours(6, 4, attempt=3)]) == 12
    assert newest_attempt(QUERY, [sparks(8, 6), ours(7, 5, attempt=12)]) == -1
    assert newest_attempt(QUERY, [other(9)]) == -1


def test_each_branch_has_its_own_property() -> None:
    assert property_name("q", "main") == "epochal.q"
    assert property_name("q", "audit") == "epochal.q.audit"


def known(snapshot: int, parent: int | None, query: str = "") -> SnapshotMark:
    summary = {QUERY_KEY: query}
    return SnapshotMark(snapshot, snapshot, summary, parent, snapshot * 1000)


def chain(*ids: int, queries: dict[int, str] | None = None) -> list[SnapshotMark]:
    """Snapshots from the oldest on; a snapshot's time is its id in seconds."""
    parents = (None, *ids[:-1])
    return [
        known(snapshot, parent, (queries or {}).get(snapshot, ""))
        for snapshot, parent in zip(ids, parents, strict=True)
    ]


def expired(
    snapshots: list[SnapshotMark],
    branches: dict[str, int],
    *,
    keep: int | None = None,
    oldest_ms: int | None = None,
    tags: frozenset[int] = frozenset(),
) -> list[int]:
    return expired_snapshots(
        *(snapshots, branches, tags), branch="main", query_id="q", keep=keep, oldest_ms=oldest_ms
    )


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
    snapshots = [*chain(1, 2, 3, 4), known(9, 2)]
    found = expired(snapshots, {"main": 4, "audit": 9}, keep=1, tags=frozenset({1}))
    assert found == [2, 3]


def test_snapshots_on_no_branch_go_by_age_only() -> None:
    snapshots = [*chain(4, 5), known(1, None)]
    assert expired(snapshots, {"main": 5}, keep=1) == [4]
    assert expired(snapshots, {"main": 5}, keep=5, oldest_ms=2000) == [1]


def test_what_a_kept_snapshot_refers_to_stays() -> None:
    assert unreferenced([{"a", "b"}, {"c"}], [{"b"}, {"d"}]) == {"a", "c"}
    assert unreferenced([], [{"a"}]) == set()
