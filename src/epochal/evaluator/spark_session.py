"""What Spark's code needs to know of a user's session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from epochal.evaluator.evaluator_client import Session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_of(spark: SparkSession) -> Session:
    """The settings of a session that Spark's code reads when it runs."""
    conf = spark._jsparkSession.sessionState().conf()
    converters = cast(Any, spark._jvm).scala.jdk.javaapi.CollectionConverters
    settings = converters.asJava(conf.getAllConfs())
    lines = [
        text
        for key in sorted(map(str, settings))
        if key.startswith("spark.sql.")
        for text in (key, str(settings[key]).replace("\\", "\\\\").replace("\n", "\\n"))
    ]
    jars = cast(Any, spark.sparkContext._jsc).sc().listJars()
    names = (str(jars.apply(number)).rpartition("/")[2] for number in range(jars.size()))
    return Session("\n".join(lines), "\n".join(sorted(names)))
