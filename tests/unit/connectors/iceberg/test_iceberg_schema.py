"""Iceberg's rules: types, partitions, options, and which epoch and snapshots count."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
    parse_transform,
)
from pyiceberg.types import (
    DateType,
    DecimalType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions
from epochal.connectors.iceberg.iceberg_schema import (
    Partitioning,
    arrow_type_text,
    decode_values,
    encode_values,
    partitioning_of,
    query_columns,
    split,
    type_fits,
    type_text,
)
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
from epochal.errors import OptionError, TableMismatchError
from epochal.options import read_options, without_secrets

SCHEMA = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "s", StringType()),
    NestedField(3, "at", TimestamptzType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "d", DecimalType(9, 2)),
    NestedField(6, "inner", StructType(NestedField(7, "k", LongType()))),
)
AT = [dt.datetime(2017, 11, 16, 22, 31, 8, tzinfo=dt.UTC), None]
AT += [dt.datetime(1969, 12, 31, 23, 0, tzinfo=dt.UTC)]
ROWS = pa.table(
    {
        "n": pa.array([34, None, -1], pa.int64()),
        "s": pa.array(["iceberg", None, "ice"], pa.string()),
        "at": pa.array(AT, pa.timestamp("us", "UTC")),
        "day": pa.array([dt.date(2017, 11, 16), None, dt.date(1969, 12, 31)], pa.date32()),
        "d": pa.array([Decimal("14.20"), None, Decimal("-0.05")], pa.decimal128(9, 2)),
        "inner": pa.array([{"k": 1}, None, {"k": 1}], pa.struct([("k", pa.int64())])),
    }
)


def by(*fields: tuple[int, Any]) -> Partitioning:
    spec = [
        PartitionField(source, 1000 + n, how, f"p{n}") for n, (source, how) in enumerate(fields)
    ]
    return partitioning_of("db.t", SCHEMA, PartitionSpec(*spec))


# The values of bucket are the hashes in the specification: 34 is 2017239379, "iceberg" 1210000089,
# 2017-11-16T22:31:08 -2047944441, 14.20 -500754589; all without their sign, modulo the width.
@pytest.mark.parametrize(
    ("source", "how", "first", "last"),
    [
        (1, IdentityTransform(), 34, -1),
        (2, IdentityTransform(), "iceberg", "ice"),
        (4, IdentityTransform(), 17486, -1),
        (1, BucketTransform(100), 2017239379 % 100, None),
        (2, BucketTransform(100), 1210000089 % 100, None),
        (3, BucketTransform(100), (-2047944441 & 0x7FFFFFFF) % 100, None),
        (5, BucketTransform(100), (-500754589 & 0x7FFFFFFF) % 100, None),
        (1, TruncateTransform(10), 30, -10),
        (2, TruncateTransform(3), "ice", "ice"),
        (5, TruncateTransform(50), Decimal("14.00"), Decimal("-0.50")),
        (3, YearTransform(), 47, -1),
        (3, MonthTransform(), 574, -1),
        (3, DayTransform(), 17486, -1),
        (4, DayTransform(), 17486, -1),
        (3, HourTransform(), 419686, -1),
        (3, VoidTransform(), None, None),
    ],
)
def test_each_row_goes_to_the_partition_of_its_transformed_value(
    source: int, how: Any, first: Any, last: Any
) -> None:
    fields = by((source, how))
    found = {
        row: values[0] for values, part in split(ROWS, fields) for row in part["n"].to_pylist()
    }
    assert found[34] == first
    assert found[None] is None
    if last is not None:
        assert found[-1] == last
    for value in found.values():
        assert decode_values(encode_values((value,), fields), fields) == (value,)


def test_rows_are_split_by_all_fields_together_and_keep_their_order() -> None:
    rows = pa.table({"n": [1, 2, 1, 2, 1], "s": ["a", "a", "b", "a", "a"], "x": [1, 2, 3, 4, 5]})
    found = split(rows, by((1, IdentityTransform()), (2, IdentityTransform())))
    assert [(values, part["x"].to_pylist()) for values, part in found] == [
        ((1, "a"), [1, 5]),
        ((1, "b"), [3]),
        ((2, "a"), [2, 4]),
    ]


def test_a_field_of_a_struct_may_be_the_source() -> None:
    found = split(ROWS, by((7, IdentityTransform())))
    assert {values: part.num_rows for values, part in found} == {(1,): 2, (None,): 1}


def test_a_table_without_partitions_has_one_part_and_no_rows_have_none() -> None:
    assert split(ROWS, by()) == [((), ROWS)]
    assert split(ROWS.slice(0, 0), by((1, IdentityTransform()))) == []


def test_an_unknown_transform_is_refused() -> None:
    with pytest.raises(OptionError, match=r"partitioned by p0, with a transform of column n that"):
        by((1, parse_transform("zorder")))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), "int"),
        (pa.int64(), "long"),
        (pa.large_string(), "string"),
        (pa.timestamp("us"), "timestamp"),
        (pa.timestamp("us", "Europe/Berlin"), "timestamptz"),
        (pa.decimal128(10, 2), "decimal(10, 2)"),
        (pa.list_(pa.struct([("a", pa.int64())])), "list<struct<a: long>>"),
        (pa.map_(pa.string(), pa.float64()), "map<string, double>"),
        (pa.duration("us"), None),
        (pa.list_(pa.null()), None),
    ],
)
def test_arrow_types_have_icebergs_names(kind: Any, text: str | None) -> None:
    assert arrow_type_text(kind) == text


def test_types_of_a_table_are_told_without_ids() -> None:
    inner = StructType(NestedField(5, "a", LongType()))
    assert type_text(ListType(4, inner)) == "list<struct<a: long>>"
    assert type_text(MapType(6, StringType(), 7, LongType())) == "map<string, long>"


@pytest.mark.parametrize(
    ("query", "table", "fits"),
    [
        ("int", "long", True),
        ("long", "int", False),
        ("float", "double", True),
        ("decimal(9, 2)", "decimal(10, 2)", True),
        ("decimal(9, 2)", "decimal(9, 3)", False),
        ("decimal(11, 2)", "decimal(10, 2)", False),
        ("timestamp", "timestamptz", False),
        ("string", "string", True),
    ],
)
def test_a_column_takes_the_same_type_and_narrower_ones(query: str, table: str, fits: bool) -> None:
    assert type_fits(query, table) is fits


def test_a_column_without_a_type_in_iceberg_is_named() -> None:
    with pytest.raises(TableMismatchError, match=r"column d is duration\[us\], and Iceberg has no"):
        query_columns("db.t", pa.schema([("d", pa.duration("us"))]))


def test_settings_of_the_catalog_are_passed_on_without_their_prefix() -> None:
    given = {"path": "db.t", "catalog.name": "c", "catalog.type": "rest", "catalog.s3.region": "eu"}
    options = read_options(IcebergSinkOptions, given, of="iceberg")
    assert (options.table, options.catalog_name) == ("db.t", "c")
    assert options.catalog_settings == {"type": "rest", "s3.region": "eu"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"table": "t"}, "named with its namespace"),
        ({"table": "db."}, "named with its namespace"),
        ({"expireSnapshotsKeep": "0"}, "expireSnapshotsKeep must be positive, not 0"),
        ({"compactMinFiles": "1"}, "compactMinFiles must be at least 2, not 1"),
    ],
)
def test_options_that_cannot_work_are_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        read_options(IcebergSinkOptions, {"table": "db.t", **given}, of="iceberg")


def test_errors_show_no_passwords_and_no_tokens() -> None:
    settings = {"token": "abc123", "s3.secret-access-key": "xyz789", "uri": "http://host"}
    text = "http://host refused abc123, xyz789 and postgresql://user:hunter2@db/x"
    found = without_secrets(text, settings)
    assert found == "http://host refused ***, *** and postgresql://user:***@db/x"


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
