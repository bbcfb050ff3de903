"""Continuous queries on a real Spark: restarts, operators, failures, handles."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession
from tests.spark.continuous import PATIENCE_SECONDS, add, found, numbers, run, workers
from tests.waiting import eventually

from epochal import read_stream, streams
from epochal.checkpoint import CommitLog, OffsetLog
from epochal.connectors.memory import MemoryOutput, MemoryStream
from epochal.continuous.api.query_handle import StreamingQuery
from epochal.errors import CheckpointInUseError, OptionError

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
