"""What a continuous query leaves to others: files for Spark's reader, a checkpoint for Spark's
engine, events for listeners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from tests.spark.continuous import (
    NUMBERS,
    PATIENCE_SECONDS,
    add,
    kill_a_worker,
    noting_workers,
    numbers,
    run,
)

from epochal import read_stream, streams
from epochal.connectors.memory import MemoryOutput

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_left_running")]


class Notes(StreamingQueryListener):  # type: ignore[misc]
    """Keeps every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(("started", event))

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(("progress", event))

    def onQueryIdle(self, event: Any) -> None:
        self.events.append(("idle", event))

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(("terminated", event))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


class Thrower(Notes):
    def onQueryProgress(self, event: Any) -> None:
        raise RuntimeError("a listener's bug")


def rows_of(spark: SparkSession, out: Path, column: str = "n") -> list[int]:
    return sorted(row[0] for row in spark.read.parquet(str(out)).select(column).collect())


def test_sparks_reader_sees_each_row_once_though_workers_are_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = numbers(tmp_path / "in", partitions=2)
    noted = noting_workers(tmp_path / "workers")
    stream = read_stream(spark).format(source).load().map_in_arrow(noted, NUMBERS)
    writer = stream.write_stream.format("parquet").option("path", str(tmp_path / "out"))
    query = run(writer, tmp_path / "checkpoint")
    for first in range(0, 60, 20):
        add(source, range(first, first + 20))
        query.process_all_available(PATIENCE_SECONDS)
        add(source, range(100 + first, 120 + first))
        kill_a_worker(tmp_path / "workers")
    query.process_all_available(PATIENCE_SECONDS)
    assert query.status["restarts"] == 3
    query.stop()
    assert rows_of(spark, tmp_path / "out") == [*range(60), *range(100, 160)]


def test_listeners_hear_of_start_progress_and_end(spark: SparkSession, tmp_path: Path) -> None:
    manager, notes, thrower = streams(spark), Notes(), Thrower()
    manager.add_listener(thrower)
    manager.add_listener(notes)
    try:
        source = numbers(tmp_path / "in")
        writer = read_stream(spark).format(source).load().write_stream.format(MemoryOutput())
        add(source, [1, 2, 3])
        query = run(writer.query_name("heard"), tmp_path / "c", progressInterval="50 ms")
        assert notes.kinds()[:1] == ["started"]  # before start() has returned
        query.process_all_available(PATIENCE_SECONDS)
        query.stop()
        assert notes.kinds()[-1] == "terminated"
    finally:
        manager.remove_listener(notes)
        manager.remove_listener(thrower)
    events = dict(reversed(notes.events))
    assert {str(event.id) for kind, event in notes.events if kind != "progress"} == {query.id}
    assert events["started"].name == "heard"
    assert events["terminated"].exception is None
    told = [event.progress for kind, event in notes.events if kind == "progress"]
    assert [each.json for each in told] == [each.json for each in query.recent_progress]
    assert sum(each.numInputRows for each in told) == 3
