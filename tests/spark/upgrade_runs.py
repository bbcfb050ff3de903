"""Runs queries before and after a change: their input, their batches, and what a refusal says."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.spark.sessions import INTERPRETED, session_with

import epochal
from epochal.connectors.memory import MemoryOutput
from epochal.continuous.api.stream import Stream
from epochal.errors import EpochalError

Rows: TypeAlias = list[tuple[Any, ...]]

COLUMNS = "k string, k2 string, v int, w int, d double, t timestamp"
FILES: tuple[Rows, Rows] = (
    [
        ("x", "y", 1, 10, 1.5, 1),
        ("x", "y", 3, 20, 0.5, 3),
        ("y", "x", 2, 30, 2.5, 2),
        ("z", "y", 9, 60, 3.5, 8),
    ],
    [
        ("x", "z", 2, 50, 4.5, 11),
        ("y", "x", 3, 40, 5.5, 12),
        ("q", "x", 8, 20, 6.5, 13),
        ("z", "y", 1, 70, 7.5, 14),
        ("x", "y", 5, 10, 0.5, 5),
    ],
)
"""Time is in seconds."""

START = 1_700_000_000
SECONDS = 300


@dataclass(frozen=True, slots=True)
class Inputs:
    """Two directories with files, read one file per batch."""

    spark: SparkSession
    base: Path

    def read(self, place: str, name: str | None = None, schema: str = COLUMNS) -> DataFrame:
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        if name is not None:
            reader = reader.name(name)
        return reader.json(str(self.base / place))

    @property
    def a(self) -> DataFrame:
        return self.read("a")

    @property
    def b(self) -> DataFrame:
        return self.read("b")

    @property
    def rate(self) -> DataFrame:
        return self.spark.readStream.format("rate").load()

    def stream(self, place: str = "a") -> Stream:
        """The same directory, as our own builder reads it."""
        reader = epochal.read_stream(self.spark).format("json").schema(COLUMNS)
        return reader.load(str(self.base / place))


def session(conf: Mapping[str, str]) -> SparkSession:
    return session_with({**INTERPRETED, "spark.sql.shuffle.partitions": "2", **conf})


def add_file(folder: Path, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("k", "k2", "v", "w", "d", "t")
    lines = [
        json.dumps(dict(zip(names, (*row[:5], f"2024-01-01T00:00:{row[5]:02}"), strict=True)))
        for row in FILES[number]
    ]
    path = folder / f"{number}.json"
    path.write_text("\n".join(lines))
    os.utime(path, (START + number, START + number))


def run(frame: DataFrame, mode: str, checkpoint: Path) -> list[Rows]:
    """Let Spark run a query until it has read all files; the rows of each batch."""
    batches: dict[int, Rows] = {}

    def keep(batch: DataFrame, number: int) -> None:
        batches[number] = [plain(row) for row in batch.collect()]

    writer = frame.writeStream.outputMode(mode).foreachBatch(keep)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS)
    return [rows for _, rows in sorted(batches.items())]


def run_ours(made: DataFrame | Stream, mode: str, checkpoint: Path, **options: Any) -> Rows:
    """Let our engine run a query until it has read all files; the last row of each key."""
    rows: Rows = []
    options = {"checkpointLocation": str(checkpoint), "parallelism": 1, **options}
    output = MemoryOutput()
    if isinstance(made, Stream):
        given = made.write_stream.output_mode(mode).format(output).options(**options)
        query = given.trigger(availableNow=True).start()
    else:

        def keep(batch: DataFrame, _: int) -> None:
            rows.extend(plain(row) for row in batch.collect())

        writer = epochal.write_stream(made).outputMode(mode).foreachBatch(keep)
        query = writer.options(**options).trigger(availableNow=True).start()
    assert query.await_termination(SECONDS)
    if (error := query.exception()) is not None:
        raise error
    if isinstance(made, Stream):
        rows = [plain(tuple(row.values())) for row in output.table().to_pylist()]
    return rows if mode == "append" else list({row[0]: row for row in rows}.values())


def attempt(
    made: DataFrame | Stream, mode: str, checkpoint: Path, *, ours: bool = False, **options: Any
) -> tuple[Rows, str | None]:
    """Run a query; its rows, or what the engine says if it refuses."""
    try:
        if ours or isinstance(made, Stream):
            return ordered(run_ours(made, mode, checkpoint, **options)), None
        return together(run(made, mode, checkpoint)), None
    except (AnalysisException, StreamingQueryException, EpochalError) as error:
        return [], str(error)


def together(batches: list[Rows]) -> Rows:
    """The rows of several batches."""
    return ordered(row for batch in batches for row in batch)


def ordered(rows: Any) -> Rows:
    return sorted((tuple(row) for row in rows), key=repr)


def plain(value: Any) -> Any:
    """A row without Spark's classes; times as seconds."""
    if isinstance(value, dict):
        return tuple(map(plain, value.values()))
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, dt.datetime):
        return value.minute * 60 + value.second
    return value


def left_by(
    before: Callable[[Inputs], DataFrame | Stream],
    base: Path,
    place: str = "checkpoint",
    *,
    mode: str,
    ours: bool,
    conf: Mapping[str, str] | None = None,
) -> Path:
    """A checkpoint after the first file, with the second file to be read."""
    for folder in ("a", "b"):
        add_file(base / folder, 0)
    inputs, checkpoint = Inputs(session(conf or {}), base), base / place
    assert attempt(before(inputs), mode, checkpoint, ours=ours)[1] is None
    for folder in ("a", "b"):
        add_file(base / folder, 1)
    return checkpoint


class Leftovers(dict[str, Path]):
    """The folders in which queries have left checkpoints, by the query's name."""

    def __init__(self, queries: Mapping[str, Any], factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._queries, self._factory = queries, factory

    def __missing__(self, name: str) -> Path:
        base, before = self._factory.mktemp("before"), self._queries[name]
        ours = before.engine == "ours"
        left_by(before.make, base, mode=before.mode, ours=ours, conf=before.conf)
        self[name] = base
        return base
