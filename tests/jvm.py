"""Ends PySpark's JVM between tests.

PySpark keeps one JVM per process, and jars and masters can be set only when it starts.
"""

from __future__ import annotations

from pyspark import SparkContext


def end_jvm() -> None:
    """Stop the Spark session and the JVM that an earlier test of this process left running."""
    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway = SparkContext._gateway
    if gateway is None:
        return
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
    SparkContext._gateway = SparkContext._jvm = None
