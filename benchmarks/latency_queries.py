"""The queries of `benchmarks.latency_suite`, one per process, until killed.

    python -m benchmarks.latency_queries ENGINE WORK SERVERS INPUT OUTPUT HOME

Every engine runs the same DataFrame; only the writer and its trigger differ.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.kafka_load import STAMP_DIGITS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, count
from pyspark.sql.functions import max as newest

import epochal
from epochal.testing.kafka import connector_jars

LOOKUP_ROWS, MOST_BYTES = 10_000, 500 * 1024
PARTITIONS = 2
SLOTS = 2 * PARTITIONS
"""Real-time mode runs the tasks before and after a shuffle at the same time."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
REAL_TIME = {
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",  # it refuses version 1
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",
}
TRIGGERS = {"spark-real-time": "5 minutes", "spark-5s-real-time": "5 seconds"}
"""Spark's default interval between two checkpoints, and its shortest one."""


def session(engine: str) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{SLOTS}]")
    jars = {"spark.jars": ",".join(str(jar) for jar in connector_jars())}
    for key, value in {**SETTINGS, **jars, **(REAL_TIME if engine in TRIGGERS else {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def frame_of(spark: SparkSession, work: str, servers: str, source: str, home: Path) -> DataFrame:
    """The query. A value begins with the time at which it was due, and keeps it."""
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr(
            "CAST(CAST(key AS string) AS bigint) AS x",
            f"substring(CAST(value AS string), 1, {STAMP_DIGITS}) AS due",
            f"substring(CAST(value AS string), {STAMP_DIGITS + 1}, {MOST_BYTES}) AS payload",
        )
    )
    encoded = "base64(CAST(payload AS binary))"
    match work:
        case "stateless":
            return rows.selectExpr(f"concat(due, {encoded}) AS value")
        case "count":
            counts = rows.groupBy("payload").agg(count("*").alias("n"), newest("due").alias("due"))
            return counts.selectExpr(f"concat(due, {encoded}, CAST(n AS string)) AS value")
        case "join":
            joined = rows.join(broadcast(lookup(spark, home)), "x")
            return joined.selectExpr(f"concat(due, {encoded}, CAST(doubled AS string)) AS value")
    raise ValueError(work)


def lookup(spark: SparkSession, home: Path) -> DataFrame:
    """The static side of the join: 10,000 rows in a file."""
    place = str(home / "lookup")
    table = spark.range(LOOKUP_ROWS).selectExpr("id AS x", "id * 2 AS doubled")
    table.coalesce(1).write.parquet(place)
    return spark.read.parquet(place)


def start(engine: str, frame: DataFrame, servers: str, target: str, home: Path) -> Any:
    options = {
        "kafka.bootstrap.servers": servers,
        "topic": target,
        "checkpointLocation": str(home / "checkpoint"),
    }
    if engine.startswith("epochal-"):
        ours = epochal.write_stream(frame).format("kafka").outputMode("update").options(**options)
        ours = ours.option("delivery", engine.removeprefix("epochal-"))
        ours = ours.option("parallelism", PARTITIONS)
        return ours.trigger(epoch="100 milliseconds").start()
    writer = frame.writeStream.format("kafka").outputMode("update").options(**options)
    if engine in TRIGGERS:
        writer = writer.trigger(realTime=TRIGGERS[engine])
    return writer.start()


def main(engine: str, work: str, servers: str, source: str, target: str, home: str) -> None:
    place = Path(home)
    place.mkdir()
    frame = frame_of(session(engine), work, servers, source, place)
    query = start(engine, frame, servers, target, place)
    query.awaitTermination()
    raise SystemExit(f"{engine} ended: {query.exception()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
