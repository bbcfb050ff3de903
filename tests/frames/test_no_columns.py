"""Rows without columns: every source counts them as Spark does, every sink gets all of them.

Operators are in the corpus: `no_columns.sql` and `counts.sql`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from tests.frames.streams_of_words import PATIENCE_SECONDS, add_file, rows_of, sparks, stream, words
from tests.frames.turns import session_of

import epochal
from epochal import testing
from epochal.errors import OptionError

pytestmark = pytest.mark.usefixtures("nothing_left_running")

STEPS = (5, 3, 4)
"""The rows of each file."""


def write_parquet(path: Path, rows: int) -> None:
    pq.write_table(pa.table({"a": list(range(rows)), "b": ["x"] * rows}), path)


def write_json(path: Path, rows: int) -> None:
    path.write_text("".join(json.dumps({"a": n, "b": "x"}) + "\n" for n in range(rows)))


def write_csv_with_names(path: Path, rows: int) -> None:
    path.write_text("a,b\n" + "".join(f"{n},x\n" for n in range(rows)))


FORMS: dict[str, tuple[Callable[[Path, int], None], dict[str, str]]] = {
    "parquet": (write_parquet, {}),
    "json": (write_json, {}),
    "csv": (write_csv_with_names, {"header": "true"}),
}

OF_PATHS, OF_NOTHING = "p int", ""
"""Columns of the paths of files; no columns. Columns of files of which none is read are in random
files."""


def counts(
    frame: DataFrame,
    write: Callable[[DataFrame], Any],
    mode: str,
    home: Path,
    add: Callable[[int], None],
) -> list[list[tuple[Any, ...]]]:
    """The newest result after each step. The query is restarted before each one."""
    calls: list[list[tuple[Any, ...]]] = []
    found = []
    for step in range(len(STEPS)):
        add(step)
        writer = write(frame.groupBy().count()).outputMode(mode)
        writer.option("checkpointLocation", str(home / "checkpoint"))
        query = writer.foreachBatch(lambda rows, _: calls.append(rows_of(rows))).start()
        query.processAllAvailable()
        query.stop()
        found.append(calls[-1])
    return found


@pytest.mark.parametrize(
    ("form", "ddl"), [(form, ddl) for form in FORMS for ddl in (OF_PATHS, OF_NOTHING)]
)
def test_files_are_counted_as_by_spark(
    spark: SparkSession, tmp_path: Path, form: str, ddl: str
) -> None:
    write, options = FORMS[form]
    results = []
    for engine in (sparks, epochal.write_stream):
        home = tmp_path / engine.__name__
        place = home / "in" / ("p=1" if ddl == OF_PATHS else "")
        place.mkdir(parents=True)

        def add(step: int, home: Path = home, place: Path = place) -> None:
            write(home / "hidden", STEPS[step])
            (home / "hidden").rename(place / f"{step}.{form}")

        reader = spark.readStream.format(form).options(**options)
        schema = StructType.fromDDL(ddl) if ddl else StructType()
        frame = reader.schema(schema).load(str(home / "in"))
        results.append(counts(frame, engine, "complete", home, add))
    assert results[1] == results[0] == [[(5,)], [(8,)], [(12,)]]


@pytest.mark.parametrize("provider", ["hdfs", "rocksdb"])
def test_a_wrong_count_in_the_state_can_be_corrected(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    session, checkpoint = session_of(spark, provider), tmp_path / "checkpoint"

    def add(step: int) -> None:
        add_file(tmp_path / "in", str(step), words(STEPS[step]))
        if step == 2:
            command = [sys.executable, "-m", "epochal", "state", "put", str(checkpoint), "--key"]
            command += ["{}", "--value", '{"count": 100}', "--no-file-sink", "--execute", "--yes"]
            subprocess.run(command, check=True)

    (tmp_path / "in").mkdir()
    frame = stream(session, tmp_path / "in")
    found = counts(frame, epochal.write_stream, "complete", tmp_path, add)
    assert found == [[(5,)], [(8,)], [(104,)]]


@pytest.mark.parametrize("make", [testing.Driver, testing.SparkDriver])
def test_test_drivers_show_rows_without_columns(spark: SparkSession, make: Any) -> None:
    with make(testing.frame("a bigint", spark=spark).select()) as driver:
        driver.feed([(1,), (2,), (3,)])
        assert driver.run() == [{}, {}, {}]


def bare(spark: SparkSession, home: Path) -> DataFrame:
    """Seven rows without columns, of two files."""
    for number, rows in enumerate((3, 4)):
        add_file(home / "in", str(number), words(rows))
    return stream(spark, home / "in").select()


def ended(writer: Any, home: Path, path: str | None = None) -> None:
    writer = writer.option("checkpointLocation", str(home / "checkpoint"))
    query = writer.trigger(availableNow=True).start(path)
    assert query.awaitTermination(PATIENCE_SECONDS)


def test_memory_has_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    name = f"t_{uuid4().hex[:12]}"
    ended(epochal.write_stream(bare(spark, tmp_path)).format("memory").queryName(name), tmp_path)
    assert rows_of(spark.table(name)) == [()] * 7


def test_functions_get_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    calls: list[tuple[int, list[str]]] = []
    rows, place = bare(spark, tmp_path), tmp_path / "called"
    place.mkdir()

    def note(row: Any) -> None:
        (place / uuid4().hex).write_text(repr(tuple(row)))

    writer = epochal.write_stream(rows)
    ended(writer.foreachBatch(lambda each, _: calls.append((each.count(), each.columns))), tmp_path)
    assert sum(count for count, _ in calls) == 7
    assert all(columns == [] for _, columns in calls)
    ended(epochal.write_stream(rows).foreach(note), tmp_path / "rows")
    assert [each.read_text() for each in place.iterdir()] == ["()"] * 7


@pytest.mark.parametrize("engine", [sparks, epochal.write_stream])
def test_json_files_have_an_object_per_row(
    spark: SparkSession, tmp_path: Path, engine: Any
) -> None:
    ended(engine(bare(spark, tmp_path)).format("json"), tmp_path, str(tmp_path / "out"))
    lines = [each.read_text() for each in (tmp_path / "out").glob("part-*")]
    assert sorted("".join(lines).split()) == ["{}"] * 7


@pytest.mark.parametrize("form", ["parquet", "csv", "text", "delta"])
def test_files_that_cannot_hold_such_rows_are_refused(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    frame = bare(spark, tmp_path)
    with pytest.raises(OptionError, match=form):
        ended(epochal.write_stream(frame).format(form), tmp_path, str(tmp_path / "out"))
    if form in ("parquet", "text"):  # Spark writes empty files of csv
        with pytest.raises(Exception, match="STREAM_FAILED"):
            ended(frame.writeStream.format(form), tmp_path / "spark", str(tmp_path / "theirs"))


def test_the_console_prints_a_line_per_row(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended(epochal.write_stream(bare(spark, tmp_path)).format("console"), tmp_path)
    lines = capsys.readouterr().out.splitlines()
    epochs = sum(line.startswith("Batch: ") for line in lines)
    assert lines.count("||") == 7 + epochs, "one of each epoch has the names"
