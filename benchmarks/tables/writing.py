"""A process that writes rows into a table as they fall due, until its input ends.

    python -m benchmarks.tables.writing epochal-delta|…|spark-delta PLACE CHECKPOINT RATE START_NS

The start is in nanoseconds since 1970. Spark runs in an environment of its own: no release of Delta
Lake for Spark supports the release that Epochal is built on.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.due_rows import DueDataSource, DueSource, Schedule
from benchmarks.tables.watching import CATALOG, TABLE, catalog_settings
from pyspark.sql import SparkSession

DELTA_FOR_SPARK = "io.delta:delta-spark_4.2_2.13:4.4.0"
PARTITIONS, KEYS = 2, 1_000
EPOCHS = {
    "epochal-delta": "250 milliseconds",
    "epochal-iceberg": "1 second",
    "epochal-postgres": "50 milliseconds",
}


def session(engine: str) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.pollingDelay", "1ms")
    )
    if engine == "spark-delta":
        catalog = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        extension = "io.delta.sql.DeltaSparkSessionExtension"
        builder = (
            builder.config("spark.jars.packages", DELTA_FOR_SPARK)
            .config("spark.sql.extensions", extension)
            .config("spark.sql.catalog.spark_catalog", catalog)
            .config("spark.databricks.delta.snapshotPartitions", "1")
        )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def spark_query(spark: SparkSession, schedule: Schedule, place: str, checkpoint: str) -> Any:
    spark.dataSource.register(DueDataSource)
    reader = spark.readStream.format("due").option("start", schedule.start_ns)
    reader = reader.option("rate", schedule.rate).option("keys", schedule.keys)
    frame = reader.option("partitions", schedule.partitions).load()
    writer = frame.writeStream.format("delta").option("checkpointLocation", checkpoint)
    return writer.start(place)


def epochal_query(
    spark: SparkSession, engine: str, schedule: Schedule, place: str, checkpoint: str
) -> Any:
    import epochal

    stream = epochal.read_stream(spark).format(DueSource(schedule)).load()
    writer = stream.write_stream.option("checkpointLocation", checkpoint)
    writer = writer.option("parallelism", PARTITIONS).trigger(epoch=EPOCHS[engine])
    match engine:
        case "epochal-delta":
            writer = writer.format("delta").option("path", place)
            writer = writer.option("compactInterval", "10 seconds")
        case "epochal-iceberg":
            writer = writer.format("iceberg").option("table", TABLE)
            for key, value in {"name": CATALOG, **catalog_settings(place)}.items():
                writer = writer.option(f"catalog.{key}", value)
            writer = writer.option("expireSnapshotsKeep", "20").option("compact", "true")
            writer = writer.option("maintenanceInterval", "10 seconds")
        case "epochal-postgres":
            writer = writer.format("postgres").option("url", place).option("dbtable", "bench")
    return writer.start()


def main(engine: str, place: str, checkpoint: str, rate: str, start_ns: str) -> None:
    schedule = Schedule(int(start_ns), int(rate) // PARTITIONS, KEYS, PARTITIONS)
    spark = session(engine)
    if engine == "spark-delta":
        query = spark_query(spark, schedule, place, checkpoint)
    else:
        query = epochal_query(spark, engine, schedule, place, checkpoint)
    sys.stdin.read()
    query.stop()
    failure = query.exception()
    if failure is not None:
        raise SystemExit(f"{engine} failed: {failure}")


if __name__ == "__main__":
    main(*sys.argv[1:])
