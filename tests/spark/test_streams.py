"""Queries written with the builder, run to the end on a real Spark: what comes out is right."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import epochal
from epochal.connectors.memory import MemoryOutput, MemoryStream
from epochal.continuous import session, tumbling
from epochal.continuous.api.stream import Stream
from epochal.errors import OptionError
from epochal.state import read_state

COLUMNS: list[tuple[str, pa.DataType]] = [
    ("user", pa.string()),
    ("amount", pa.int64()),
    ("at", pa.timestamp("us", "UTC")),
]
SCHEMA = pa.schema(COLUMNS)


@pytest.fixture
def orders(tmp_path: Path) -> MemoryStream:
    return MemoryStream(SCHEMA, directory=str(tmp_path / "orders"))


def at(second: int) -> datetime.datetime:
    return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=second)


def order(user: str, amount: int, second: int = 0) -> dict[str, Any]:
    return {"user": user, "amount": amount, "at": at(second)}


def rows(output: MemoryOutput) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in output.table().to_pylist())


def finished(stream: Stream, tmp_path: Path, mode: str = "append") -> list[tuple[Any, ...]]:
    """What a query gives out for all that has been added."""
    output = MemoryOutput()
    query = (
        stream.write_stream.format(output)
        .output_mode(mode)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("parallelism", 2)
        .trigger(epoch="50 milliseconds")
        .start()
    )
    query.process_all_available()
    query.stop()
    assert query.exception() is None
    return rows(output)


def test_rows_pass_through_filters_projections_and_functions(
    spark: SparkSession, orders: MemoryStream, tmp_path: Path
) -> None:
    orders.add([order("a", 1), order("b", 2), order("c", 3)])

    def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch(
                [batch["user"], pc.multiply(batch["amount"], 2)], names=["user", "amount"]
            )

    stream = (
        epochal.read_stream(spark)
        .format(orders)
        .load()
        .filter("amount > 1")
        .filter(pc.field("user") != "z")
        .map_in_arrow(doubled, "user string, amount bigint")
        .with_column("big", "amount >= 6")
        .with_column("more", pc.field("amount") + 1)
        .map_in_pandas(lambda frames: frames, "user string, amount bigint, big boolean, more long")
        .select("upper(user) AS name", "amount", "big", "more")
        .drop("more")
    )
    assert stream.columns == ["name", "amount", "big"]
    assert finished(stream, tmp_path) == [("B", 4, False), ("C", 6, True)]


def test_a_union_gives_the_rows_of_both(
    spark: SparkSession, orders: MemoryStream, tmp_path: Path
) -> None:
    other = MemoryStream(SCHEMA, directory=str(tmp_path / "other"))
    orders.add([order("a", 1)])
    other.add([order("b", 2)])
    left = epochal.read_stream(spark).format(orders).load().select("user", "amount")
    right = epochal.read_stream(spark).format(other).load().select("user", "amount")
    assert finished(left.union(right), tmp_path) == [("a", 1), ("b", 2)]


class RunningTotal(StatefulProcessor):  # type: ignore[misc]
    """The sum of amounts per user, with every change."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "amount bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        total = self.total.get()[0] if self.total.exists() else 0
        total += sum(row.amount for row in rows)
        self.total.update((total,))
        yield Row(user=key[0], total=total)


def test_a_processor_of_pyspark_keeps_state_over_restarts(
    spark: SparkSession, orders: MemoryStream, tmp_path: Path
) -> None:
    stream = (
        epochal.read_stream(spark)
        .format(orders)
        .load()
        .transform_with_state(RunningTotal(), key=["user"], output="user string, total bigint")
    )
    orders.add([order("a", 1), order("b", 2)])
    assert finished(stream, tmp_path) == [("a", 1), ("b", 2)]
    orders.add([order("a", 10), order("c", 5)])
    assert finished(stream, tmp_path) == [("a", 11), ("c", 5)]
    state = read_state(str(tmp_path / "checkpoint"), store_name="total")
    found = {row["key"]["user"]: row["value"]["amount"] for row in state.to_pylist()}
    assert found == {"a": 11, "b": 2, "c": 5}


def test_totals_per_group_come_out_whenever_they_change(
    spark: SparkSession, orders: MemoryStream, tmp_path: Path
) -> None:
    stream = epochal.read_stream(spark).format(orders).load().group_by("user")
    orders.add([order("a", 1), order("b", 2)])
    summed = stream.agg(rows="count", total=("sum", "amount"))
    assert finished(summed, tmp_path, "update") == [("a", 1, 1), ("b", 1, 2)]
    orders.add([order("a", 10)])
    assert finished(summed, tmp_path, "update") == [("a", 2, 11)]


def test_a_window_comes_out_once_when_the_watermark_has_passed_it(
    spark: SparkSession, orders: MemoryStream, tmp_path: Path
) -> None:
    stream = (
        epochal.read_stream(spark)
        .format(orders)
        .load()
        .with_watermark("at", "5 seconds")
        .group_by("user", window=tumbling("at", "10 seconds"))
        .agg(total=("sum", "amount"), output_mode="append")
        .select("window.start AS start", "user", "total")
    )
    orders.add([order("a", 1, 1), order("a", 2, 9), order("a", 4, 12)])
    assert finished(stream, tmp_path) == []
    orders.add([order("a", 8, 15)])
    assert finished(stream, tmp_path) == [(at(0), "a", 3)]
    orders.add([order("a", 99, 3), order("b", 1, 30)])
    assert finished(stream, tmp_path) == [(at(10), "a", 12)]


def test_sessions_end_after_a_gap(
    spark: SparkSession, orders: MemoryStream, tmp_path: Path
) -> None:
    stream = (
        epochal.read_stream(spark)
        .format(orders)
        .load()
        .with_watermark("at", "0 seconds")
        .group_by("user", window=session("at", "5 seconds"))
        .agg(rows="count", output_mode="append")
        .select("session_window.start AS start", "user", "rows")
    )
    orders.add([order("a", 1, 0), order("a", 1, 3), order("a", 1, 20)])
    assert finished(stream, tmp_path)[:1] == [(at(0), "a", 2)]


def test_duplicates_are_dropped_also_after_a_restart(
    spark: SparkSession, orders: MemoryStream, tmp_path: Path
) -> None:
    stream = (
        epochal.read_stream(spark)
        .format(orders)
        .load()
        .drop_duplicates(["user"])
        .select("user", "amount")
    )
    orders.add([order("a", 1), order("a", 2), order("b", 3)])
    assert [row[0] for row in finished(stream, tmp_path)] == ["a", "b"]
    orders.add([order("b", 4), order("c", 5)])
    assert finished(stream, tmp_path) == [("c", 5)]


def test_mistakes_are_refused_on_the_line_that_makes_them(
    spark: SparkSession, orders: MemoryStream
) -> None:
    stream = epochal.read_stream(spark).format(orders).load()
    deduplicated = stream.with_watermark("at", "1 second").drop_duplicates(["user", "at"])
    mistakes = {
        "nope": lambda: stream.select("nope"),
        "must be a boolean": lambda: stream.filter("amount + 1"),
        "no column 'nope'": lambda: stream.group_by("nope"),
        "must be a timestamp": lambda: stream.with_watermark("user", "1 second"),
        "duration with its unit": lambda: stream.with_watermark("at", "5"),
        "same columns": lambda: stream.union(stream.select("user")),
        "already cannot get another one": lambda: deduplicated.with_watermark("at", "2 seconds"),
        "needs with_watermark": lambda: stream.drop_duplicates_within_watermark(["user"]),
        "not an aggregate function": lambda: stream.group_by("user").agg(x=("median", "amount")),
        "append": lambda: stream.group_by("user").agg(x="count", output_mode="append"),
        "Output modes": lambda: stream.write_stream.output_mode("upsert"),
        "before .start()": lambda: stream.write_stream.start(),
        "There is no sink": lambda: stream.write_stream.format("parket").start(),
        "There is no source": lambda: epochal.read_stream(spark).format("kafk").load(),
    }
    said = {}
    for expected, mistake in mistakes.items():
        with pytest.raises(OptionError) as caught:
            mistake()  # type: ignore[no-untyped-call]
        said[expected] = str(caught.value)
    assert [key for key, text in said.items() if key not in text] == []
