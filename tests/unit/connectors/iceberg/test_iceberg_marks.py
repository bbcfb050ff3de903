"""Which epoch of a query is the newest in a table: the property, or a snapshot of Spark's."""

from __future__ import annotations

from epochal.connectors.iceberg.iceberg_marks import (
    MarkProperty,
    SnapshotMark,
    encode_property,
    newest_attempt,
    newest_mark,
    property_name,
    summary_of,
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
