"""Runs a micro-batch query in Spark, and the same batches through one of our operators.

Spark decides what a batch is, what time it has and where its watermark stands; all of it is in
its offset log. One turn of the operator for each batch, with those times, must give what the
batch gave.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tests.unit.continuous.operators.driving import Driver, table
from tests.waiting import eventually

from epochal.checkpoint import OffsetLog

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PATIENCE_SECONDS = 120

Rows = list[dict[str, Any]]
File = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch: what Spark read, when, and what came out."""

    number: int
    now_ms: int
    watermark_ms: int
    given: File
    output: Rows


def spark_batches(
    spark: SparkSession,
    place: Path,
    schema: str,
    files: Sequence[File],
    query: Callable[[DataFrame], DataFrame],
    *,
    mode: str = "update",
    idle_batches: int | None = None,
    interval: str = "250 milliseconds",
) -> list[Batch]:
    """Run the query over the files, one in each batch.

    With `idle_batches` it runs on the clock until that many more have run; without, until all is
    read and the watermark has nothing more to do.
    """
    _write(place / "input", spark, schema, files)
    outputs: dict[int, Rows] = {}

    def keep(frame: DataFrame, number: int) -> None:
        outputs[number] = [row.asDict(True) for row in frame.collect()]

    read = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    frame = query(read.json(str(place / "input")))
    writer = frame.writeStream.outputMode(mode).foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    if idle_batches is None:
        running = writer.trigger(availableNow=True).start()
        assert running.awaitTermination(PATIENCE_SECONDS)
    else:
        running = writer.trigger(processingTime=interval).start()
        wanted = len(files) + idle_batches
        eventually(
            lambda: len(outputs) >= wanted or not running.isActive,
            lambda: f"{wanted} batches, of which {sorted(outputs)} have run",
        )
        running.stop()
    assert running.exception() is None
    return _batches(place / "checkpoint", files, outputs)


def replayed(driver: Driver, batches: Sequence[Batch], schema: pa.Schema) -> list[Rows]:
    """What the operator gives for each batch; it is restarted from its state now and then."""
    outputs = []
    for batch in batches:
        given = table(schema, batch.given) if batch.given else None
        outputs.append(driver.turn(given, batch.now_ms, batch.watermark_ms))
        driver.cut()
        if batch.number % 3 == 2:
            driver.restart()
    return outputs


def _write(place: Path, spark: SparkSession, schema: str, files: Sequence[File]) -> None:
    names = [each.name for each in spark.createDataFrame([], schema).schema]
    place.mkdir(parents=True)
    for number, rows in enumerate(files):
        path = place / f"{number:03d}.json"
        lines = [json.dumps(dict(zip(names, row, strict=True)), default=_text) for row in rows]
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _text(value: Any) -> str:
    return str(value.isoformat())


def _batches(checkpoint: Path, files: Sequence[File], outputs: dict[int, Rows]) -> list[Batch]:
    log = OffsetLog(str(checkpoint / "offsets"), read_only=True)
    found, read = [], 0
    for number in sorted(outputs):
        entry = log.get(number)
        assert entry is not None
        assert isinstance(entry.offsets, tuple)
        (offset,) = entry.offsets
        until = read if offset is None else json.loads(offset)["logOffset"] + 1
        given = [row for rows in files[read:until] for row in rows]
        read = until
        batch = Batch(number, entry.timestamp_ms, entry.watermark_ms, given, outputs[number])
        found.append(batch)
    assert read == len(files)
    return found
