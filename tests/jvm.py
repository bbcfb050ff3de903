"""One JVM at a time: PySpark keeps one per process; jars and masters reach it only at its start."""

from __future__ import annotations

from pyspark import SparkContext


def end_jvm() -> None:
    """Stop whatever Spark an earlier test of this process left running, with its JVM."""
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None
