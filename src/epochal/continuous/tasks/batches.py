"""Batches joined, taken apart, and made to fit the schema that their receiver expects. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pyarrow as pa

from epochal.continuous.tasks.frames import Frame
from epochal.errors import EpochError


def by_partition(frames: Iterable[Frame]) -> dict[int, list[pa.RecordBatch]]:
    """The rows of data frames by the state partition they are for."""
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
    """The same rows in at most one batch."""
    return batches if len(batches) <= 1 else [cast(Any, pa).concat_batches(batches)]


def fitting(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the schema that its receiver expects, metadata aside."""
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names:
        raise EpochError(
            f"An operator put out columns {batch.schema.names}, the plan says {schema.names}: the "
            f"next stage could not read them. Declare the schema that the operator returns."
        )
    return cast(pa.RecordBatch, cast(Any, batch).cast(schema))
