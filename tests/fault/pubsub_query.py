"""A driver program that reads Pub/Sub into files and restarts its query when it fails.

    python -m tests.fault.pubsub_query MASTER CHECKPOINT OUT NAME=VALUE...

Options are passed to the source, those that start with `spark.` to the session. SIGTERM ends it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from tests.spark.sessions import session

import epochal

logger = logging.getLogger("tests.fault.pubsub_query")


def failing(partitions: str) -> Any:
    """Return a function that fails the first attempt of some partitions after a few rows."""
    doomed = {int(each) for each in partitions.split(",") if each}

    @udf("boolean")  # type: ignore[untyped-decorator]
    def passes(_: str) -> bool:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() in doomed and context.attemptNumber() == 0:
            raise RuntimeError("this attempt is doomed")
        return True

    return passes


def start(spark: SparkSession, checkpoint: str, out: str, options: dict[str, str]) -> Any:
    doomed = options.pop("test.doomed", "")
    frame = spark.readStream.format("pubsub").options(**options).load()
    if doomed:
        frame = frame.where(failing(doomed)("message_id"))
    return (
        frame.select("message_id", "data")
        .writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .start()
    )


def main(master: str, checkpoint: str, out: str, *given: str) -> None:
    logging.basicConfig(level=logging.INFO)
    pairs = dict(each.split("=", 1) for each in given)
    conf = {key: pairs.pop(key) for key in list(pairs) if key.startswith("spark.")}
    spark = session(master, **{key.replace(".", "__"): text for key, text in conf.items()})
    epochal.register(spark)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    parent = os.getppid()
    while not stopping.is_set():
        query = start(spark, checkpoint, out, dict(pairs))
        while query.isActive and not stopping.wait(0.2):
            if os.getppid() != parent:
                os._exit(4)  # the test process itself was killed
        failure = None if stopping.is_set() else query.exception()
        logger.warning("epochal query ended: %s", str(failure)[:2000])
        query.stop()
    os._exit(0)  # the JVM ends when its standard input closes


if __name__ == "__main__":
    main(*sys.argv[1:])
