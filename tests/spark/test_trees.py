"""Queries with branches, and watermarks that move at epoch boundaries, on a real Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.spark.continuous import PATIENCE_SECONDS, found

from epochal import read_stream, streams
from epochal.checkpoint import CommitLog, OffsetLog
from epochal.connectors.memory import MemoryOutput, MemoryStream
from epochal.continuous import tumbling

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_left_running")]

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
