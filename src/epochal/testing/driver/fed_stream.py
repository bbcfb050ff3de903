"""Begins a pipeline that a test feeds: `stream` without a session, `frame` for DataFrames."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from typing import TYPE_CHECKING, Any, cast

from epochal.continuous.api.stream import Stream
from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.plan.logical import StreamSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULTS = {"spark.sql.session.timeZone": "UTC"}

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    **DEFAULTS,
}
"""Settings of a session that is started for tests."""


class LaterSession:
    """Stands for a session. A local one is started when it is needed first: for SQL expressions."""

    @property
    def conf(self) -> Any:
        active = active_session()
        return DEFAULTS if active is None else active.conf

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(local_session(), name)


def active_session() -> SparkSession | None:
    """Return the session of this process, if it has one."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def local_session() -> SparkSession:
    """Return the session of this process. If there is none, a local one is started."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("epochal-testing")
    return cast("SparkSession", builder.config(map=LOCAL).getOrCreate())


def stream(schema: Any, name: str = "source") -> Stream:
    """Return a stream of this schema (Arrow's, Spark's or DDL text) that `Driver.feed` fills."""
    columns = arrow_schema(schema)
    source = StreamSource(0, name, {}, columns, columns, name)
    return Stream(cast("SparkSession", LaterSession()), source)


def frame(schema: Any, name: str = "source", *, spark: SparkSession | None = None) -> DataFrame:
    """Return a streaming DataFrame of this schema (Spark's or DDL text) that `Driver.feed` fills.

    Without `spark` it is of the active session, or of a local one that is started.
    """
    session = local_session() if spark is None else spark
    place = os.path.join(tempfile.mkdtemp(prefix="epochal-frame-"), name)
    os.mkdir(place)
    atexit.register(shutil.rmtree, os.path.dirname(place), ignore_errors=True)
    return session.readStream.schema(schema).parquet(place)
