"""What Spark's code needs to know of a user's session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from epochal.evaluator.evaluator_client import Session
from epochal.evaluator.spark_classes import class_of, texts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_of(spark: SparkSession) -> Session:
    """The settings of a session that Spark's code reads when it runs."""
    conf = spark._jsparkSession.sessionState().conf()
    settings = texts_of(conf.getAllConfs())
    lines = [
        text
        for key in sorted(settings)
        if key.startswith("spark.sql.")
        for text in (key, settings[key].replace("\\", "\\\\").replace("\n", "\\n"))
    ]
    jars = cast(Any, spark.sparkContext._jsc).sc().listJars()
    names = (str(jars.apply(number)).rpartition("/")[2] for number in range(jars.size()))
    return Session("\n".join(lines), "\n".join(sorted(names)))


@contextmanager
def active_session(spark: SparkSession) -> Iterator[None]:
    """Make a session the one whose settings Spark's code reads on this thread."""
    sessions = class_of(spark._jvm, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
