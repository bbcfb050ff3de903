"""Compares the continuous engine with Spark's own: latency at fixed rates, and the maximum rate.

Every run is a separate process with its own Spark (`local[2]`); engines take turns. `python -m
benchmarks.continuous` runs all. With arguments it is one such process and prints one JSON line.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from benchmarks.due_rows import (
    DDL,
    SECOND,
    DueDataSource,
    DueSource,
    NotingSink,
    Schedule,
    read_notes,
)
from benchmarks.harness import Report, arguments, child_environment
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import epochal

ROUNDS = 2
START_SECONDS, WARM_UP_SECONDS, MEASURED_SECONDS = 120, 5, 12
LEAD_SECONDS = 15
"""Rows fall due when every engine is up: what starting piles up is no part of the latency."""
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where delays are noted: on a disk that is being synced, noting them would be what takes time."""
KEYS = 1_000
STATE = "key bigint, n bigint, due bigint"


class RunningCount(StatefulProcessor):  # type: ignore[misc]
    """Counts rows per key; one row out for every row in."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count = self._count.get()[0] if self._count.exists() else 0
        for row in rows:
            count += 1
            yield Row(key=key[0], n=count, due=row.due)
        self._count.update((count,))


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.set_column(1, "value", pc.multiply(batch.column("value"), 2))


def epochal_query(spark: SparkSession, schedule: Schedule, work: str, notes: str, at: str) -> Any:
    stream = epochal.read_stream(spark).format(DueSource(schedule)).load()
    match work:
        case "map":
            stream = stream.map_in_arrow(doubled, DDL)
        case "state":
            stream = stream.transform_with_state(RunningCount(), key=["key"], output=STATE)
        case "aggregate":
            stream = stream.group_by("key").agg(n="count", due=("max", "due"))
    writer = stream.write_stream.format(NotingSink(notes)).output_mode("update")
    return (
        writer.option("checkpointLocation", at)
        .option("parallelism", 2)
        .trigger(epoch="100 milliseconds")
        .start()
    )


def micro_batch_query(
    spark: SparkSession, schedule: Schedule, work: str, notes: str, at: str
) -> Any:
    spark.dataSource.register(DueDataSource)
    reader = spark.readStream.format("due").option("batch", 1_500_000)
    for key, value in (
        ("start", schedule.start_ns),
        ("rate", schedule.rate),
        ("keys", schedule.keys),
        ("partitions", schedule.partitions),
    ):
        reader = reader.option(key, str(value))
    frame = reader.load()
    match work:
        case "map":
            frame = frame.mapInArrow(doubled, DDL)
        case "state":
            frame = frame.groupBy("key").transformWithState(RunningCount(), STATE, "Append", "None")
    writer = frame.writeStream.format("due").option("directory", notes)
    return writer.outputMode("append").option("checkpointLocation", at).start()


def jvm_continuous_query(
    spark: SparkSession, schedule: Schedule, work: str, notes: str, at: str
) -> Any:
    """Spark's own continuous trigger on its rate source: no Python, the time read in the JVM."""
    rate = schedule.rate * schedule.partitions
    frame = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", rate)
        .option("numPartitions", schedule.partitions)
        .load()
        .selectExpr("timestamp", "reflect('java.time.Instant', 'now') AS seen")
    )
    return (
        frame.writeStream.format("memory")
        .queryName("seen")
        .outputMode("append")
        .option("checkpointLocation", at)
        .trigger(continuous="100 milliseconds")
        .start()
    )


QUERIES: dict[str, Callable[..., Any]] = {
    "epochal": epochal_query,
    "micro-batch": micro_batch_query,
    "jvm-continuous": jvm_continuous_query,
}


def session() -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.pollingDelay", "1ms")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run_one(engine: str, work: str, rate: int) -> dict[str, Any]:
    """Run one engine at one rate; rate 0 means as fast as possible."""
    if engine == "real-time":
        return _real_time(rate)
    with tempfile.TemporaryDirectory() as base, tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        notes = Path(memory)
        spark = session()
        schedule = Schedule(time.time_ns() + LEAD_SECONDS * SECOND, rate // 2, KEYS, 2)
        query = QUERIES[engine](spark, schedule, work, str(notes), f"{base}/checkpoint")
        if engine == "jvm-continuous":
            time.sleep(WARM_UP_SECONDS + MEASURED_SECONDS)
            query.stop()  # its tasks hold every slot, and reading the table needs one slot
            result = _jvm_delays(spark)
        else:
            _wait_for_rows(str(notes))
            time.sleep(WARM_UP_SECONDS + MEASURED_SECONDS)
            # Rows of the last second may still be in flight, so they are never counted.
            end_ns = time.time_ns() - SECOND
            time.sleep(1)
            query.stop()
            result = _measured(read_notes(str(notes)), schedule, end_ns)
        failure = query.exception()
        if failure is not None:
            raise SystemExit(f"{engine} failed: {failure}")
        return result


def _real_time(rate: int) -> dict[str, Any]:
    from benchmarks.real_time import delays_ms

    with tempfile.TemporaryDirectory() as base:
        delays = delays_ms(rate, WARM_UP_SECONDS, MEASURED_SECONDS, f"{base}/checkpoint")
        return _percentiles(delays)


def _wait_for_rows(notes: str) -> None:
    """Wait for the first rows, because the time to start is not part of the latency."""
    deadline = time.monotonic() + START_SECONDS
    while not any(each.stat().st_size for each in Path(notes).glob("*.notes")):
        if time.monotonic() > deadline:
            raise SystemExit(f"No row came out within {START_SECONDS} s.")
        time.sleep(0.1)


def _measured(notes: Any, schedule: Schedule, end_ns: int) -> dict[str, Any]:
    begin_ns = end_ns - (MEASURED_SECONDS - 1) * SECOND
    kept = notes[(notes[:, 0] >= begin_ns) & (notes[:, 0] < end_ns)]
    if not schedule.rate:
        return {"rows_per_second": float(kept[:, 1].sum() / (MEASURED_SECONDS - 1))}
    return _percentiles(kept[:, 1] / 1e6)


def _jvm_delays(spark: SparkSession) -> dict[str, Any]:
    """Delays from the timestamps of the rows, which Spark's rate source rounds to milliseconds."""
    rows = spark.table("seen").selectExpr(
        "unix_micros(timestamp) AS due", "unix_micros(CAST(seen AS timestamp)) AS seen"
    )
    table = rows.toArrow()
    due, seen = (table.column(name).to_numpy() for name in ("due", "seen"))
    last = due.max()
    kept = (due >= last - MEASURED_SECONDS * 1_000_000) & (due < last)
    return _percentiles((seen - due)[kept] / 1e3)


def _percentiles(delays_ms: Any) -> dict[str, Any]:
    if not len(delays_ms):
        return {"rows": 0}
    p50, p99, p999 = np.percentile(delays_ms, [50, 99, 99.9])
    return {"rows": len(delays_ms), "p50_ms": p50, "p99_ms": p99, "p99.9_ms": p999}


def in_process(engine: str, work: str, rate: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.continuous", engine, work, str(rate)]
    run = subprocess.run(command, capture_output=True, text=True, env=child_environment())
    if run.returncode:
        return {"failed": run.stderr[-400:]}
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


LATENCY = [
    ("map", 1_000, ("epochal", "jvm-continuous", "real-time", "micro-batch")),
    ("map", 50, ("epochal", "real-time")),
    ("state", 1_000, ("epochal", "micro-batch")),
    ("state", 50_000, ("epochal", "micro-batch")),
    ("aggregate", 50_000, ("epochal",)),
]


def main() -> None:
    """Print a line after each run, so that an interrupted benchmark keeps its earlier results."""
    asked = arguments("continuous").parse_args()
    report = Report("continuous", busy=asked.busy, quick=asked.quick)
    rounds, latency = (1, LATENCY[:1]) if asked.quick else (ROUNDS, LATENCY)
    for number, (work, rate, engines) in product(range(rounds), latency):
        ours: dict[str, Any] = {}
        for engine in engines:
            values = in_process(engine, work, rate)
            ours = ours or values
            ratio = {}
            if engine != "epochal" and values.get("rows") and ours.get("rows"):
                ratio = {"p50_ratio": values["p50_ms"] / ours["p50_ms"]}
            report.row(f"{work} at {rate} rows/s: {engine}", round=number, **values, **ratio)
    for number in range(rounds):
        found = {engine: in_process(engine, "map", 0) for engine in ("epochal", "micro-batch")}
        rows = {engine: each.get("rows_per_second", 0.0) for engine, each in found.items()}
        faster = rows["epochal"] / rows["micro-batch"] if rows["micro-batch"] else 0.0
        report.row("map flat out, rows/s", round=number, ratio=faster, **rows)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        name, work, rate = sys.argv[1:]
        print(json.dumps(run_one(name, work, int(rate))))
    else:
        main()
