"""Our side and Spark's side of `benchmarks.kafka`: one query per process, until killed.

    python -m benchmarks.kafka_engines ENGINE WORK SERVERS INPUT OUTPUT HOME
    python -m benchmarks.kafka_engines listener ROUNDS SERVERS INPUT GROUP HOME

The second compares batch times of a Spark query with and without our listener, and prints them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import epochal
import epochal.kafka
from epochal.cli.run_program import QuietListener
from epochal.testing.kafka import connector_jars

RECORDS = "key string, value string"
RECORDS_PER_BATCH = 5_000


class Count(StatefulProcessor):  # type: ignore[misc]
    """Counts records per key; one record out for every record in."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        count = self._count.get()[0] if self._count.exists() else 0
        for row in rows:
            count += 1
            yield Row(key=key[0], value=f"{row.value},{count}")
        self._count.update((count,))


def marked(value: Any) -> Any:
    return value + b"!"


def mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function that every engine calls for each record."""
    for batch in batches:
        values = [marked(value) for value in batch.column("value").to_pylist()]
        yield pa.RecordBatch.from_arrays(
            [batch.column("key"), pa.array(values, pa.binary())], names=["key", "value"]
        )


def session(cores: int) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{cores}]")
    state = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.jars": ",".join(str(jar) for jar in connector_jars()),
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.streaming.pollingDelay": "1ms",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": state,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def epochal_query(
    work: str, servers: str, source: str, target: str, home: str, delivery: str
) -> Any:
    cores = 2 if work == "state" else 1
    stream = (
        epochal.read_stream(session(cores))
        .format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    if work == "state":
        stream = stream.select("CAST(key AS string) AS key", "CAST(value AS string) AS value")
        stream = stream.transform_with_state(Count(), key=["key"], output=RECORDS)
    else:
        stream = stream.select("key", "value").map_in_arrow(mapped, "key binary, value binary")
    return (
        stream.write_stream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("delivery", delivery)
        .option("checkpointLocation", home)
        .option("parallelism", cores)
        .trigger(epoch="100 milliseconds")
        .start()
    )


def spark_query(engine: str, work: str, servers: str, source: str, target: str, home: str) -> Any:
    spark = session(2 if work == "state" else 1)
    frame = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    if engine == "spark-real-time":
        frame = frame.selectExpr("key", "value")  # its best case: no Python, no state
    elif work == "state":
        frame = frame.selectExpr("CAST(key AS string) AS key", "CAST(value AS string) AS value")
        frame = frame.groupBy("key").transformWithState(Count(), RECORDS, "Update", "None")
    else:
        frame = frame.select("key", "value").mapInArrow(mapped, "key binary, value binary")
    writer = (
        frame.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("checkpointLocation", home)
        .outputMode("update")
    )
    if engine == "spark-real-time":
        writer = writer.trigger(realTime="5 seconds")
    return writer.start()


def batch_ms(spark: SparkSession, servers: str, source: str, group: str, home: str) -> list[int]:
    """The duration of each batch of a query over a whole topic."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", RECORDS_PER_BATCH)
    )
    if group:
        reader = reader.option("kafka.consumer.commit.groupid", group)
    query = (
        reader.load()
        .writeStream.format("noop")
        .option("checkpointLocation", home)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [each.durationMs["triggerExecution"] for each in query.recentProgress]


def compare_listener(rounds: str, servers: str, source: str, group: str, home: str) -> None:
    """Compare batch times without a listener, with an idle one and with ours, in turns."""
    spark = session(2)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")
    inside: list[float] = []

    class Timed(epochal.kafka.OffsetCommitter):
        def onQueryProgress(self, event: Any) -> None:
            begin = time.perf_counter()
            super().onQueryProgress(event)
            inside.append(time.perf_counter() - begin)

    batch_ms(spark, servers, source, "", f"{home}/warm")
    times: dict[str, list[int]] = {"none": [], "idle": [], "ours": []}
    for number in range(int(rounds)):
        for mode, found in times.items():
            at = f"{home}/{number}-{mode}"
            if mode == "none":
                found += batch_ms(spark, servers, source, "", at)
                continue
            listener = Timed() if mode == "ours" else QuietListener()
            spark.streams.addListener(listener)
            found += batch_ms(spark, servers, source, f"{group}-{number}-{mode}", at)
            if isinstance(listener, Timed):
                listener.flush(10)
            spark.streams.removeListener(listener)
            if isinstance(listener, Timed):
                listener.close()
    none, idle, ours = (statistics.median(each) for each in times.values())
    callback_ms = statistics.median(inside) * 1000
    print(
        json.dumps(
            {
                "batches": len(times["ours"]),
                "batch_ms": none,
                "batch_ms_with_an_idle_listener": idle,
                "batch_ms_with_ours": ours,
                "percent_over_none": 100 * (ours - none) / none,
                "percent_over_idle": 100 * (ours - idle) / idle,
                "callback_ms": callback_ms,
                "callback_percent": 100 * callback_ms / none,
            }
        )
    )


def main(engine: str, *words: str) -> None:
    match engine:
        case "listener":
            compare_listener(*words)
            return
        case "epochal-exactly-once" | "epochal-at-least-once":
            work, servers, source, target, home = words
            delivery = engine.removeprefix("epochal-")
            query = epochal_query(work, servers, source, target, home, delivery)
            query.await_termination()
        case _:
            query = spark_query(engine, *words)
            query.awaitTermination()
    raise SystemExit(f"{engine} ended: {query.exception()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
