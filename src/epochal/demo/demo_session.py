"""The demo's Spark: on this machine, quiet, open to nobody else."""

from __future__ import annotations

import logging
import os
import sys

from pyspark.sql import SparkSession


def local_session(*, tasks: int) -> SparkSession:
    """A Spark of its own with so many slots."""
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
    # A worker is killed on purpose; what Spark and the query say of it, the view says in a line.
    spark.sparkContext.setLogLevel("OFF")
    logging.getLogger("epochal").setLevel(logging.CRITICAL)
    return spark
