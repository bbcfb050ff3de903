"""Decodes raw StreamingPull responses into Arrow, without an object per message if there are many.

Note: Pub/Sub has no nulls. It sends an empty string for "no ordering key" and 0 for "delivery
attempts are not counted". Both become null here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochal.record_batches import batch_of

TIMESTAMP: pa.DataType = pa.timestamp("us", tz="UTC")
ATTRIBUTES: pa.DataType = pa.map_(pa.string(), pa.string())
_FIELDS: list[tuple[str, pa.DataType]] = [
    ("message_id", pa.string()),
    ("data", pa.binary()),
    ("attributes", ATTRIBUTES),
    ("publish_time", TIMESTAMP),
    ("ordering_key", pa.string()),
    ("delivery_attempt", pa.int32()),
]
MESSAGE_SCHEMA = pa.schema(_FIELDS)
ACK_SCHEMA = MESSAGE_SCHEMA.append(pa.field("ack_id", pa.string()))
_STRUCT: Any = pa.struct(list(ACK_SCHEMA))
FEW_BYTES = 12 << 10
"""Up to this size (about 50 messages) one object per message costs less than the fixed cost of
Arrow's functions, which is 0.2 ms."""


@cache
def _response() -> Any:
    from google.pubsub_v1.types import pubsub

    return pubsub.StreamingPullResponse.pb()


@cache
def _handler() -> Any:
    from ptars import HandlerPool

    descriptor = _response().DESCRIPTOR
    return HandlerPool([descriptor.file]).get_for_message(descriptor)


def decode(responses: Sequence[bytes]) -> pa.RecordBatch:
    """Decode the messages in serialised StreamingPullResponses, in ACK_SCHEMA."""
    few = sum(map(len, responses)) <= FEW_BYTES
    return decode_few(responses) if few else decode_many(responses)


def decode_many(responses: Sequence[bytes]) -> pa.RecordBatch:
    """Decode whole columns."""
    outer = _handler().list_to_record_batch(list(responses))
    received = outer.column("received_messages").flatten()
    message = received.field("message")
    attempts = received.field("delivery_attempt")
    keys = message.field("ordering_key")
    attributes = message.field("attributes")
    # Protobuf has no nulls: an ordering key that is absent is empty, and an attempt is 0.
    columns = [
        message.field("message_id"),
        message.field("data"),
        pa.MapArray.from_arrays(attributes.offsets, attributes.keys, attributes.items),
        message.field("publish_time").cast(TIMESTAMP, safe=False),
        _null_if(keys, ""),
        _null_if(attempts, 0),
        received.field("ack_id"),
    ]
    return batch_of(columns, ACK_SCHEMA, len(received))


def decode_few(responses: Sequence[bytes]) -> pa.RecordBatch:
    """Decode row by row."""
    rows, parse = [], _response().FromString
    for raw in responses:
        for received in parse(raw).received_messages:
            message = received.message
            at = message.publish_time if message.HasField("publish_time") else None
            rows.append(
                (
                    message.message_id,
                    message.data,
                    list(message.attributes.items()),
                    None if at is None else at.seconds * 1_000_000 + at.nanos // 1000,
                    message.ordering_key or None,
                    received.delivery_attempt or None,
                    received.ack_id,
                )
            )
    return pa.RecordBatch.from_struct_array(pa.array(rows, _STRUCT))


def message_keys(batch: pa.RecordBatch) -> list[str]:
    """Return the text that identifies each message: its id and its publish time.

    Google never repeats an id within a topic. Test servers do when they are restarted.
    """
    ids = batch.column("message_id").to_pylist()
    times = batch.column("publish_time").cast(pa.int64()).to_pylist()
    return [f"{message_id}@{time}" for message_id, time in zip(ids, times, strict=True)]


def _null_if(values: Any, nothing: str | int) -> Any:
    empty = pc.equal(values, pa.scalar(nothing, values.type))
    if not len(values) or empty.false_count == 0:
        return pa.nulls(len(values), values.type)
    if empty.true_count == 0:
        return values
    return pc.if_else(empty, pa.scalar(None, values.type), values)


DATABRICKS_COLUMNS = (
    "messageId STRING, payload BINARY, attributes STRING, publishTimestampInMillis BIGINT"
)
_DATABRICKS_FIELDS: list[tuple[str, pa.DataType]] = [
    ("messageId", pa.string()),
    ("payload", pa.binary()),
    ("attributes", pa.string()),
    ("publishTimestampInMillis", pa.int64()),
]
_DATABRICKS_SCHEMA = pa.schema(_DATABRICKS_FIELDS)


def to_databricks_columns(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert rows in MESSAGE_SCHEMA to the columns of Databricks' Pub/Sub connector.

    Databricks' attributes are a JSON object in a string, and its publish time is a number of
    milliseconds. There are no columns for the ordering key and the delivery attempt.
    """
    for batch in rows:
        attributes = [json.dumps(dict(pairs or ())) for pairs in batch["attributes"].to_pylist()]
        times = batch.column("publish_time").cast(pa.timestamp("ms", tz="UTC"), safe=False)
        yield batch_of(
            [
                batch.column("message_id"),
                batch.column("data"),
                pa.array(attributes, pa.string()),
                times.cast(pa.int64()),
            ],
            _DATABRICKS_SCHEMA,
            batch.num_rows,
        )
