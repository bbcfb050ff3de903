"""Rows with the columns of Databricks' Pub/Sub connector, for queries that were written for it.

Databricks' attributes are a JSON object in a string, and its publish time is a number of
milliseconds. There are no columns for the ordering key and the delivery attempt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa

from epochal.record_batches import batch_of

DATABRICKS_COLUMNS = (
    "messageId STRING, payload BINARY, attributes STRING, publishTimestampInMillis BIGINT"
)
_FIELDS: list[tuple[str, pa.DataType]] = [
    ("messageId", pa.string()),
    ("payload", pa.binary()),
    ("attributes", pa.string()),
    ("publishTimestampInMillis", pa.int64()),
]
_SCHEMA = pa.schema(_FIELDS)


def renamed(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert rows in MESSAGE_SCHEMA."""
    for batch in rows:
        attributes = [json.dumps(dict(each or ())) for each in batch["attributes"].to_pylist()]
        times = batch.column("publish_time").cast(pa.timestamp("ms", tz="UTC"), safe=False)
        yield batch_of(
            [
                batch.column("message_id"),
                batch.column("data"),
                pa.array(attributes, pa.string()),
                times.cast(pa.int64()),
            ],
            _SCHEMA,
            batch.num_rows,
        )
