"""Jobs with the committer added, each in a process of its own.

    python -m tests.integration.committer_child JOB SERVERS JARS TOPIC GROUP HOME

JOB is `ends`, `connect` or `release`. The latter two print JSON. `release` runs with the PySpark
that is first on the path, so it must not use newer features.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.waiting import eventually

from epochal.kafka import KafkaGroup, OffsetCommitter

WAIT_SECONDS = 60.0
RECORDS = 20
TRIGGERS: dict[str, dict[str, object]] = {
    "micro-batch": {"availableNow": True},
    "continuous": {"continuous": "200 milliseconds"},
}


def session(builder: SparkSession.Builder, jars: str) -> SparkSession:
    return builder.config("spark.jars", jars).config("spark.ui.enabled", "false").getOrCreate()


def start(spark: SparkSession, options: dict[str, str], home: Path, **trigger: Any) -> Any:
    """Start a query over a topic from its beginning."""
    reader = spark.readStream.format("kafka").option("startingOffsets", "earliest")
    writer = reader.options(**options).load().writeStream.format("noop")
    return writer.option("checkpointLocation", str(home)).trigger(**trigger).start()


def ends(jars: str, options: dict[str, str], group: str, home: Path) -> None:
    """Run one `availableNow` query and end at once."""
    spark = session(SparkSession.builder.master("local[2]"), jars)
    spark.streams.addListener(OffsetCommitter())
    given = {**options, "kafka.consumer.commit.groupid": group}
    start(spark, given, home, availableNow=True).awaitTermination()


def connect(jars: str, options: dict[str, str], group: str, home: Path) -> None:
    """Run a query of a Spark Connect client with its own server; the group is told."""
    spark = session(SparkSession.builder.remote("local[2]"), jars)
    servers = options["kafka.bootstrap.servers"]
    committer = OffsetCommitter([KafkaGroup(group, servers, source=0)])
    spark.streams.addListener(committer)
    start(spark, options, home, availableNow=True).awaitTermination(WAIT_SECONDS)
    done = committer.flush(WAIT_SECONDS)
    spark.streams.removeListener(committer)
    committer.close()
    tell(committer, done=done, session=type(spark).__module__)
    spark.stop()


def shown(committer: OffsetCommitter, group: str) -> bool:
    """Whether the group has reached the end. A continuous query's first epochs may be empty."""
    held = [each.committed for (_, name), each in committer.stats().items() if name == group]
    return bool(held) and set(held[0].values()) == {RECORDS}


def is_done(query: StreamingQuery, committer: OffsetCommitter, group: str) -> bool:
    return not query.isActive or shown(committer, group)


def release(jars: str, options: dict[str, str], group: str, home: Path) -> None:
    """Run one query of every kind."""
    spark = session(SparkSession.builder.master("local[2]"), jars)
    spark.sparkContext.setLogLevel("ERROR")
    committer = OffsetCommitter()
    spark.streams.addListener(committer)
    for kind, trigger in TRIGGERS.items():
        name = f"{group}-{kind}"
        given = {**options, "kafka.consumer.commit.groupid": name}
        query = start(spark, given, home / kind, **trigger)
        eventually(partial(is_done, query, committer, name), f"all of {name}", pause=0.1)
        if kind == "micro-batch":
            query.awaitTermination(WAIT_SECONDS)  # it ends after its last batch
        query.stop()
    spark.stop()  # delivers the events that are still queued
    tell(committer, done=committer.close(30), release=pyspark.__version__)


def tell(committer: OffsetCommitter, **more: Any) -> None:
    told = {"errors": committer.errors, "problems": committer.problems(), **more}
    sys.stdout.write(f"\n{json.dumps(told)}\n")
    sys.stdout.flush()


def main(job: str, servers: str, jars: str, topic: str, group: str, home: str) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    {"ends": ends, "connect": connect, "release": release}[job](jars, options, group, Path(home))


if __name__ == "__main__":
    main(*sys.argv[1:])
