"""Spark's bounds of a batch bound an epoch: equal contents, epoch by epoch, on both engines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from tests.frames.streams_of_words import PATIENCE_SECONDS, add_file, rows_of, stream, words
from tests.waiting import eventually

import epochal

pytestmark = pytest.mark.usefixtures("nothing_left_running")

Batches = list[tuple[int, list[tuple[Any, ...]]]]
Make = Callable[[SparkSession, Path], DataFrame]
FILES = 6
START = int(time.time()) - 1000
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Sums(StatefulProcessor):  # type: ignore[misc]
    """Adds up the ids of a word, and shows the sum at every timer, a minute of event time later."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._sum = handle.getValueState("sum", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        ids = pd.concat(list(rows))["id"]
        total = int(ids.sum()) + (self._sum.get()[0] if self._sum.exists() else 0)
        self._sum.update((total,))
        self._handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 60_000)
        yield pd.DataFrame({"word": [key[0]], "total": [total], "why": ["rows"]})

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"word": [key[0]], "total": [self._sum.get()[0]], "why": ["timer"]})

    def close(self) -> None:
        pass


def plain(spark: SparkSession, source: Path) -> DataFrame:
    return stream(spark, source, maxFilesPerTrigger=1).select("id", "word")


def counts(spark: SparkSession, source: Path) -> DataFrame:
    return stream(spark, source, maxFilesPerTrigger=2).groupBy("word").count()


def windows(spark: SparkSession, source: Path) -> DataFrame:
    rows = stream(spark, source, maxFilesPerTrigger=1).withWatermark("at", "5 seconds")
    window = F.window("at", "10 seconds")
    return rows.groupBy(window).count().select(F.unix_seconds("window.start"), "count")


def timers(spark: SparkSession, source: Path) -> DataFrame:
    rows = stream(spark, source, maxFilesPerTrigger=1).withWatermark("at", "5 seconds")
    return rows.groupBy("word").transformWithStateInPandas(
        Sums(), "word string, total long, why string", "update", "eventTime"
    )


def shown(writer: Any, home: Path, **trigger: Any) -> Batches:
    """What a query shows from start to end, by the number of the batch."""
    batches: Batches = []
    writer = writer.foreachBatch(lambda rows, epoch: batches.append((epoch, rows_of(rows))))
    query = writer.trigger(**trigger).option("checkpointLocation", str(home)).start()
    assert query.awaitTermination(PATIENCE_SECONDS)
    return batches


def with_rows(batches: Batches) -> Batches:
    """Without those that show nothing: Spark calls the function for them, too."""
    return [(epoch, rows) for epoch, rows in batches if rows]


def fill(source: Path, first: int = 0) -> None:
    """Add files, each a second younger than the one before: both engines read the oldest first."""
    for n in range(first, first + FILES):
        add_file(source, f"{n:02}", words(7 + n % 3, 40 * n))
        os.utime(source / f"{n:02}.json", times=(START + n, START + n))


CASES: dict[str, tuple[Make, str]] = {
    "rows": (plain, "append"),
    "counts": (counts, "update"),
    "windows": (windows, "append"),
    "timers": (timers, "update"),
}


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Spark runs transformWithState on RocksDB only."""
    spark.conf.set(PROVIDER, ROCKSDB)
    yield
    spark.conf.unset(PROVIDER)


IN_FULL = [pytest.param(case, marks=pytest.mark.full) for case in ("rows", "counts", "timers")]


@pytest.mark.parametrize("case", ["windows", *IN_FULL])
def test_epochs_have_the_contents_of_sparks_batches_also_in_turns(
    spark: SparkSession, tmp_path: Path, case: str, request: pytest.FixtureRequest
) -> None:
    if case == "timers":
        request.getfixturevalue("rocksdb")
    make, mode = CASES[case]
    source, home, turns = tmp_path / "in", tmp_path / "spark", tmp_path / "turns"
    expected: Batches = []
    found: Batches = []
    for turn in range(3):
        fill(source, FILES * turn)
        frame = make(spark, source)
        expected += shown(frame.writeStream.outputMode(mode), home, availableNow=True)
        writer = epochal.write_stream(frame) if turn != 1 else frame.writeStream
        found += shown(writer.outputMode(mode), turns, availableNow=True)
    assert with_rows(found) == with_rows(expected)
    assert len(with_rows(expected)) >= 3 * FILES // 2


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"once": True}])
def test_what_waits_is_one_epoch_unless_there_is_a_bound(
    spark: SparkSession, tmp_path: Path, trigger: dict[str, bool]
) -> None:
    fill(tmp_path / "in")
    bound = {"maxFilesPerTrigger": 2} if "once" in trigger else {}
    frame = stream(spark, tmp_path / "in", **bound).groupBy("word").count()
    expected = shown(frame.writeStream.outputMode("update"), tmp_path / "spark", **trigger)
    found = shown(epochal.write_stream(frame).outputMode("update"), tmp_path / "ours", **trigger)
    assert found == expected
    assert [epoch for epoch, _ in found] == [0]


def test_a_bound_of_one_source_bounds_the_epochs_of_all(
    spark: SparkSession, tmp_path: Path
) -> None:
    fill(tmp_path / "few")
    fill(tmp_path / "all")
    few = stream(spark, tmp_path / "few", maxFilesPerTrigger=1).select("id")
    frame = few.union(stream(spark, tmp_path / "all").select("id"))
    expected = shown(frame.writeStream, tmp_path / "spark", availableNow=True)
    assert shown(epochal.write_stream(frame), tmp_path / "ours", availableNow=True) == expected
    whole = sum(7 + n % 3 for n in range(FILES))
    assert [len(rows) for _, rows in expected] == [whole + 7, 8, 9, 7, 8, 9]


def test_a_query_without_an_end_reads_files_one_by_one_as_they_come(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches: Batches = []
    source = tmp_path / "in"
    fill(source)

    def start() -> Any:
        writer = epochal.write_stream(plain(spark, source)).trigger(epoch="20 milliseconds")
        writer.foreachBatch(lambda rows, epoch: batches.append((epoch, rows_of(rows))))
        return writer.option("checkpointLocation", str(tmp_path / "ck")).start()

    query = start()
    query.processAllAvailable()
    fill(source, FILES)
    query.processAllAvailable()
    query.stop()
    fill(source, 2 * FILES)
    query = start()
    query.processAllAvailable()
    query.stop()
    assert [len(rows) for _, rows in batches] == [7 + n % 3 for n in range(3 * FILES)]
    assert [epoch for epoch, _ in batches] == list(range(3 * FILES))


def test_engines_take_turns_in_the_middle_of_a_backlog(spark: SparkSession, tmp_path: Path) -> None:
    source, shown_in = tmp_path / "in", dict[int, list[tuple[Any, ...]]]()
    fill(source)
    fill(source, FILES)
    frame = plain(spark, source)

    def start(writer: Any, note: Callable[[DataFrame, int], None], **trigger: Any) -> Any:
        writer = writer.foreachBatch(note).trigger(**trigger)
        return writer.option("checkpointLocation", str(tmp_path / "ck")).start()

    def note(rows: DataFrame, epoch: int) -> None:
        assert shown_in.setdefault(epoch, rows_of(rows)) == rows_of(rows)

    def fails_in_batch_2(rows: DataFrame, epoch: int) -> None:
        note(rows, epoch)
        assert epoch < 2

    def slowly(rows: DataFrame, epoch: int) -> None:
        note(rows, epoch)
        time.sleep(0.3)  # the backlog must outlast the stop

    with pytest.raises(StreamingQueryException):
        start(frame.writeStream, fails_in_batch_2, availableNow=True).awaitTermination()
    query = start(epochal.write_stream(frame), slowly, epoch="20 milliseconds")
    eventually(lambda: len(shown_in) >= 6)
    query.stop()
    assert len(shown_in) < 2 * FILES
    assert start(frame.writeStream, note, availableNow=True).awaitTermination(PATIENCE_SECONDS)
    sizes = [len(shown_in[epoch]) for epoch in sorted(shown_in)]
    assert sizes == [7 + n % 3 for n in range(2 * FILES)]
