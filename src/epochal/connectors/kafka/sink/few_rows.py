"""Turns batches of a few rows into Kafka records, row by row. Pure.

A call of Arrow's compute functions takes 5 to 20 µs, whatever the number of rows, and `sink_rows`
makes about ten of them. Below `FEW_ROWS` rows, plain Python takes a small part of that.

Note: this module refuses no row. If a row may have to be refused, it returns nothing, and the batch
takes the way through `sink_rows`, which knows the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from epochal.connectors.kafka.sink.sink_rows import ANY_PARTITION, Record, RecordPlan, with_headers

FEW_ROWS = 64


def few_records(plan: RecordPlan, batch: pa.RecordBatch, max_bytes: int) -> list[Record] | None:
    """The records of a query's rows; None if there are many rows, or one may be refused."""
    count = batch.num_rows
    if count >= FEW_ROWS:
        return None
    columns = plan.columns
    values = _bytes_of(batch, "value")
    keys: list[bytes | None] = [None] * count
    if "key" in columns:
        keys = _bytes_of(batch, "key")
    if _longest(values) + _longest(keys) > max_bytes:
        return None  # perhaps not in one row
    topic = plan.topic or plan.rows_topic
    topics: list[Any] = [topic] * count if topic else batch.column("topic").to_pylist()
    if None in topics:
        return None
    if plan.topic and "partition" not in columns and "headers" not in columns:
        return list(zip(topics, values, keys, strict=True))
    partitions = [ANY_PARTITION] * count
    if "partition" in columns:
        named = batch.column("partition").to_pylist()
        if any(each is not None and each < 0 for each in named):
            return None
        partitions = [ANY_PARTITION if each is None else each for each in named]
    if "headers" not in columns:
        return list(zip(topics, values, keys, partitions, strict=True))
    headers: list[Any] = batch.column("headers").to_pylist()
    if any(each is None or each["key"] is None for found in headers for each in found or ()):
        return None
    return list(with_headers(topics, values, keys, partitions, headers))


def places_of(records: Sequence[Record]) -> dict[str, int]:
    """The topics of records, each with the highest partition that a record names."""
    found: dict[str, int] = {}
    for topic, partition in map(place_of, records):
        found[topic] = max(partition, found.get(topic, ANY_PARTITION))
    return found


def place_of(record: Record) -> tuple[str, int]:
    """The topic of a record and the partition that it names."""
    return record[0], record[3] if len(record) > 3 else ANY_PARTITION


def _bytes_of(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    found: list[Any] = batch.column(name).to_pylist()
    return [each.encode() if isinstance(each, str) else each for each in found]


def _longest(found: Sequence[bytes | None]) -> int:
    return max([len(each) for each in found if each is not None], default=0)
