"""Continuous queries on a real Spark: restarts, mishaps, watermarks, and what others see."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from tests.spark.continuous import (
    NUMBERS,
    PATIENCE_SECONDS,
    add,
    found,
    kill_a_worker,
    noting_workers,
    numbers,
    run,
    workers,
)
from tests.waiting import eventually

from epochal import read_stream, streams
from epochal.checkpoint import CommitLog, OffsetLog
from epochal.connectors.memory import MemoryOutput, MemoryStream
from epochal.continuous import tumbling
from epochal.continuous.api.query_handle import StreamingQuery
from epochal.errors import CheckpointInUseError, CheckpointLostError, OptionError, QueryFailedError

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_left_running")]


def logged(checkpoint: Path) -> tuple[list[int], list[int]]:
    offsets = OffsetLog(str(checkpoint / "offsets"), read_only=True)
    commits = CommitLog(str(checkpoint / "commits"), read_only=True)
    return offsets.batch_ids(), commits.batch_ids()


def test_two_queries_run_in_one_session(spark: SparkSession, tmp_path: Path) -> None:
    outputs, queries = [MemoryOutput(), MemoryOutput()], []
    for number, output in enumerate(outputs):
        source = numbers(tmp_path / f"in{number}")
        add(source, [number])
        writer = read_stream(spark).format(source).load().write_stream.format(output)
        queries.append(run(writer.query_name(f"q{number}"), tmp_path / f"c{number}"))
    for query in queries:
        query.process_all_available(PATIENCE_SECONDS)
    assert [found(output) for output in outputs] == [[0], [1]]
    manager = streams(spark)
    assert {each.name for each in manager.active} == {"q0", "q1"}
    assert manager.get(queries[1].id) is queries[1]
    queries[0].stop()
    assert [each.name for each in manager.active] == ["q1"]


def test_names_and_checkpoints_are_not_shared(spark: SparkSession, tmp_path: Path) -> None:
    source = numbers(tmp_path / "in")
    writer = read_stream(spark).format(source).load().write_stream.format(MemoryOutput())
    query = run(writer.query_name("one"), tmp_path / "checkpoint")
    with pytest.raises(OptionError, match="'one' is already active"):
        run(writer.query_name("one"), tmp_path / "other")
    with pytest.raises(CheckpointInUseError, match="in use by run " + query.run_id):
        run(writer.query_name("two"), tmp_path / "checkpoint")
    assert query.is_active


def test_a_new_partition_is_picked_up(spark: SparkSession, tmp_path: Path) -> None:
    first, output = numbers(tmp_path / "in", partitions=1), MemoryOutput()
    writer = read_stream(spark).format(first).load().write_stream.format(output)
    add(first, [0, 1])
    query = run(writer, tmp_path / "checkpoint", discoverInterval="200 milliseconds")
    query.process_all_available(PATIENCE_SECONDS)
    grow(first, 3)
    for value in range(2, 8):
        first.add([{"n": value}], partition=value % 3)
    query.process_all_available(PATIENCE_SECONDS)
    assert found(output) == list(range(8))
    assert query.status["restarts"] == 0  # a reconfiguration is no failure


def grow(stream: MemoryStream, partitions: int) -> None:
    stream._added += [0] * (partitions - stream._partitions)
    stream._partitions = partitions


def test_the_plan_can_be_shown(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = numbers(tmp_path / "in")
    stream = read_stream(spark).format(source).load().filter("n > 1")
    query = run(stream.write_stream.format(MemoryOutput()), tmp_path / "checkpoint")
    query.explain()
    assert "Filter" in capsys.readouterr().out


def test_waiting_for_any_query_returns_when_one_ends(spark: SparkSession, tmp_path: Path) -> None:
    manager = streams(spark)
    manager.reset_terminated()
    source = numbers(tmp_path / "in")
    writer = read_stream(spark).format(source).load().write_stream.format(MemoryOutput())
    query = run(writer, tmp_path / "checkpoint")
    assert not manager.await_any_termination(0.05)
    query.stop()
    assert manager.await_any_termination(PATIENCE_SECONDS)


def test_a_query_goes_on_with_the_slots_that_are_left_and_takes_them_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Another job takes a slot while the query restarts, as if a host had been lost for good."""
    source, output, go_on = numbers(tmp_path / "in", partitions=2), MemoryOutput(), tmp_path / "on"
    writer = read_stream(spark).format(source).load().write_stream.format(output)
    add(source, range(4))
    query = run(writer, tmp_path / "checkpoint", parallelism=2)
    query.process_all_available(PATIENCE_SECONDS)

    def hold_a_slot(_: object) -> None:
        while not go_on.exists():
            time.sleep(0.05)  # runs in Spark, where nothing tells when

    holder = InheritableThread(
        target=lambda: spark.sparkContext.parallelize([1], 1).foreach(hold_a_slot)
    )
    holder.start()
    try:
        restart(query)
        add(source, range(4, 8))
        query.process_all_available(PATIENCE_SECONDS)
        assert query._engine._opened.tasks == 1
    finally:
        go_on.touch()
        holder.join()
    restart(query)
    add(source, range(8, 12))
    query.process_all_available(PATIENCE_SECONDS)
    assert query._engine._opened.tasks == 2
    assert (found(output), query.is_active) == (list(range(12)), True)


def restart(query: StreamingQuery) -> None:
    """Kill all workers, and wait until the query has another attempt."""
    before = query.status["attempt"]
    for pid in workers():
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: query.status["attempt"] > before)


@pytest.mark.parametrize("table", ["delta", "iceberg", "postgres"])
def test_a_stream_does_not_replace_a_table_by_a_part_of_its_result(
    spark: SparkSession, tmp_path: Path, table: str
) -> None:
    stream = read_stream(spark).format(numbers(tmp_path / "in")).load()
    writer = stream.write_stream.format(table).output_mode("complete")
    with pytest.raises(OptionError, match="Use update with mergeKeys, or write a DataFrame"):
        writer.option("checkpointLocation", str(tmp_path / "ck")).start(str(tmp_path / "table"))


def test_a_checkpoint_that_is_deleted_ends_the_query_and_is_not_created_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, output = numbers(tmp_path / "in"), MemoryOutput()
    counts = read_stream(spark).format(source).load().group_by("n").count()
    query = run(counts.write_stream.format(output), tmp_path / "checkpoint", idleEpoch="100 ms")
    add(source, range(10))
    query.process_all_available(PATIENCE_SECONDS)
    (tmp_path / "checkpoint").rename(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "elsewhere")
    with pytest.raises(QueryFailedError) as failed:
        query.await_termination(PATIENCE_SECONDS)
    assert isinstance(failed.value.__cause__, CheckpointLostError)
    assert "the checkpoint was deleted or moved" in str(failed.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


class Interrupting(StreamingQueryListener):  # type: ignore[misc]
    """Raises what Ctrl-C raises, while the query starts."""

    def onQueryStarted(self, event: Any) -> None:
        raise KeyboardInterrupt

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


def test_a_start_that_is_interrupted_by_a_listener_releases_the_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, output, listener = numbers(tmp_path / "in"), MemoryOutput(), Interrupting()
    writer = read_stream(spark).format(source).load().write_stream.format(output)
    streams(spark).add_listener(listener)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(writer, tmp_path / "checkpoint")
    finally:
        streams(spark).remove_listener(listener)
    assert list((tmp_path / "checkpoint" / ".epochal" / "lease").iterdir()) == []
    assert streams(spark).active == []
    add(source, [1, 2])
    query = run(writer, tmp_path / "checkpoint")
    query.process_all_available(PATIENCE_SECONDS)
    query.stop()
    assert found(output) == [1, 2]


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


START = datetime(2026, 1, 1, tzinfo=UTC)


def seconds(*at: int) -> list[dict[str, Any]]:
    return [{"at": START + timedelta(seconds=each)} for each in at]


def test_windows_close_in_an_epoch_without_rows_and_the_logs_say_by_which_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("us", "UTC"))])
    source, output = MemoryStream(schema, directory=str(tmp_path / "in")), MemoryOutput()
    marked = read_stream(spark).format(source).load().with_watermark("at", "2 seconds")
    counts = marked.group_by(window=tumbling("at", "5 seconds")).count("append")
    writer = counts.write_stream.format(output).options(
        checkpointLocation=str(tmp_path / "checkpoint"), epoch="50 milliseconds"
    )
    closed = []
    for rows in ([1, 2, 8], [7, 13], [12, 30]):
        source.add(seconds(*rows))
        definition = replace(writer.definition(), watermarks_move="epoch")
        query = streams(spark).start(definition)
        query.process_all_available(PATIENCE_SECONDS)
        closed.append(found(output, "count"))
        query.stop()
    assert closed == [[2], [2, 2], [2, 2, 2]]
    offsets = OffsetLog(str(tmp_path / "checkpoint" / "offsets"), read_only=True)
    commits = CommitLog(str(tmp_path / "checkpoint" / "commits"), read_only=True)
    ids = offsets.batch_ids()
    assert ids == commits.batch_ids() == list(range(len(ids)))
    own = [entry.watermark_ms for entry in map(offsets.get, ids) if entry is not None]
    after = [entry.next_watermark_ms for entry in map(commits.get, ids) if entry is not None]
    assert own[1:] == after[:-1]
    assert sorted(set(own)) == [0, *(int(START.timestamp() + each) * 1000 for each in (6, 11, 28))]
