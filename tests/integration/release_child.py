"""Run by a released PySpark: one Kafka query of every kind with the committer added; prints JSON.

The process has that release first on its path, so nothing here may use what only newer ones have.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from epochal.kafka import OffsetCommitter


def main(servers: str, jars: str, topic: str, home: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    committer = OffsetCommitter()
    spark.streams.addListener(committer)
    triggers: dict[str, dict[str, object]] = {
        "micro-batch": {"availableNow": True},
        "continuous": {"continuous": "200 milliseconds"},
    }
    for kind, trigger in triggers.items():
        query = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("kafka.consumer.commit.groupid", f"{topic}-{kind}")
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(Path(home, kind)))
            .trigger(**trigger)
            .start()
        )
        query.awaitTermination(8)
        query.stop()
    spark.stop()  # drains the events that are still under way
    done = committer.close(30)
    sys.stdout.write(
        json.dumps(
            {
                "release": pyspark.__version__,
                "done": done,
                "errors": committer.errors,
                "problems": committer.problems(),
                "commits": {group: each.commits for (_, group), each in committer.stats().items()},
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
