"""The demo's Spark session: local, without log output, reachable only from this machine."""

from __future__ import annotations

import logging
import os
import sys

from pyspark.sql import SparkSession


def local_session(*, tasks: int) -> SparkSession:
    """A local Spark session with `tasks` slots."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(f"local[{tasks}]")
        .appName("epochal demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.task.killTimeout", "200ms")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    # The demo kills a worker on purpose. The view reports this in one line, so the errors that
    # Spark and the query would log are suppressed.
    spark.sparkContext.setLogLevel("OFF")
    logging.getLogger("epochal").setLevel(logging.CRITICAL)
    return spark
