"""A job that runs one `availableNow` query and ends at once, with the committer added."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from epochal.kafka import OffsetCommitter


def main(servers: str, jars: str, topic: str, group: str, home: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.streams.addListener(OffsetCommitter())
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("kafka.consumer.commit.groupid", group)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", home)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
