"""Spark's Delta sink and ours take turns on one checkpoint and one table, in one old PySpark.

    python -m tests.spark.delta_turns_child HOME JARS < TURNS.json

TURNS is a list of [engine, output mode, forget]: with `forget`, the commit entry of the last batch
is removed after the turn, as if the engine had died just before it wrote it. Each turn adds rows to
the input. The last line of the output is JSON: what Spark reads from the table, and the markers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import epochal

ROWS_PER_TURN = 20


def session(jars: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .getOrCreate()
    )


def add(folder: Path, turn: int) -> None:
    folder.mkdir(exist_ok=True)
    rows = range(turn * ROWS_PER_TURN, (turn + 1) * ROWS_PER_TURN)
    text = "".join(json.dumps({"id": n, "part": n % 3}) + "\n" for n in rows)
    hidden = folder / f".{turn}.json"
    hidden.write_text(text)
    hidden.rename(folder / f"{turn}.json")


def take_turn(spark: SparkSession, home: Path, engine: str, mode: str) -> None:
    frame = spark.readStream.schema("id long, part long").option("maxFilesPerTrigger", 1)
    found: Any = frame.json(str(home / "in"))
    if mode == "complete":
        found = found.groupBy("part").count()
    writer: Any = found.writeStream if engine == "spark" else epochal.write_stream(found)
    writer = writer.format("delta").outputMode(mode)
    if mode == "append":
        writer = writer.partitionBy("part")
    writer = writer.option("checkpointLocation", str(home / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(home / "table"))
    query.awaitTermination()
    assert query.exception() is None, query.exception()


def forget_commit(home: Path) -> None:
    commits = home / "checkpoint" / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (str(newest), f".{newest}.crc"):
        (commits / name).unlink(missing_ok=True)


def main(home: Path, jars: str) -> None:
    spark = session(jars)
    first = len(list((home / "in").glob("*.json")))
    for turn, (engine, mode, forget) in enumerate(json.load(sys.stdin), first):
        add(home / "in", turn)
        take_turn(spark, home, engine, mode)
        if forget:
            forget_commit(home)
    table = spark.read.format("delta").load(str(home / "table"))
    rows = sorted(list(row) for row in table.collect())
    log = spark.sql(f"DESCRIBE HISTORY delta.`{home / 'table'}`").count()
    sys.stdout.write("\n" + json.dumps({"rows": rows, "versions": log}) + "\n")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
