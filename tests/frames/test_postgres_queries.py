"""Whole queries into PostgreSQL. Whole results are in `test_empty_results`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.frames.streams_of_words import PATIENCE_SECONDS, add_file, stream, words
from tests.rigs.postgres import Postgres

import epochal
from epochal.errors import QueryFailedError

pytestmark = pytest.mark.usefixtures("nothing_left_running")


@pytest.fixture
def table() -> str:
    return f"t_{uuid4().hex[:12]}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    add_file(tmp_path / "in", "0", words(10))
    return tmp_path / "in"


def write(frame: DataFrame, mode: str, checkpoint: Path, **options: Any) -> None:
    """Run a query until it has read everything."""
    writer = epochal.write_stream(frame).format("postgres").outputMode(mode).options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_SECONDS)


def counts(spark: SparkSession, source: Path) -> DataFrame:
    return stream(spark, source).groupBy("word").agg(F.count("*").alias("n"))


def test_counts_are_kept_up_to_date(
    spark: SparkSession, postgres: Postgres, source: Path, tmp_path: Path, table: str
) -> None:
    place = {"url": postgres.url, "dbtable": table, "mergeKeys": "word"}
    write(counts(spark, source), "update", tmp_path / "ck", **place)
    read = f"SELECT word, n FROM {table} ORDER BY word"
    assert postgres.rows(read) == ["a|4", "b|3", "c|3"]
    add_file(source, "1", words(5, 10))
    write(counts(spark, source), "update", tmp_path / "ck", **place)
    assert postgres.rows(read) == ["a|5", "b|5", "c|5"]


def test_rows_are_appended_and_a_bad_one_ends_the_query_with_its_value(
    spark: SparkSession, postgres: Postgres, source: Path, tmp_path: Path, table: str
) -> None:
    place = {"url": postgres.url, "dbtable": table}
    frame = stream(spark, source).select("id", F.col("word"), "at")
    write(frame, "append", tmp_path / "ck", **place)
    read = f"SELECT id, word, at AT TIME ZONE 'UTC' FROM {table} ORDER BY id"
    assert postgres.rows(read)[:2] == ["0|a|2026-01-01 00:00:00", "1|b|2026-01-01 00:00:01"]
    assert len(postgres.rows(read)) == 10
    postgres.psql(f"ALTER TABLE {table} ADD CHECK (id < 12)")
    add_file(source, "1", words(5, 10))
    with pytest.raises(QueryFailedError, match=r"Failing row contains \(12, a"):
        write(frame, "append", tmp_path / "ck", **place)
    assert len(postgres.rows(read)) == 10
    postgres.psql(f"ALTER TABLE {table} DROP CONSTRAINT {table}_id_check")
    write(frame, "append", tmp_path / "ck", **place)
    assert len(postgres.rows(read)) == 15
