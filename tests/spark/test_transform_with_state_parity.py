"""Stateful operators give, batch by batch, what Spark's own give for the same batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from tests.spark import processors
from tests.spark.parity import ROCKSDB, Batch, File, Rows, replayed, spark_batches
from tests.spark.processors import OUTPUT, Both, Coercions, Ledger, Stopwatch
from tests.spark.sessions import local_session
from tests.unit.continuous.operators.driving import Driver, columns

from epochal.continuous.operators.processor.transform_with_state import TransformWithStateSpec

pytestmark = pytest.mark.timeout(400)

NUMBERS = columns(id=pa.string(), v=pa.int64())
EVENTS = columns(id=pa.string(), ts=pa.timestamp("us", tz="UTC"), v=pa.int64())
RESULT = columns(id=pa.string(), out=pa.string())
INITIAL = [("a", 100), ("b", 200), ("zz", 300)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    cloudpickle.register_pickle_by_value(processors)
    made = local_session().newSession()
    made.conf.set("spark.sql.session.timeZone", "UTC")
    made.conf.set("spark.sql.shuffle.partitions", "2")
    yield made
    cloudpickle.unregister_pickle_by_value(processors)


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    yield
    spark.conf.unset("spark.sql.streaming.stateStore.providerClass")


def numbers(seed: int, files: int = 7) -> list[File]:
    rng = random.Random(seed)
    return [
        [(rng.choice("abcd"), rng.randrange(40)) for _ in range(rng.randrange(1, 7))]
        for _ in range(files)
    ]


def second(number: float) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=number)


def events(seed: int, files: int = 7) -> list[File]:
    rng = random.Random(seed)
    return [
        [
            (rng.choice("abc"), second(max(1, 9 * place + rng.randrange(-22, 5))), rng.randrange(9))
            for _ in range(rng.randrange(2, 9))
        ]
        for place in range(files)
    ]


def run_processor(
    processor: Both, key: Sequence[str], mode: str, initial: bool = False
) -> Callable[[DataFrame], DataFrame]:
    def query(frame: DataFrame) -> DataFrame:
        grouped = frame.groupBy(*key)
        start = None
        if initial:
            made = frame.sparkSession.createDataFrame(INITIAL, "id string, start int")
            start = made.groupBy("id")
        if processor.pandas:
            return grouped.transformWithStateInPandas(processor, OUTPUT, "Update", mode, start)
        return grouped.transformWithState(processor, OUTPUT, "Update", mode, start)

    return query


def planned(processor: Both, schema: pa.Schema, mode: str, **options: Any) -> Driver:
    partitions = options.pop("partitions")
    return Driver(
        TransformWithStateSpec.plan(
            processor, ["id"], schema, RESULT, time_mode=mode, pandas=processor.pandas, **options
        ),
        partitions,
    )


def assert_same(batches: Sequence[Batch], got: Sequence[Rows], *, exact: bool = False) -> None:
    different = []
    for batch, rows in zip(batches, got, strict=True):
        ours, theirs = list(map(repr, rows)), list(map(repr, batch.output))
        if not exact:
            ours, theirs = sorted(ours), sorted(theirs)
        if ours != theirs:
            pairs = zip_longest(theirs, ours)
            different.append((batch.number, [pair for pair in pairs if pair[0] != pair[1]]))
    assert different == [], "\n".join(f"batch {n}: {pairs}" for n, pairs in different)
    assert any(batch.output for batch in batches)


@pytest.mark.parametrize(
    ("partitions", "pandas", "initial"),
    [(1, False, False), (1, True, True), (3, False, True), (3, True, False)],
)
def test_state_time_to_live_and_processing_timers(
    spark: SparkSession, rocksdb: None, tmp_path: Path, partitions: int, pandas: bool, initial: bool
) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    files = numbers(seed=1 + initial)
    processor = Ledger(pandas=pandas)
    query = run_processor(processor, ["id"], "ProcessingTime", initial)
    batches = spark_batches(spark, tmp_path, "id string, v bigint", files, query, idle_batches=5)
    table = pa.table({"id": [k for k, _ in INITIAL], "start": [n for _, n in INITIAL]})
    driver = planned(
        processor,
        NUMBERS,
        "ProcessingTime",
        initial_state=table.set_column(1, "start", table["start"].cast(pa.int32()))
        if initial
        else None,
        partitions=partitions,
    )
    got = replayed(driver, batches, NUMBERS)
    assert_same(batches, got, exact=partitions == 1)
    said = [row["out"] for each in got for row in each]
    assert any("fired" in each for each in said)
    expired = [each for each in said if "] False [" in each or "False, None" in each]
    assert expired, "nothing expired, so nothing was learnt about it"


@pytest.mark.parametrize(
    ("partitions", "pandas", "no_data"), [(1, False, True), (1, True, False), (3, False, False)]
)
def test_event_timers_and_late_rows(
    spark: SparkSession, rocksdb: None, tmp_path: Path, partitions: int, pandas: bool, no_data: bool
) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", str(no_data).lower())
    processor = Stopwatch(pandas=pandas)
    transformed = run_processor(processor, ["id"], "EventTime")
    files = events(seed=3)
    batches = spark_batches(
        spark,
        tmp_path,
        "id string, ts timestamp, v bigint",
        files,
        lambda frame: transformed(frame.withWatermark("ts", "10 seconds")),
    )
    spark.conf.unset("spark.sql.streaming.noDataMicroBatches.enabled")
    driver = planned(processor, EVENTS, "EventTime", event_time="ts", partitions=partitions)
    assert_same(batches, replayed(driver, batches, EVENTS), exact=partitions == 1)


@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
def test_values_that_do_not_fit_and_nested_ones(
    spark: SparkSession, rocksdb: None, tmp_path: Path, pandas: bool
) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    processor = Coercions(pandas=pandas)
    batches = spark_batches(
        spark,
        tmp_path,
        "id string, v bigint",
        [[("a", 1), (None, 2), ("b", None)]],
        run_processor(processor, ["id"], "None"),
    )
    driver = planned(processor, NUMBERS, "None", partitions=1)
    assert_same(batches, replayed(driver, batches, NUMBERS), exact=True)
