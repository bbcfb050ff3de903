"""Runs of one query over some files, cut back to the first ones: for tests of take-overs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.spark.sessions import session_with

from epochal.checkpoint.pinned import ROCKSDB_PROVIDER_CLASS

Output = dict[int, list[tuple[Any, ...]]]

STATE = "spark.sql.streaming.stateStore."
CHANGELOGS = {f"{STATE}rocksdb.changelogCheckpointing.enabled": "true"}
CHECKSUMS = {f"{STATE}rowChecksum.enabled": "true", f"{STATE}compression.codec": "zstd"}
FILES = 6
SCHEMA = "at timestamp, name string, kind int, value double"
LOGS = ("offsets", "commits", "sources/0")


def rocksdb_session() -> SparkSession:
    return session_with(
        {
            f"{STATE}providerClass": ROCKSDB_PROVIDER_CLASS,
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
            f"{STATE}autoSnapshotRepair.enabled": "false",
        }
    )


def configure(spark: SparkSession, conf: dict[str, str]) -> None:
    for key in (*CHANGELOGS, *CHECKSUMS):
        spark.conf.unset(key)
    for key, value in conf.items():
        spark.conf.set(key, value)


def write_events(directory: Path, files: int = FILES) -> Path:
    """Files of events, whose times advance by half a minute per file."""
    for number in range(files):
        rows = [
            {
                "at": f"2024-01-01T00:{number // 2:02}:{30 * (number % 2) + n % 17:02}Z",
                "name": None if n == 7 else f"name-{n * (number + 3) % 11}",
                "kind": n % 20 + 10 * number,
                "value": n * 1.5 + number,
            }
            for n in range(40)
        ]
        path = directory / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_704_067_200 + number,) * 2)  # Spark reads the oldest file first
    return directory


def run(
    spark: SparkSession,
    query: Callable[[DataFrame], DataFrame],
    mode: str,
    source: Path,
    checkpoint: Path,
) -> Output:
    """Let Spark process all files that its checkpoint has not seen; its output by batch."""
    found: Output = {}

    def collect(rows: DataFrame, batch: int) -> None:
        found[batch] = sorted((tuple(row) for row in rows.collect()), key=str)

    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    writer = query(events).writeStream.outputMode(mode).foreachBatch(collect)
    started = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    started.start().awaitTermination()
    return found


def cut_back(checkpoint: Path, batches: int) -> None:
    """Make a checkpoint what it was after its first `batches` batches."""
    for log in LOGS:
        for path in (checkpoint / log).iterdir():
            if (number := _number(path)) is not None and number >= batches:
                path.unlink()
    for path in checkpoint.glob("state/*/*/*"):
        if path.is_file() and (number := _number(path)) is not None and number > batches:
            path.unlink()


def log_as(undisturbed: Path, ours: Path, batches: range) -> None:
    """Give `ours` the log entries of these batches."""
    for batch in batches:
        for log in LOGS:
            shutil.copy(undisturbed / log / str(batch), ours / log / str(batch))


def _number(path: Path) -> int | None:
    number = path.name.lstrip(".").partition(".")[0]
    return int(number) if number.isdigit() else None
