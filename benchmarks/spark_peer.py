"""Spark's side of the benchmarks: a session that answers requests, one JSON line each.

`harness.SparkPeer` runs it as a separate process, so that both sides can take turns, with Spark in
one warm session. It returns only times that Spark itself measured, or that cover a single action.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

STATE_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
PLAIN_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Writes the same files as the default class, but without a `chmod` process for each of them."""


PARTITIONS = 2
SNAPSHOT_SECONDS = 120

LOG_SETTINGS = f"""
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %m%n
logger.state.name = {STATE_PACKAGE}
logger.state.level = debug
"""
"""Only at this level does a provider log how long its load took. The level is set for the package,
because the name of a provider's logger is its class followed by its whole id."""


def session(**conf: str) -> SparkSession:
    """Start a local session on two cores."""
    builder = SparkSession.builder.master("local[2]")
    common = {
        "spark.driver.memory": "6g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in {**common, **conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def state_session() -> SparkSession:
    """Start a session with two state partitions that logs how long each load takes."""
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as settings:
        settings.write(LOG_SETTINGS)
        settings.flush()
        return session(
            **{
                "spark.driver.maxResultSize": "4g",
                "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={settings.name}",
                "spark.sql.shuffle.partitions": str(PARTITIONS),
            }
        )


def add_rows(spark: SparkSession, target: str, count: int) -> None:
    """Add an input file with the first `count` keys."""
    key = F.format_string("key-%08d", "id")
    rows = spark.range(count).select(key.alias("k"), F.col("id").alias("v"))
    rows.coalesce(1).write.mode("append").parquet(f"{target}/in")


def sums(spark: SparkSession, target: str) -> Any:
    """Start the query that makes the state: a count and a sum per key."""
    return (
        spark.readStream.schema("k string, v long")
        .parquet(f"{target}/in")
        .groupBy("k")
        .agg(F.count("*"), F.sum("v"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", f"{target}/checkpoint")
    )


def make_state(target: str, keys: int) -> None:
    """Run a batch with every key and one that changes a tenth; wait for all snapshots."""
    spark = session(
        **{
            "spark.sql.shuffle.partitions": str(PARTITIONS),
            "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
        }
    )
    add_rows(spark, target, keys)
    query = sums(spark, target).start()
    query.processAllAvailable()
    add_rows(spark, target, keys // 10)
    query.processAllAvailable()
    snapshots = [f"{target}/checkpoint/state/0/{n}/2.snapshot" for n in range(PARTITIONS)]
    deadline = time.monotonic() + SNAPSHOT_SECONDS
    while not all(map(os.path.exists, snapshots)):
        if time.monotonic() > deadline:
            raise SystemExit(f"Spark wrote no snapshots within {SNAPSHOT_SECONDS} seconds")
        time.sleep(0.2)
    query.stop()


def change_state(spark: SparkSession, target: str, count: int) -> dict[str, Any]:
    """Continue the query; return the state operator's metrics from its progress."""
    add_rows(spark, target, count)
    query = sums(spark, target).trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [json.loads(each.json) for each in query.recentProgress if each.numInputRows]
    operator: dict[str, Any] = progress[-1]["stateOperators"][0]
    return operator


def timed_read(spark: SparkSession, checkpoint: str, *, to_arrow: bool) -> float:
    """Read state to Arrow, or count it, which loads every partition and visits every row."""
    start = time.perf_counter()
    frame: DataFrame = spark.read.format("statestore").load(checkpoint)
    _ = frame.toArrow() if to_arrow else frame.count()
    return time.perf_counter() - start


def make_many_batches(target: str, batches: int, partitions: int) -> None:
    """Create a checkpoint of many batches and partitions; continue one that is incomplete."""
    spark = session(
        **{
            "spark.sql.shuffle.partitions": str(partitions),
            "spark.sql.streaming.checkpointFileManagerClass": PLAIN_FILES,
        }
    )
    os.makedirs(f"{target}/in", exist_ok=True)
    for n in range(batches):
        with open(f"{target}/in/{n:04}.json", "w") as out:
            out.writelines(
                json.dumps({"k": f"key-{(n * 37 + k) % 1000}", "v": k}) + "\n" for k in range(400)
            )
    query = (
        spark.readStream.schema("k string, v long")
        .option("maxFilesPerTrigger", "1")
        .json(f"{target}/in")
        .groupBy("k")
        .agg(F.count("*"), F.sum("v"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", f"{target}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def answer(spark: SparkSession, request: list[Any]) -> Any:
    match request:
        case ["change", str(target), int(count)]:
            return change_state(spark, target, count)
        case ["arrow", str(checkpoint)]:
            return timed_read(spark, checkpoint, to_arrow=True)
        case ["count", str(checkpoint)]:
            return timed_read(spark, checkpoint, to_arrow=False)
    raise ValueError(f"not a request: {request}")


def main() -> None:
    match sys.argv[1:]:
        case ["batches", target, batches, partitions]:
            make_many_batches(target, int(batches), int(partitions))
        case ["state", target, keys]:
            make_state(target, int(keys))
        case ["metadata", checkpoint]:
            rows = session().read.format("state-metadata").load(checkpoint).collect()
            assert rows, "state-metadata is empty"
        case ["arrow", checkpoint]:
            timed_read(session(), checkpoint, to_arrow=True)
        case ["serve"]:
            spark = state_session()
            for line in sys.stdin:
                print(json.dumps(answer(spark, json.loads(line))), flush=True)
        case words:
            raise SystemExit(f"not a task: {words}")


if __name__ == "__main__":
    main()
