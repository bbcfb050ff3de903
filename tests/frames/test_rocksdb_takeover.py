"""State with unique ids moves between Spark and Epochal, while both delete old versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.frames.turns import session_of

from epochal import write_stream
from epochal.checkpoint.directory import Checkpoint
from epochal.cli.main import main
from epochal.state import read_state


class Counted:
    """Counts of names in files, at which Spark and Epochal take turns; state has unique ids."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark, self.source, self.checkpoint = spark, home / "in", home / "checkpoint"
        self.source.mkdir()
        self.files = 0
        self.expected: dict[str, int] = {}
        self.found: dict[str, int] = {}

    def add_file(self) -> None:
        names = [f"n{n}" for n in range(self.files % 5 + 2)]
        rows = "".join(json.dumps({"name": name}) + "\n" for name in names)
        (self.source / f"{self.files:03}.json").write_text(rows)
        self.files += 1
        for name in names:
            self.expected[name] = self.expected.get(name, 0) + 1

    def take(self, rows: DataFrame, _: int) -> None:
        self.found.update({row["name"]: row["count"] for row in rows.collect()})

    def frame(self) -> DataFrame:
        events = self.spark.readStream.schema("name string").json(str(self.source))
        return events.groupBy("name").count()

    def play(self, engine: str, files: int) -> None:
        frame = self.frame()
        writer: Any = frame.writeStream
        if engine == "ours":
            brisk = {"minBatchesToRetain": 3, "publishInterval": "10 ms", "epoch": "10 ms"}
            writer = write_stream(frame).options(**brisk)
        writer = writer.outputMode("update").option("checkpointLocation", str(self.checkpoint))
        query = writer.foreachBatch(self.take).start()
        try:
            for _ in range(files):
                self.add_file()
                query.processAllAvailable()
        finally:
            query.stop()
        assert self.found == self.expected

    def state(self) -> dict[str, int]:
        rows = read_state(str(self.checkpoint)).to_pylist()
        return {row["key"]["name"]: row["value"]["count"] for row in rows}

    def versions(self) -> dict[str, int]:
        """The oldest version of each partition."""
        found: dict[str, int] = {}
        for path in self.checkpoint.glob("state/0/*/[0-9]*_*"):
            if path.is_file():
                version = int(path.name.partition("_")[0])
                found[path.parent.name] = min(version, found.get(path.parent.name, version))
        return found


@pytest.mark.parametrize("provider", ["ids", "ids-changelogs"])
def test_state_with_unique_ids_moves_between_spark_and_a_dataframe(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    counted = Counted(session_of(spark, provider), tmp_path)
    for engine, files in (("spark", 2), ("ours", 9), ("spark", 1), ("ours", 2)):
        counted.play(engine, files)
        assert counted.state() == counted.expected
    checkpoint = str(counted.checkpoint)
    newest = max(Checkpoint(checkpoint).commits.batch_ids())
    commit = Checkpoint(checkpoint).commits.get(newest)
    assert commit is not None
    assert (commit.version, [len(ids) for ids in (commit.state_unique_ids or {})[0]]) == (2, [1, 1])
    assert min(counted.versions().values()) > 3  # maintenance has deleted old versions
    assert main(("checkpoint", "verify", checkpoint)) == 0
    stored = counted.spark.read.format("statestore").load(checkpoint).collect()
    assert {row["key"]["name"]: row["value"]["count"] for row in stored} == counted.expected
    back = ("rewind", checkpoint, "--to-batch", str(newest - 1), "--no-file-sink", "--execute")
    assert main(("checkpoint", *back, "--settle-seconds", "0")) == 0
    for engine in ("ours", "spark"):
        counted.play(engine, 1)
        assert counted.state() == counted.expected
