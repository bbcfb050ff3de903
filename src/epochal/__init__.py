"""Structured Streaming's commit machinery, in Python, on Spark.

`import epochal` is cheap: everything that needs PySpark is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from epochal.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from epochal.continuous.api.dataframe_writer import DataFrameWriter
    from epochal.continuous.api.query_manager import StreamingQueryManager
    from epochal.continuous.api.readwriter import StreamReader
    from epochal.continuous.spark_job.state_rdd import map_partitions_with_state_store
    from epochal.tools.read_state.changes import read_state_changes
    from epochal.tools.read_state.read import read_state
    from epochal.tools.upgrade.upgrade_findings import UpgradeReport

__all__ = [
    "__version__",
    "check",
    "explain",
    "map_partitions_with_state_store",
    "read_state",
    "read_state_changes",
    "read_stream",
    "register",
    "streams",
    "write_stream",
]

_MODULES_OF_STATE = {
    "map_partitions_with_state_store": "epochal.continuous.spark_job.state_rdd",
    "read_state": "epochal.tools.read_state.read",
    "read_state_changes": "epochal.tools.read_state.changes",
}
_PUBLIC_MODULES = frozenset(
    ("checkpoint", "connectors", "continuous", "errors", "kafka", "state", "testing")
)


def read_stream(spark: SparkSession) -> StreamReader:
    """Begin a continuous query: Python operators and Python state at millisecond latency."""
    from epochal.continuous.api.readwriter import StreamReader

    return StreamReader(spark)


def write_stream(df: DataFrame) -> DataFrameWriter:
    """Run a streaming DataFrame of Spark's on our engine: use it in place of `df.writeStream`."""
    from epochal.continuous.api.dataframe_writer import DataFrameWriter

    return DataFrameWriter(df)


def explain(df: DataFrame, output_mode: str = "append") -> None:
    """Print what of a streaming DataFrame runs where, and all that cannot run."""
    from epochal.continuous.api import dataframe_writer as writer

    writer.explain(df, output_mode)


def check(
    query: Any, checkpoint: str | None = None, *, before: Any = None, output_mode: str | None = None
) -> UpgradeReport:
    """Say whether a changed query can continue from a checkpoint. Nothing is started or changed.

    `query` is a streaming DataFrame, a Stream, or the writer of one that has not been started.
    Without a checkpoint, `before` is the query that would have left it.
    """
    from epochal.tools.upgrade.check_query import check

    return check(query, checkpoint, before=before, output_mode=output_mode)


def register(spark: SparkSession) -> None:
    """Register our data sources with a session: `format("pubsub")`."""
    from epochal.connectors.pubsub.data_source import register as sources

    sources.register(spark)


def streams(spark: SparkSession) -> StreamingQueryManager:
    """Return the manager of a session's continuous queries and their listeners."""
    from epochal.continuous.api import query_manager as manager

    return manager.streams(spark)


def __getattr__(name: str) -> Any:
    """Import what reads and writes state when it is first used."""
    if name in _MODULES_OF_STATE:
        return getattr(import_module(_MODULES_OF_STATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, and the public modules that are imported already."""
    names = globals()
    imported = _PUBLIC_MODULES.intersection(names)
    return sorted({*__all__, *imported, *(name for name in names if name.startswith("__"))})
