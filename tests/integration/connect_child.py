"""A Spark Connect client with its own server, which passes the groups to the committer."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from epochal.continuous.api.quiet_listener import QuietListener
from epochal.kafka import KafkaGroup, OffsetCommitter

WAIT_SECONDS = 60.0


class Ended(QuietListener):
    """Sets `known` once the query's last event has reached the listeners."""

    def __init__(self) -> None:
        self.known = threading.Event()

    def onQueryTerminated(self, event: Any) -> None:
        self.known.set()


def main(servers: str, jars: str, topic: str, group: str, home: str) -> None:
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    committer = OffsetCommitter([KafkaGroup(group, servers, query="told", source=0)])
    ended = Ended()
    spark.streams.addListener(committer)
    spark.streams.addListener(ended)
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
    ended.known.wait(WAIT_SECONDS)  # events arrive after the query has ended
    spark.streams.removeListener(committer)
    done = committer.close(30)
    told = {"done": done, "errors": committer.errors, "problems": committer.problems()}
    sys.stdout.write(json.dumps({**told, "session": type(spark).__module__}))
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
