"""Runs a stream-stream join in Spark, one file of each side per batch, and gives its state.

Spark's offset log has the watermark of each batch. The same batches, with the same watermarks, go
through our operator.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.unit.continuous.operators.driving import Driver, table

from epochal.checkpoint import OffsetLog
from epochal.continuous.operators.contract import StoreSchema
from epochal.state import HDFSBackedStateStoreProvider, StateStoreId

PATIENCE_SECONDS = 180
PARTITIONS = 2

File = list[tuple[Any, ...]]
Stores = dict[tuple[int, str], dict[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Side:
    """One input: its files, and the function that makes of it what Spark gives the join."""

    schema: str
    files: Sequence[File]
    prepared: Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch of Spark's: which file of each side it read, and what came out."""

    number: int
    watermark_ms: int
    file: int | None
    output: list[str]


def write_side(place: Path, spark: SparkSession, side: Side) -> None:
    names = [each.name for each in spark.createDataFrame([], side.schema).schema]
    place.mkdir(parents=True)
    for number, rows in enumerate(side.files):
        path = place / f"{number:03d}.json"
        lines = [json.dumps(dict(zip(names, row, strict=True)), default=str) for row in rows]
        path.write_text("\n".join(lines))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def run_spark(
    spark: SparkSession,
    place: Path,
    sides: tuple[Side, Side],
    joined: Callable[[DataFrame, DataFrame], DataFrame],
    checkpoint: str = "checkpoint",
) -> list[Batch]:
    """Run the query over all files that its checkpoint has not read."""
    outputs: dict[int, list[str]] = {}

    def keep(frame: DataFrame, number: int) -> None:
        outputs[number] = sorted(repr(tuple(row)) for row in frame.collect())

    frames = []
    for name, side in zip(("left", "right"), sides, strict=True):
        if not (place / name).exists():
            write_side(place / name, spark, side)
        reader = spark.readStream.schema(side.schema).option("maxFilesPerTrigger", 1)
        frames.append(side.prepared(reader.json(str(place / name))))
    result = with_micros(joined(*frames))
    writer = result.writeStream.outputMode("append").foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(place / checkpoint))
    running = writer.trigger(availableNow=True).start()
    assert running.awaitTermination(PATIENCE_SECONDS)
    assert running.exception() is None
    return _batches(place / checkpoint, len(sides[0].files), outputs)


def with_micros(frame: DataFrame) -> DataFrame:
    """The same rows with times as microseconds, which no time zone can change."""
    columns = []
    for field in frame.schema:
        kind = field.dataType.simpleString()
        if kind == "timestamp":
            columns.append(F.unix_micros(field.name).alias(field.name))
        elif kind.startswith("struct<start"):
            columns.append(F.unix_micros(f"{field.name}.end").alias(field.name))
        else:
            columns.append(F.col(field.name))
    return frame.select(*columns)


def shown(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Rows of ours in the form of a batch's output."""
    return sorted(repr(tuple(_micros(value) for value in row.values())) for row in rows)


def turn(
    driver: Driver,
    batch: Batch,
    given: Sequence[tuple[int, pa.Schema, File]],
    finished: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> list[str]:
    """Feed a batch of Spark's to our operator, the rows of both sides alternating."""
    queues = [[(side, table(schema, [row])) for row in rows] for side, schema, rows in given]
    longest = max((len(queue) for queue in queues), default=0)
    fed = [queue[at] for at in range(longest) for queue in queues if at < len(queue)]
    found = driver.turn_of_sides(fed, watermark_ms=batch.watermark_ms)
    driver.cut()
    return shown([finished(row) for row in found])


def spark_state(checkpoint: Path, schemas: Sequence[StoreSchema], version: int) -> Stores:
    """All rows of a version, as bytes."""
    return {
        (partition, schema.name): dict(
            store_of(checkpoint, schema, partition).get_store(version).items_raw()
        )
        for partition in range(PARTITIONS)
        for schema in schemas
    }


def replace_state(
    checkpoint: Path, schemas: Sequence[StoreSchema], versions: Sequence[Stores]
) -> None:
    """Remove Spark's state and write these versions, from 1 on, in its place."""
    for partition in range(PARTITIONS):
        for schema in schemas:
            provider = store_of(checkpoint, schema, partition)
            for path in Path(provider.store_id.location).glob("[0-9]*.*"):
                path.unlink()
            for path in Path(provider.store_id.location).glob(".[0-9]*.crc"):
                path.unlink()
            before: dict[bytes, bytes] = {}
            for number, stores in enumerate(versions):
                store = provider.get_store(number)
                rows = stores[partition, schema.name]
                for key in before.keys() - rows.keys():
                    store.remove_raw(key)
                for key, value in rows.items():
                    store.put_raw(key, value)
                store.commit()
                before = rows


def rewound(place: Path, to: int, name: str) -> Path:
    """A copy of the checkpoint as it was after batch `to`."""
    made = place / name
    shutil.copytree(place / "checkpoint", made)
    for log in ("offsets", "commits", "sources/0", "sources/1"):
        for path in (made / log).glob("*"):
            number = path.name.removeprefix(".").split(".")[0]
            if number.isdigit() and int(number) > to:
                path.unlink()
    return made


def store_of(checkpoint: Path, schema: StoreSchema, partition: int) -> HDFSBackedStateStoreProvider:
    store_id = StateStoreId(str(checkpoint / "state"), 0, partition, schema.name)
    return HDFSBackedStateStoreProvider(store_id, schema.key, schema.value)


def _batches(checkpoint: Path, files: int, outputs: dict[int, list[str]]) -> list[Batch]:
    log = OffsetLog(str(checkpoint / "offsets"), read_only=True)
    found = []
    for number in sorted(outputs):
        entry = log.get(number)
        assert entry is not None
        file = number if number < files else None
        found.append(Batch(number, entry.watermark_ms, file, outputs[number]))
    return found


def _micros(value: Any) -> Any:
    if isinstance(value, dict):
        return _micros(value["end"])
    return round(value.timestamp() * 1_000_000) if hasattr(value, "timestamp") else value
