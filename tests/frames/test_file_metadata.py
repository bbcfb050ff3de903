"""The hidden column `_metadata` of files has Spark's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.frames.streams_of_words import emitted, sparks

import epochal
from epochal.connectors.file.plain_parquet import ROWS_PER_BATCH

pytestmark = pytest.mark.usefixtures("nothing_left_running")


def output(frame: DataFrame, engine: str, folder: Path, mode: str = "append") -> list[Any]:
    """All rows that a query emits."""
    writer = sparks(frame) if engine == "spark" else epochal.write_stream(frame)
    return emitted(writer.outputMode(mode), folder / f"ck-{engine}")


@pytest.mark.parametrize("form", ["json", "csv", "text", "parquet"])
def test_all_fields_are_sparks(spark: SparkSession, tmp_path: Path, form: str) -> None:
    place = tmp_path / "i n%20ü'#^"
    rows = spark.range(ROWS_PER_BATCH + 10).selectExpr("string(id) value", "id % 2 part")
    rows.coalesce(1).write.partitionBy("part").format(form).save(str(place))
    (part,) = place.glob("part=1/part-*")
    part.rename(part.with_name(f"a b%20ü'#&+{part.suffix}"))
    stream = spark.readStream.schema("value string, part long").format(form).load(str(place))
    frame = stream.where("_metadata.file_size > 0 AND int(value) % 1000 < 2").select(
        "value", "_metadata", "part", "_metadata.file_name"
    )
    assert output(frame, "epochal", tmp_path) == output(frame, "spark", tmp_path)


def test_a_column_of_the_file_hides_it(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"_metadata": {"file_name": "mine"}}\n')
    source = spark.readStream.schema("_metadata struct<file_name: string>").json(
        str(tmp_path / "in")
    )
    frame = source.select("_metadata", source.metadataColumn("_metadata").alias("hidden"))
    found = output(frame, "epochal", tmp_path)
    assert found == output(frame, "spark", tmp_path)
    assert [(mine.file_name, hidden.file_name) for mine, hidden in found] == [("mine", "a.json")]


FILE_OF_A_ROW = ("input_file_name()", "input_file_block_start()", "input_file_block_length()")


def test_functions_of_the_file_of_a_row_are_sparks(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a b%20ü'#&+", "c"):
        lines = [f'{{"id": {number}, "text": "t{number}"}}\n' for number in range(3)]
        (tmp_path / "in" / f"{name}.json").write_text("".join(lines))
    source = spark.readStream.schema("id long, text string, at timestamp").json(
        str(tmp_path / "in")
    )
    source.withWatermark("at", "1 hour").createOrReplaceTempView("lines")
    frame = (
        source.select("id", F.upper("text").alias("text"))
        .where("input_file_name() LIKE '%/c.json' OR id > 0")
        .selectExpr("id + 1 AS id", "explode(array(text, input_file_name())) AS both")
        .selectExpr("*", *FILE_OF_A_ROW)
        .union(source.selectExpr("id", "_metadata.file_path", *FILE_OF_A_ROW))
        .union(spark.table("lines").alias("l").selectExpr("l.id", "text", *FILE_OF_A_ROW))
    )
    found = output(frame, "epochal", tmp_path)
    assert found == output(frame, "spark", tmp_path)
    assert len(found) == 22
    assert all(row[2].startswith("file:///") for row in found)


def test_above_an_exchange_no_file_is_known(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(6).coalesce(1).write.json(str(tmp_path / "in"))
    source = spark.readStream.schema("id long").json(str(tmp_path / "in"))
    counts = source.groupBy(F.input_file_name().alias("file")).count()
    frame = counts.selectExpr("*", *FILE_OF_A_ROW)
    found = output(frame, "epochal", tmp_path, "complete")
    assert found == output(frame, "spark", tmp_path, "complete")
    ((file, *rest),) = found
    assert file.startswith("file:///")
    assert rest == [6, "", -1, -1]
