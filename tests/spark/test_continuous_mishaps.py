"""What a continuous query on a real Spark survives, and what it leaves behind when it does not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from tests.spark.continuous import PATIENCE_SECONDS, add, found, numbers, run

from epochal import read_stream, streams
from epochal.connectors.memory import MemoryOutput
from epochal.errors import CheckpointLostError, QueryFailedError

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("nothing_left_running")]


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
