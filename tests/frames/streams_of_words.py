"""What tests of DataFrames share: files of JSON rows, a stream over them, and what came out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

COLUMNS = "id bigint, word string, at timestamp"
PATIENCE_SECONDS = 120.0


def add_file(directory: Path, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add a file of rows, atomically."""
    directory.mkdir(exist_ok=True)
    written = directory / f".{name}.tmp"
    written.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    written.rename(directory / f"{name}.json")


def words(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Rows of three words, a second apart."""
    return [
        {"id": n, "word": "abc"[n % 3], "at": f"2026-01-01T00:{n // 60:02}:{n % 60:02}Z"}
        for n in range(start, start + count)
    ]


def stream(spark: SparkSession, directory: Path, **options: Any) -> DataFrame:
    return spark.readStream.schema(COLUMNS).options(**options).json(str(directory))


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    """All rows, in an order that does not depend on partitions."""
    return sorted((tuple(row) for row in frame.collect()), key=str)


def sparks(frame: DataFrame) -> Any:
    """How Spark writes a DataFrame; `epochal.write_stream` is how we do."""
    return frame.writeStream


def emitted(writer: Any, checkpoint: Path) -> list[Any]:
    """All rows that a query emits for what is there now."""
    found: list[Any] = []
    writer.foreachBatch(lambda rows, _: found.extend(rows_of(rows)))
    writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    assert writer.start().awaitTermination(PATIENCE_SECONDS)
    return sorted(found, key=str)


def plain(value: Any) -> Any:
    """A value that can be compared with ==, also if it is NaN."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if value == 0:
            return "-0.0" if math.copysign(1, value) < 0 else 0.0
        case dict():
            return {key: plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
    return value
