"""A local Spark of two slots for continuous queries, shared by the test modules that want it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
APP = "continuous queries"
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Where a job has few rows: compiling code for it takes longer than everything else."""


def end_jvm() -> None:
    """Stop the Spark session and the JVM that an earlier test of this process left running.

    PySpark keeps one JVM per process, and jars and masters can be set only when it starts.
    """
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None


def local_session() -> SparkSession:
    """The session of `local[2]`; one that another module left is used again."""
    active = SparkContext._active_spark_context
    if active is not None and active.appName == APP and active.master == "local[2]":
        return SparkSession.builder.getOrCreate()
    end_jvm()
    return session("local[2]")


def session_with(settings: Mapping[str, str]) -> SparkSession:
    """A session in the shared Spark whose settings, views and functions are its own."""
    made = local_session().newSession()
    for key, value in settings.items():
        made.conf.set(key, value)
    return made


def session(master: str, **conf: str) -> SparkSession:
    """A new session; the names of settings have `__` for a dot."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    builder = (
        SparkSession.builder.master(master)
        .appName(APP)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", path)
        .config("spark.python.task.killTimeout", "200ms")
        .config("spark.sql.shuffle.partitions", "2")
    )
    for key, value in conf.items():
        builder = builder.config(key.replace("__", "."), value)
    return builder.getOrCreate()
