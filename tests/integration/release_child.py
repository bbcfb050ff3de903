"""Runs one Kafka query of every kind with the committer under a released PySpark; prints JSON.

The process has that release first on its path, so this must not use newer features.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.waiting import eventually

from epochal.kafka import OffsetCommitter

WAIT_SECONDS = 60.0
RECORDS = 20


def shown(committer: OffsetCommitter, group: str) -> bool:
    """Whether the group has reached the end. A continuous query's first epochs may be empty."""
    held = [each.committed for (_, name), each in committer.stats().items() if name == group]
    return bool(held) and set(held[0].values()) == {RECORDS}


def is_done(query: StreamingQuery, committer: OffsetCommitter, group: str) -> bool:
    return not query.isActive or shown(committer, group)


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
    batches: dict[str, int] = {}
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
        group = f"{topic}-{kind}"
        eventually(partial(is_done, query, committer, group), f"all of {group}", pause=0.1)
        batches[kind] = -1 if query.lastProgress is None else query.lastProgress["batchId"]
        if kind == "micro-batch":
            query.awaitTermination(WAIT_SECONDS)  # it ends after its last batch
        query.stop()
    spark.stop()  # delivers the events that are still queued
    done = committer.close(30)
    sys.stdout.write(
        json.dumps(
            {
                "release": pyspark.__version__,
                "done": done,
                "errors": committer.errors,
                "problems": committer.problems(),
                "batches": batches,
                "commits": {group: each.commits for (_, group), each in committer.stats().items()},
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
