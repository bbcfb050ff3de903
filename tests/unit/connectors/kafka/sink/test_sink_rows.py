"""From rows to records."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors.kafka.sink.sink_rows import HEADERS, RecordPlan, record_plan
from epochal.errors import OptionError

FULL: pa.Schema = pa.schema(
    [
        ("other", pa.int64()),
        ("partition", pa.int32()),
        ("headers", HEADERS),
        ("value", pa.binary()),
        ("key", pa.string()),
        ("topic", pa.string()),
    ]
)


def schema_of(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


def rows(schema: pa.Schema, *found: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(found), schema=schema)


def records(plan: RecordPlan, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    chosen = plan.chosen(batch)
    plan.check(chosen, 100)
    return list(plan.records(chosen))


def test_value_alone_is_enough() -> None:
    schema = pa.schema([("value", pa.string())])
    batch = rows(schema, {"value": "é"}, {"value": None}, {"value": ""})
    assert records(record_plan(schema, "t"), batch) == [
        ("t", "é".encode(), None),
        ("t", None, None),
        ("t", b"", None),
    ]


def test_keys_go_with_values() -> None:
    schema = schema_of(key=pa.large_binary(), value=pa.large_string())
    batch = rows(schema, {"key": b"k", "value": "v"}, {"key": None, "value": "w"})
    assert records(record_plan(schema, "t"), batch) == [("t", b"v", b"k"), ("t", b"w", None)]


def test_rows_may_set_every_part_of_a_record() -> None:
    header = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    batch = rows(
        FULL,
        {"topic": "a", "key": "k", "value": b"v", "partition": 3, "headers": header, "other": 1},
        {"topic": "b", "key": None, "value": b"w", "partition": None, "headers": None},
    )
    assert records(record_plan(FULL, None), batch) == [
        ("a", b"v", b"k", 3, None, None, 0, [("h", b"1"), ("h", None)]),
        ("b", b"w", None, -1, None, None, 0, None),
    ]


def test_the_option_overrides_the_column() -> None:
    schema = schema_of(topic=pa.string(), value=pa.binary())
    batch = rows(schema, {"topic": None, "value": b"v"})
    assert records(record_plan(schema, "t"), batch) == [("t", b"v", None)]


@pytest.mark.parametrize(
    ("topic", "highest"),
    [(None, {"a": 3, "b": -1}), ("t", {"t": 3})],
)
def test_the_highest_partition_of_each_topic_is_found(
    topic: str | None, highest: dict[str, int]
) -> None:
    batch = rows(
        FULL,
        {"topic": "a", "value": b"", "partition": 3},
        {"topic": "a", "value": b"", "partition": 0},
        {"topic": "b", "value": b"", "partition": None},
    )
    plan = record_plan(FULL, topic)
    assert plan.highest_partitions(plan.chosen(batch)) == highest


def test_without_a_partition_column_only_topics_are_found() -> None:
    schema = schema_of(topic=pa.string(), value=pa.binary())
    batch = rows(schema, {"topic": "a", "value": b""}, {"topic": "b", "value": b""})
    for topic, highest in ((None, {"a": -1, "b": -1}), ("t", {"t": -1})):
        plan = record_plan(schema, topic)
        assert plan.highest_partitions(plan.chosen(batch)) == highest


@pytest.mark.parametrize(
    ("fields", "topic", "message"),
    [
        ([("key", pa.string())], "t", "must have a column named value"),
        ([("value", pa.int64())], "t", "value must be binary or string, but it is int64"),
        ([("value", pa.string()), ("key", pa.int32())], "t", "key must be binary or string"),
        ([("value", pa.string())], None, "option topic, or add a column named topic"),
        ([("value", pa.string()), ("topic", pa.binary())], None, "topic must be string"),
        ([("value", pa.string()), ("partition", pa.int64())], "t", "partition must be int"),
        ([("value", pa.string()), ("headers", pa.string())], "t", "headers must be array<struct"),
    ],
)
def test_a_schema_that_cannot_be_written_is_refused(
    fields: list[tuple[str, pa.DataType]], topic: str | None, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        record_plan(pa.schema(fields), topic)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"topic": None, "value": b""}, "topic is null"),
        ({"topic": "a", "value": b"", "partition": -1}, "names partition -1"),
        ({"topic": "a", "value": b"x" * 100, "key": "k"}, "101 bytes, but the limit is 100"),
    ],
)
def test_a_row_that_cannot_be_written_is_refused(row: dict[str, Any], message: str) -> None:
    plan = record_plan(FULL, None)
    with pytest.raises(OptionError, match=message):
        plan.check(plan.chosen(rows(FULL, row)), 100)
