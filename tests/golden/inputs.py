"""Deterministic input rows. No row is ever late, however the files are cut into batches.

File i holds events of minute i, some up to 20 seconds early. Queries use a watermark delay of 30
seconds, so even the earliest event of a file is above the watermark that all earlier files can
reach. Without late rows, and with append output, the final answer does not depend on batches.
"""

import json
import random
from contextvars import ContextVar
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.golden.place import Place
from tests.golden.shape import EPOCH_SECONDS, Case, InputFile, Query, Read, json_files

per_batch: ContextVar[str] = ContextVar("per_batch", default="1")
"""How many files a batch may read. The checkpoints were made with one."""
EVENTS = "us LONG, k STRING, v LONG, id LONG"


def three_steps(number: int) -> int:
    """Files 0-5 in the first run, 6-8 in the second, the others are the rest."""
    return 0 if number < 6 else 1 if number < 9 else 2


def events(
    source: str, *, files: int = 12, rows: int = 14, keys: int = 6, one_per_step: bool = False
) -> tuple[InputFile, ...]:
    draw = random.Random(source)
    batches = [
        [
            {
                "us": _micros(draw, number),
                "k": f"k{draw.randrange(keys)}",
                "v": draw.randrange(100),
                "id": number * rows + row,
            }
            for row in range(rows)
        ]
        for number in range(files)
    ]
    return tuple(json_files(source, batches, int if one_per_step else three_steps))


def _micros(draw: random.Random, minute: int) -> int:
    start = EPOCH_SECONDS + 60 * minute - (20 if minute else 0)
    return draw.randrange(start * 1_000_000, (EPOCH_SECONDS + 60 * (minute + 1)) * 1_000_000)


def numbers(
    source: str, *, files: int = 12, rows: int = 12, top: int = 40
) -> tuple[InputFile, ...]:
    """Rows `{"n": …}` that queries turn into values of every type."""
    draw = random.Random(source)
    batches: list[list[dict[str, Any]]] = [
        [{"n": n} for n in draw.sample(range(top), rows)] for _ in range(files)
    ]
    return tuple(json_files(source, batches, three_steps))


def clicks(source: str, views: tuple[InputFile, ...]) -> tuple[InputFile, ...]:
    """For two views in three a click up to 25 seconds later, in the file of its own minute."""
    draw = random.Random(source)
    batches: list[list[dict[str, Any]]] = [[] for _ in views]
    for file in views:
        for line in file.lines:
            view = json.loads(line)
            if draw.random() < 2 / 3:
                us = view["us"] + draw.randrange(25_000_000)
                minute = max(0, (us // 1_000_000 - EPOCH_SECONDS) // 60)
                batches[min(minute, len(views) - 1)].append({"us": us, "id": view["id"]})
    return tuple(json_files(source, batches, three_steps))


def json_rows(
    spark: SparkSession, place: Place, source: str, *, schema: str = EVENTS, name: str | None = None
) -> DataFrame:
    """A file source."""
    reader = spark.readStream.format("json").schema(schema)
    reader = reader.option("maxFilesPerTrigger", per_batch.get())
    if name is not None:
        reader = reader.name(name)
    (place.input / source).mkdir(parents=True, exist_ok=True)
    return reader.load(str(place.input / source))


def read_events(
    spark: SparkSession, place: Place, source: str, *, schema: str = EVENTS, name: str | None = None
) -> DataFrame:
    """The same, with the event time as `ts` under a watermark."""
    rows = json_rows(spark, place, source, schema=schema, name=name)
    timed = rows.selectExpr("timestamp_micros(us) AS ts", *rows.columns[1:])
    return timed.withWatermark("ts", "30 seconds")


def over_events(name: str, about: str, query: Query, **more: Any) -> Case:
    """A case over one source of events, whose change feed can be read if nothing else is said."""
    usual = {"files": events("events"), "reads": (Read(changes=True),)}
    return Case(name=name, about=about, query=query, **{**usual, **more})
