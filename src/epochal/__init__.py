"""Structured Streaming's commit machinery, in Python, on Spark.

Importing this costs next to nothing: whatever needs Spark is imported when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochal.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochal.continuous.api.query_manager import StreamingQueryManager
    from epochal.continuous.api.readwriter import StreamReader

__all__ = ["__version__", "read_stream", "register", "streams"]


def read_stream(spark: SparkSession) -> StreamReader:
    """Begin a continuous query: Python operators and Python state at millisecond latency."""
    from epochal.continuous.api.readwriter import StreamReader

    return StreamReader(spark)


def register(spark: SparkSession) -> None:
    """Let a session know our data sources: `format("pubsub")`."""
    from epochal.connectors.pubsub.data_source import register as sources

    sources.register(spark)


def streams(spark: SparkSession) -> StreamingQueryManager:
    """The continuous queries of a session, and those who listen to them."""
    from epochal.continuous.api import query_manager as manager

    return manager.streams(spark)
