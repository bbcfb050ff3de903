"""An epoch of an aggregation emits and stores what a micro-batch of Spark's emits and stores."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.frames.test_aggregates import PARTITIONS, ours, stored_by_spark
from tests.spark.parity import File, Rows, replayed, spark_batches
from tests.spark.sessions import session_with
from tests.unit.continuous.operators.driving import Driver, columns

from epochal.checkpoint.operator_metadata import read_operator
from epochal.continuous.operators.aggregation.aggregate import AggregateSpec
from epochal.continuous.operators.aggregation.calls import AggregateCall
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.windows import AssignWindowsSpec, tumbling
from epochal.files import open_files
from epochal.state.files.schema_file import parse_schema_file

pytestmark = pytest.mark.timeout(400)

INSTANT = pa.timestamp("us", tz="UTC")
EVENTS = columns(id=pa.string(), ts=INSTANT, v=pa.int64())
BOUNDS = pa.struct([("start", INSTANT), ("end", INSTANT)])
CALLS = (
    AggregateCall("Count", (), "n", pa.int64()),
    AggregateCall("Sum", ("v",), "total", pa.int64()),
    AggregateCall("Average", ("v",), "mean", pa.float64(), filter="big"),
    AggregateCall("First", ("v",), "first", pa.int64()),
)
WINDOWED = columns(id=pa.string(), v=pa.int64(), big=pa.bool_(), window=BOUNDS)
IN_SESSIONS = columns(id=pa.string(), v=pa.int64(), big=pa.bool_(), session_window=BOUNDS)


def spark_aggregates() -> list[Any]:
    return [
        F.count(F.lit(1)).alias("n"),
        F.sum("v").alias("total"),
        F.expr("avg(v) FILTER (WHERE v > 3)").alias("mean"),
        F.first("v").alias("first"),
    ]


@dataclass(frozen=True)
class Query:
    """A query in Spark, what it computes before it aggregates, and the operator."""

    run: Callable[[DataFrame], DataFrame]
    mode: str
    before: Callable[[pa.RecordBatch], pa.RecordBatch]
    spec: AggregateSpec


def gap_of(v: Any) -> timedelta:
    return timedelta(seconds=2 if v is not None and v < 4 else 5)


def with_sessions(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = [row for row in batch.to_pylist() if row["ts"] is not None]
    made = [
        {
            "id": row["id"],
            "v": row["v"],
            "big": None if row["v"] is None else row["v"] > 3,
            "session_window": {"start": row["ts"], "end": row["ts"] + gap_of(row["v"])},
        }
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(made, schema=IN_SESSIONS)


def with_windows(batch: pa.RecordBatch) -> pa.RecordBatch:
    operator = AssignWindowsSpec(tumbling("ts", "4 seconds")).open()
    made = [
        row for part in operator.process(batch, Moment(0, -1, 0, -1)) for row in part.to_pylist()
    ]
    rows = [{**row, "big": None if row["v"] is None else row["v"] > 3} for row in made]
    return pa.RecordBatch.from_pylist(rows, schema=WINDOWED)


def large(batch: pa.RecordBatch) -> pa.RecordBatch:
    rows = [row for row in batch.to_pylist() if row["v"] is not None and row["v"] > 100]
    return pa.RecordBatch.from_pylist(rows, schema=EVENTS)


def sessions(frame: DataFrame) -> DataFrame:
    gap = F.when(F.col("v") < 4, "2 seconds").otherwise("5 seconds")
    timed = frame.withWatermark("ts", "10 seconds")
    return timed.groupBy("id", F.session_window("ts", gap)).agg(*spark_aggregates())


def windows(frame: DataFrame) -> DataFrame:
    timed = frame.withWatermark("ts", "10 seconds")
    return timed.groupBy(F.window("ts", "4 seconds").alias("window"), "id").agg(*spark_aggregates())


def distinct(frame: DataFrame) -> DataFrame:
    frame.createOrReplaceTempView("events_of_ids")
    return frame.sparkSession.sql("SELECT DISTINCT id, v FROM events_of_ids")


def over_windows(mode: str) -> Query:
    spec = AggregateSpec(
        ("window", "id"), CALLS, WINDOWED, mode, event_time="window", per_epoch=True
    )
    return Query(windows, mode, with_windows, spec)


def over_sessions(mode: str) -> Query:
    name = "session_window"
    spec = AggregateSpec(("id", name), CALLS, IN_SESSIONS, mode, name, name, per_epoch=True)
    return Query(sessions, mode, with_sessions, spec)


QUERIES = {
    "sessions-append": over_sessions("append"),
    "sessions-complete": over_sessions("complete"),
    "windows-update": over_windows("update"),
    "windows-append": over_windows("append"),
    "windows-complete": over_windows("complete"),
    "distinct-update": Query(
        distinct,
        "update",
        lambda batch: batch,
        AggregateSpec(("id", "v"), (), EVENTS, "update", per_epoch=True),
    ),
    **{
        f"global-{mode}": Query(
            lambda frame: frame.where("v > 100").groupBy().agg(*spark_aggregates()[:2]),
            mode,
            large,
            AggregateSpec((), CALLS[:2], EVENTS, mode, per_epoch=True),
        )
        for mode in ("update", "complete")
    },
}


class Projecting(Driver):
    """A driver that computes columns first, as the plan does before the exchange."""

    def __init__(self, query: Query) -> None:
        self.before = query.before
        super().__init__(query.spec, PARTITIONS)

    def turn(self, batch: pa.RecordBatch | None, *rest: Any, **times: Any) -> Any:
        return super().turn(None if batch is None else self.before(batch), *rest, **times)


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    partitions = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
    return session_with({"spark.sql.session.timeZone": "UTC", **partitions})


@pytest.mark.parametrize("name", QUERIES)
def test_an_epoch_emits_and_stores_what_a_batch_of_spark_does(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    query = QUERIES[name]
    schema = "id string, ts timestamp, v bigint"
    batches = spark_batches(spark, tmp_path, schema, events(), query.run, mode=query.mode)
    driver = Projecting(query)
    got = replayed(driver, batches, EVENTS)
    if name == "global-update":
        # Spark emits the same row again in batches without input.
        assert [rows[-1:] for rows in (batches[0].output, got[0])] == [got[0], got[0]]
        assert last_rows([b.output for b in batches]) == last_rows(got)
    else:
        wanted = [sorted(map(repr, batch.output)) for batch in batches]
        assert [sorted(map(repr, local(rows))) for rows in got] == wanted
    checkpoint = tmp_path / "checkpoint"
    (store,) = query.spec.stores
    (family,) = parse_schema_file((checkpoint / "state/0/0/_metadata/schema").read_bytes())
    assert shapes(store.key) == shapes(family.key)
    assert shapes(store.value) == shapes(family.value)
    assert ours(driver) == stored_by_spark(checkpoint, family, batches[-1].number + 1)
    operator = read_operator(open_files(str(checkpoint)), 0)
    assert operator is not None
    assert operator.operator_name == query.spec.name
    assert [each.num_cols_prefix_key for each in operator.stores] == [store.prefix_columns]


def events() -> list[File]:
    rng = random.Random(23)
    files: list[File] = [[("a", second(1), 1), ("b", second(1), 2)]]
    for place in range(1, 6):
        rows: File = [
            (
                rng.choice(["a", "b", "c", None]),
                second(max(1, 7 * place + rng.randrange(-24, 5))),
                rng.choice([None, *range(9)]),
            )
            for _ in range(rng.randrange(6, 20))
        ]
        if place == 2:  # a short gap within a longer one, which keeps the session open
            rows += [("z", second(15), 8), ("z", second(16), 1), ("z", second(19), 1)]
        if place >= 4:
            rows.append(("late", second(1), 1))
        if place in (3, 5):
            rows.append(("big", second(7 * place), 100 + place))
        files.append(rows)
    return files


def second(number: float) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=number)


def shapes(schema: Any) -> list[Any]:
    """Names and types. The metadata of Spark's fields tells of watermarks and windows."""
    return [(each.name, each.data_type, each.nullable) for each in schema.fields]


def last_rows(batches: list[Rows]) -> Rows:
    return [rows for rows in batches if rows][-1]


def local(rows: Rows) -> Rows:
    """Timestamps without a zone, as `collect` gives them in a session of UTC."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        return value.replace(tzinfo=None) if isinstance(value, datetime) else value

    return [plain(row) for row in rows]
