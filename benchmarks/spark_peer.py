"""Spark's side of the benchmarks: a session that answers requests, one JSON line each.

Run as a process of its own (`harness.SparkPeer` does), so that both sides can take turns: a round
of ours, a round of Spark's, in one session that has long been warm. Only times that Spark measured
itself, or that lie around one action, are answered.
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

PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
PLAIN_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""Writes the same files as the default, without a `chmod` process for each of them."""


LOG_SETTINGS = f"""
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %c{{1}}: %m%n
logger.provider.name = {PROVIDER}
logger.provider.level = debug
"""
"""The provider says only at this level how long a load took. Spark's own settings would hide it:
they add a filter to the console of a session that was started from Python."""


def session(**conf: str) -> SparkSession:
    """A local session on two cores."""
    builder = SparkSession.builder.master("local[2]")
    for name, value in {"spark.ui.enabled": "false", "spark.driver.memory": "6g", **conf}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def state_session() -> SparkSession:
    """One that reads and changes state of two partitions, and logs how long each load takes."""
    with tempfile.NamedTemporaryFile("w", suffix=".properties") as settings:
        settings.write(LOG_SETTINGS)
        settings.flush()
        return session(
            **{
                "spark.driver.maxResultSize": "4g",
                "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={settings.name}",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.streaming.stateStore.minDeltasForSnapshot": "1",
            }
        )


def add_rows(spark: SparkSession, target: str, count: int) -> None:
    """Another input file, with the first `count` keys."""
    key = F.format_string("key-%08d", "id")
    rows = spark.range(count).select(key.alias("k"), F.col("id").alias("v"))
    rows.coalesce(1).write.mode("append").parquet(f"{target}/in")


def run_query(spark: SparkSession, target: str) -> dict[str, Any]:
    """Process what is new, and return what the query's progress says of its state operator."""
    query = (
        spark.readStream.schema("k string, v long")
        .parquet(f"{target}/in")
        .groupBy("k")
        .agg(F.count("*"), F.sum("v"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", f"{target}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = [json.loads(each.json) for each in query.recentProgress if each.numInputRows]
    operator: dict[str, Any] = progress[-1]["stateOperators"][0]
    return operator


def timed_read(spark: SparkSession, checkpoint: str, *, to_arrow: bool) -> float:
    """Read state to Arrow, or only count it, which loads every partition and looks at each row."""
    start = time.perf_counter()
    frame: DataFrame = spark.read.format("statestore").load(checkpoint)
    _ = frame.toArrow() if to_arrow else frame.count()
    return time.perf_counter() - start


def make_many_batches(target: str, batches: int, partitions: int) -> None:
    """A checkpoint of many batches and partitions; goes on with one that is not yet complete."""
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
            add_rows(spark, target, count)
            return run_query(spark, target)
        case ["arrow", str(checkpoint)]:
            return timed_read(spark, checkpoint, to_arrow=True)
        case ["count", str(checkpoint)]:
            return timed_read(spark, checkpoint, to_arrow=False)
    raise ValueError(f"not a request: {request}")


def main() -> None:
    match sys.argv[1:]:
        case ["batches", target, batches, partitions]:
            make_many_batches(target, int(batches), int(partitions))
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
