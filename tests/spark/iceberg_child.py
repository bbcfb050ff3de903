"""A released Spark with Iceberg's own connector, which does what it is asked.

    python -m tests.spark.iceberg_child FOLDER JAR...

FOLDER holds the catalog. Each line of the input is a request in JSON, and each answer is a line
that starts with `ANSWER `.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def session(folder: str, jars: list[str]) -> SparkSession:
    catalog = "spark.sql.catalog.tests"
    settings = {
        "spark.jars": ",".join(jars),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{folder}/catalog.db",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": f"file://{folder}/warehouse",
        f"{catalog}.cache-enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def rows(spark: SparkSession, table: str, where: str) -> list[dict[str, Any]]:
    found = spark.read.table(f"tests.{table}").where(where).orderBy("id").collect()
    return [row.asDict() for row in found]


def stream(spark: SparkSession, table: str, source: str, checkpoint: str) -> str:
    """Run a query over all input, as any user of Spark and Iceberg does."""
    frame = spark.readStream.schema("id long, v string").json(source)
    writer = frame.writeStream.option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).toTable(f"tests.{table}").awaitTermination()
    return "done"


def main(folder: str, *jars: str) -> None:
    spark = session(folder, list(jars))
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        match asked.pop("do"):
            case "release":
                answer: Any = spark.version
            case "rows":
                answer = rows(spark, **asked)
            case "stream":
                answer = stream(spark, **asked)
        sys.stdout.write(f"ANSWER {json.dumps(answer, default=str)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
