"""Joins and splits batches, and casts them to the schema that their receiver expects. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pyarrow as pa

from epochal.continuous.tasks.frames import Frame
from epochal.errors import EpochError


def by_partition(frames: Iterable[Frame]) -> dict[int, list[pa.RecordBatch]]:
    """Return the rows of data frames by their state partition."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for frame in frames:
        batch = cast(pa.RecordBatch, frame.batch)
        if len(frame.runs) == 1:
            found.setdefault(frame.runs[0][0], []).append(batch)
            continue
        start = 0
        for partition, rows in frame.runs:
            found.setdefault(partition, []).append(batch.slice(start, rows))
            start += rows
    return found


def joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows in at most one batch."""
    return batches if len(batches) <= 1 else [cast(Any, pa).concat_batches(batches)]


def fitting(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly the schema that its receiver expects, except metadata."""
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names:
        raise EpochError(
            f"An operator returned columns {batch.schema.names}, the plan says {schema.names}: the "
            f"next stage cannot read them. Declare the schema that the operator returns."
        )
    return cast(pa.RecordBatch, cast(Any, batch).cast(schema))
