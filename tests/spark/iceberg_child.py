"""A released Spark with Iceberg's own connector: reads our tables, and takes turns with us.

    python -m tests.spark.iceberg_child REQUEST

REQUEST is JSON: the warehouse's folder, the jars, the tables to read, and a folder for a query that
Spark and Epochal run in turns. The answer is the last line of the output, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.iceberg_tables import Warehouse

import epochal

TABLE = "db.turns"


def session(warehouse: str, jars: list[str]) -> SparkSession:
    catalog = "spark.sql.catalog.tests"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    settings = {
        "spark.jars": ",".join(jars),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": f"jdbc:sqlite:{warehouse}/catalog.db",
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": f"file://{warehouse}/warehouse",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


class Turns:
    """One query on one checkpoint, run by Spark or by us until all input is read."""

    def __init__(self, spark: SparkSession, warehouse: str, folder: Path) -> None:
        self._spark, self._warehouse = spark, Warehouse(Path(warehouse))
        self._input, self._checkpoint = folder / "input", folder / "checkpoint"
        self._input.mkdir(parents=True)
        self._next = 0
        self.counts: list[list[int]] = []

    def feed(self) -> None:
        """Add a file of ten rows."""
        numbers = range(self._next, self._next + 10)
        self._next += 10
        lines = [json.dumps({"id": number, "v": f"v{number}"}) for number in numbers]
        (self._input / f"{self._next:04d}.json").write_text("\n".join(lines))

    def frame(self) -> DataFrame:
        return self._spark.readStream.schema("id long, v string").json(str(self._input))

    def sparks(self) -> None:
        writer = self.frame().writeStream.option("checkpointLocation", str(self._checkpoint))
        query = writer.trigger(availableNow=True).toTable(f"tests.{TABLE}")
        query.awaitTermination()
        self.count()

    def ours(self) -> None:
        writer = epochal.write_stream(self.frame()).format("iceberg")
        options = {**self._warehouse.options(), "checkpointLocation": str(self._checkpoint)}
        del options["table"]
        query = writer.options(**options).trigger(availableNow=True).start(TABLE)
        query.awaitTermination()
        error = query.exception()
        if error is not None:
            raise error
        self.count()

    def forget_commit(self) -> None:
        """Make it look as if the query had been killed right after the table's commit."""
        commits = self._checkpoint / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)

    def count(self) -> None:
        rows = self._spark.read.table(f"tests.{TABLE}")
        self.counts.append([rows.count(), rows.select("id").distinct().count()])


def take_turns(spark: SparkSession, warehouse: str, folder: Path) -> list[list[int]]:
    turns = Turns(spark, warehouse, folder)
    for run in (turns.ours, turns.sparks, turns.ours, turns.ours, turns.sparks, turns.sparks):
        turns.feed()
        run()
        turns.forget_commit()
    turns.ours()
    return turns.counts


def main(request: str) -> None:
    asked: dict[str, Any] = json.loads(request)
    spark = session(asked["warehouse"], asked["jars"])
    answer: dict[str, Any] = {"release": spark.version}
    for table, where in asked["tables"].items():
        rows = spark.read.table(f"tests.{table}").where(where)
        answer[table] = [row.asDict() for row in rows.orderBy("id").collect()]
    answer["turns"] = take_turns(spark, asked["warehouse"], Path(asked["folder"]))
    sys.stdout.write(f"\n{json.dumps(answer, default=str)}\n")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
