"""Nexmark on Epochal (`python -m benchmarks.nexmark.spark_engines epochal`) or on micro-batches.

Both run the same DataFrames in sessions with the same settings. For throughput both read files of
numbers and compute events from them. For latency Epochal reads Spark's rate source, row by row;
Spark reads one that gives rows when they are due, because its rate source does so once a second.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.continuous import MEMORY, session
from benchmarks.due_rows import SECOND, DueDataSource
from benchmarks.harness import cache_directory, cpu_seconds
from benchmarks.nexmark.functions import FUNCTIONS
from benchmarks.nexmark.serving import RATE, Delays, Request, latency, serve, throughput
from benchmarks.nexmark.suite import BEGIN, SETTINGS, register_views
from benchmarks.nexmark.texts import EVENTS_PER_MS, generator, python_texts, queries, timed
from pyspark.sql import DataFrame, SparkSession

import epochal

FILES, ROWS = 64, 500_000
PARTITIONS = 2
NOTE, NOTE_BYTES = "<qq", 16


class NoteTaker:
    """A sink for `foreach`: records when each result was due and when it arrived, in us."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def open(self, partition: int, epoch: int) -> bool:
        name = f"{partition}-{epoch}-{os.getpid()}-{time.time_ns()}"
        self._file = (Path(self._directory) / name).open("wb")
        return True

    def process(self, row: Any) -> None:
        self._file.write(struct.pack(NOTE, row["due_us"], time.time_ns() // 1000))

    def close(self, error: Exception | None) -> None:
        self._file.close()


def read_notes(directory: str) -> Delays:
    """What was recorded so far: (due, delay) in seconds."""
    found = []
    for path in Path(directory).iterdir():
        raw = path.read_bytes()
        whole = raw[: len(raw) // NOTE_BYTES * NOTE_BYTES]
        found += [(due / 1e6, (seen - due) / 1e6) for due, seen in struct.iter_unpack(NOTE, whole)]
    return found


def number_files() -> Path:
    """Files with the numbers and times of events, made once."""
    home = cache_directory() / f"nexmark-{FILES}-{ROWS}-{EVENTS_PER_MS}"
    if not home.exists():
        making = home.with_name(f"{home.name}.{os.getpid()}")
        making.mkdir()
        begin_us = int(BEGIN.timestamp()) * 1_000_000
        for file in range(FILES):
            values = np.arange(file * ROWS, (file + 1) * ROWS, dtype=np.int64)
            stamps = pa.array(begin_us + values // EVENTS_PER_MS * 1000)
            times = stamps.cast(pa.timestamp("us", tz="UTC"))
            rows = pa.table({"value": values, "ts": times})
            pq.write_table(rows, making / f"{file:04}.parquet", compression="none")
        making.rename(home)
    return home


def files_of_numbers(spark: SparkSession, engine: str) -> DataFrame:
    reader = spark.readStream.schema("value BIGINT, ts TIMESTAMP")
    if engine != "epochal":  # whose epochs end by the clock; a bound would end them by files
        reader = reader.option("maxFilesPerTrigger", 1)
    return reader.parquet(str(number_files()))


def numbers_when_due(spark: SparkSession, engine: str) -> DataFrame:
    if engine == "epochal":
        source = spark.readStream.format("rate").option("rowsPerSecond", RATE)
        return (
            source.option("numPartitions", PARTITIONS).load().withColumnRenamed("timestamp", "ts")
        )
    spark.dataSource.register(DueDataSource)
    source = spark.readStream.format("due").option("start", time.time_ns() + SECOND)
    source = source.option("rate", RATE // PARTITIONS).option("partitions", PARTITIONS)
    frame = source.option("keys", 1).load()
    return frame.selectExpr("value", "timestamp_micros(due div 1000) AS ts")


def frame_of(spark: SparkSession, request: Request, numbers: DataFrame) -> DataFrame:
    numbers.createOrReplaceTempView("numbers")
    register_views(spark, spark.sql(generator("numbers")))
    query = next(each for each in queries() if each.number == request.number)
    text = python_texts()[query.number] if request.python else query.spark
    if request.kind == "throughput":
        return spark.sql(text)
    return spark.sql(f"SELECT *, unix_micros(due) AS due_us FROM ({timed(text)})")


def rows_done(query: Any, engine: str) -> Callable[[], int]:
    """A function that returns how many events a query has processed and committed."""
    reports: dict[int, int] = {}

    def read_by_epochal() -> int:
        # The parts of a query that read the same source read its rows once.
        for report in query.recent_progress:
            reports[report["batchId"]] = report["sources"][0]["numInputRows"]
        return sum(reports.values())

    def read_by_spark() -> int:
        last = query.lastProgress
        return 0 if last is None else (last["batchId"] + 1) * ROWS

    return read_by_epochal if engine == "epochal" else read_by_spark


def measure(spark: SparkSession, engine: str, request: Request, _: Path) -> dict[str, Any]:
    asked = next(each for each in queries() if each.number == request.number)
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory(dir=MEMORY) as notes:
        flat_out = request.kind == "throughput"
        source = files_of_numbers if flat_out else numbers_when_due
        numbers = source(spark, engine)
        frame = frame_of(spark, request, numbers)
        writer = epochal.write_stream(frame) if engine == "epochal" else frame.writeStream
        writer = writer.outputMode(asked.mode).option("checkpointLocation", f"{base}/checkpoint")
        if engine == "epochal":
            writer = writer.option("parallelism", PARTITIONS).option("progressInterval", "100 ms")
        writer = writer.format("noop") if flat_out else writer.foreach(NoteTaker(notes))
        query = writer.start()
        try:
            if flat_out:
                found = throughput(
                    request, rows_done(query, engine), partial(cpu_seconds, os.getpid())
                )
            else:
                found = latency(request, partial(read_notes, notes))
        finally:
            query.stop()
        failure = query.exception()
        return {"failed": str(failure)[:600]} if failure is not None else found


def main(engine: str) -> None:
    number_files()
    spark = session()
    for setting, value in {**SETTINGS, "spark.sql.session.timeZone": "UTC"}.items():
        spark.conf.set(setting, value)
    for name, (function, kind) in FUNCTIONS.items():
        spark.udf.register(name, function, kind)
    serve(partial(measure, spark, engine))


if __name__ == "__main__":
    main(sys.argv[1])
