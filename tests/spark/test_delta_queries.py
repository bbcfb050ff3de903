"""Continuous queries into Delta tables, while their workers are killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.spark.continuous import (
    NUMBERS,
    PATIENCE_SECONDS,
    add,
    kill_a_worker,
    noting_workers,
    numbers,
    run,
)

from epochal import read_stream
from epochal.errors import OptionError

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_left_running")]


def test_each_row_is_in_the_table_once_though_workers_are_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, table = numbers(tmp_path / "in", partitions=2), str(tmp_path / "table")
    noted = noting_workers(tmp_path / "workers")
    stream = read_stream(spark).format(source).load().map_in_arrow(noted, NUMBERS)
    stream = stream.with_column("part", "n % 2")
    writer = stream.write_stream.format("delta").partition_by("part").option("path", table)
    query = run(writer, tmp_path / "checkpoint")
    for first in (0, 20):
        add(source, range(first, first + 20))
        query.process_all_available(PATIENCE_SECONDS)
        kill_a_worker(tmp_path / "workers")
    add(source, range(40, 60))
    query.process_all_available(PATIENCE_SECONDS)
    assert query.status["restarts"] == 2
    query.stop()
    found = DeltaTable(table).to_pyarrow_table()
    assert sorted(found["n"].to_numpy().tolist()) == list(range(60))
    assert DeltaTable(table).transaction_version(query.id) is not None


def write_words(folder: Path, name: str, words: str) -> None:
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("".join(f'{{"word":"{word}"}}\n' for word in words.split()))
    hidden.rename(folder / name)


@pytest.mark.parametrize("table", ["delta", "iceberg", "postgres"])
def test_a_stream_does_not_replace_a_table_by_a_part_of_its_result(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    stream = read_stream(spark).format(numbers(tmp_path / "in")).load()
    writer = stream.write_stream.format(table).output_mode("complete")
    with pytest.raises(OptionError, match="Use update with mergeKeys, or write a DataFrame"):
        writer.option("checkpointLocation", str(tmp_path / "ck")).start(str(tmp_path / "table"))
