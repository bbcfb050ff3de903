"""What a user sees who prints a reader, a stream or a writer, and how a tree is numbered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from epochal.continuous.api.readwriter import StreamReader
from epochal.continuous.api.stream import Stream
from epochal.continuous.plan.logical import Stateful, StreamSource, preorder
from epochal.errors import OptionError

COLUMNS: Any = {"user": pa.string(), "at": pa.timestamp("us", "UTC"), "amount": pa.int64()}
SCHEMA = pa.schema(COLUMNS)


SESSION: Any = SimpleNamespace(conf={"spark.sql.session.timeZone": "UTC"})
"""As much of a SparkSession as a stream asks for before it starts."""


def source(name: str = "kafka") -> Stream:
    return Stream(SESSION, StreamSource(0, name, {}, None, SCHEMA, name))


def test_a_reader_shows_its_format_and_the_names_of_its_options_only() -> None:
    reader = StreamReader(SESSION)
    assert repr(reader) == "StreamReader(no format)"
    named = reader.format("kafka").option("subscribe", "t").option("kafka.ssl.key.password", "x")
    assert repr(named) == "StreamReader(kafka, options: subscribe, kafka.ssl.key.password)"


def test_a_writer_shows_where_rows_come_from_and_go_without_values_of_options() -> None:
    writer = source().with_watermark("at", "10 seconds").write_stream
    given = writer.format("parquet").output_mode("update").option("checkpointLocation", "/ck")
    assert repr(given) == (
        "StreamWriter(kafka → with_watermark(at, 10 seconds) → parquet, update,"
        " options: checkpointLocation)"
    )


def test_a_union_may_stand_anywhere_and_is_numbered_through() -> None:
    once = source().drop_duplicates(["user"])
    both = once.union(source("rate").drop_duplicates(["amount"])).union(source("pubsub"))
    assert repr(both) == (
        "Stream(union(kafka → drop_duplicates by user, rate → drop_duplicates by amount, pubsub))"
    )
    counts = both.group_by("user").count()
    numbers = [node.number for node in preorder(counts.tree) if isinstance(node, StreamSource)]
    operators = [node.operator_id for node in preorder(counts.tree) if isinstance(node, Stateful)]
    assert (numbers, operators) == ([0, 1, 2], [2, 0, 1])


def test_a_watermark_may_follow_a_stateful_operator_unless_there_is_one_already() -> None:
    timed = source().drop_duplicates(["user"]).with_watermark("at", "1 minute")
    assert timed.event_time == "at"
    with pytest.raises(OptionError, match="already cannot get another one"):
        timed.drop_duplicates(["amount"]).with_watermark("at", "1 minute")
