"""A Spark Connect client with its own server, which passes the groups to the committer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from epochal.kafka import KafkaGroup, OffsetCommitter

WAIT_SECONDS = 60.0


def main(servers: str, jars: str, topic: str, group: str, home: str) -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    committer = OffsetCommitter([KafkaGroup(group, servers, query="told", source=0)])
    spark.streams.addListener(committer)
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("noop")
        .queryName("told")
        .option("checkpointLocation", str(Path(home, "told")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(WAIT_SECONDS)
    done = committer.flush(WAIT_SECONDS)
    spark.streams.removeListener(committer)
    committer.close()
    told = {"done": done, "errors": committer.errors, "problems": committer.problems()}
    sys.stdout.write(json.dumps({**told, "session": type(spark).__module__}))
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
