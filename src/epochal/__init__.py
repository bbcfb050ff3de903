"""Structured Streaming's commit machinery, in Python, on Spark.

Importing this costs next to nothing: whatever needs Spark is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochal.continuous.manager import StreamingQueryManager
    from epochal.continuous.readwriter import StreamReader

__version__ = "0.1.0"

__all__ = ["__version__", "read_stream", "register", "streams"]


def read_stream(spark: SparkSession) -> StreamReader:
    """Begin a continuous query: Python operators and Python state at millisecond latency."""
    from epochal.continuous.readwriter import StreamReader

    return StreamReader(spark)


def register(spark: SparkSession) -> None:
    """Let a session know our data sources: `format("pubsub")`."""
    from epochal.spark import register as sources

    sources.register(spark)


def streams(spark: SparkSession) -> StreamingQueryManager:
    """The continuous queries of a session, and those who listen to them."""
    from epochal.continuous import manager

    return manager.streams(spark)
