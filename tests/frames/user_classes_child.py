"""Runs queries with Java and Scala classes of a user's jar, in Spark and in Epochal.

    python -m tests.frames.user_classes_child ANSWER JAR MASTER KEY=VALUE ...

The answer has the rows by query and engine. The jar is added to the application when it runs, or
by the setting spark.jars.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import epochal

PATIENCE_SECONDS = 120


def session_of(master: str, *settings: str) -> SparkSession:
    """A session with settings of the form KEY=VALUE."""
    path = os.pathsep.join(filter(None, sys.path))
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.executorEnv.PYTHONPATH", path)
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    made: SparkSession = builder.getOrCreate()
    return made


def main(answer: str, jar: str, master: str, *settings: str) -> None:
    spark = session_of(master, *settings)
    if "spark.jars" not in dict(setting.split("=", 1) for setting in settings):
        spark.sql(f"ADD JAR '{jar}'").collect()
    folder = Path(answer).parent
    source = folder / "in"
    source.mkdir()
    for part in range(3):
        lines = "".join(f'{{"id": {20 * part + number}}}\n' for number in range(6))
        (source / f"{part}.json").write_text(lines)
    found: dict[str, Any] = {
        name: {
            engine: rows_of(frame, engine, folder / f"{name}-{engine}")
            for engine in ("spark", "epochal")
        }
        for name, frame in frames(spark, str(source)).items()
    }
    found["failed"] = error_of(spark, folder / "failed")
    for copied in Path(SparkFiles.getRootDirectory()).glob("*.jar"):
        copied.unlink()
    # Another memory is another evaluator: the one that runs has the classes.
    found["missing"] = error_of(spark, folder / "missing", evaluatorMemory="288m")
    Path(answer).write_text(json.dumps(found), encoding="utf-8")
    spark.stop()


def frames(spark: SparkSession, source: str) -> dict[str, DataFrame]:
    jvm: Any = spark._jvm
    js: Any = spark._jsparkSession
    spark.udf.registerJavaFunction("twice", "user.Twice", "long")
    classes: Any = js.sharedState().jarClassLoader()
    gateway: Any = spark.sparkContext._gateway
    arguments = [gateway.new_array(kind, 0) for kind in (jvm.java.lang.Class, jvm.java.lang.Object)]

    def new(name: str) -> Any:
        made = classes.loadClass(name).getDeclaredConstructor(arguments[0])
        return made.newInstance(arguments[1])

    spread = jvm.org.apache.spark.sql.functions.udaf(
        new("user.Spread"), jvm.org.apache.spark.sql.Encoders.LONG()
    )
    js.udf().register("spread", spread)
    kind = jvm.org.apache.spark.sql.types.DataTypes.LongType
    module = classes.loadClass("user.Lambdas$").getField("MODULE$").get(None)
    js.udf().register("plus", module.plus(7), kind)
    js.sessionState().functionRegistry().createOrReplaceTempFunction(
        "tally", new("user.MakeTally"), "scala_udf"
    )
    rows = spark.readStream.schema("id long").json(source)
    alone = spark.readStream.schema("id long").option("pathGlobFilter", "0.json").json(source)
    return {
        "functions": rows.selectExpr("id", "twice(id) AS t", "plus(id) AS p").where(
            "twice(id) > 6"
        ),
        "aggregate": rows.groupBy((F.col("id") % 2).alias("k")).agg(F.expr("spread(id) AS s")),
        # Spark decides which files are a partition, at whose end the generator adds a row.
        "generator": alone.selectExpr("id", "tally(id) AS what"),
        "partitions": rows.selectExpr(
            "spark_partition_id() >= 0 AS known", "rand() BETWEEN 0 AND 1 AS r"
        ),
    }


def rows_of(frame: DataFrame, engine: str, folder: Path, **options: str) -> list[Any]:
    found: list[Any] = []
    writer = frame.writeStream if engine == "spark" else epochal.write_stream(frame)
    if frame.columns[0] == "k":
        writer.outputMode("complete")
    writer.foreachBatch(lambda rows, _: found.extend(map(list, rows.collect())))
    writer.option("checkpointLocation", str(folder)).trigger(availableNow=True)
    query = writer.options(**options).start()
    if not query.awaitTermination(PATIENCE_SECONDS):
        raise SystemExit(f"{engine} did not end")
    return sorted(found, key=str)


def error_of(spark: SparkSession, folder: Path, **options: str) -> str:
    """What Epochal says of a function that fails at length."""
    source = folder / "in"
    source.mkdir(parents=True)
    (source / "0.json").write_text('{"id": 13}\n')
    frame = spark.readStream.schema("id long").json(str(source)).selectExpr("twice(id) AS t")
    try:
        rows_of(frame, "epochal", folder / "checkpoint", **options)
    except Exception as error:  # noqa: BLE001  its text is the answer
        return str(error)
    return "no error"


if __name__ == "__main__":
    main(*sys.argv[1:])
