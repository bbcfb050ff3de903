"""Turns the client's messages into Arrow rows with Spark's schema, and decodes their values.

Many messages are turned into columns: each column takes one pass over the messages, and no object
is made per row. A value that is the same in every row, such as the topic if only one is read, is
not read from the messages.

Few messages are turned into tuples, and these into one array of structs. Its fixed cost is a third
of that of seven arrays, and most turns have few messages. The result is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa

from epochal.connectors.kafka.offsets import KafkaPartition
from epochal.connectors.payloads.payload_columns import MAX_ERROR_CHARS, PARSE_ERROR, PARSED
from epochal.connectors.schema_registry.value_schemas import ValueSpec
from epochal.errors import KafkaTimestampError
from epochal.record_batches import FEW_ROWS, batch_of

STAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
MAX_MS = (2**63 - 1) // 1000
FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", STAMP),
    pa.field("timestampType", pa.int32()),
]

Made: TypeAlias = tuple[pa.RecordBatch, dict[KafkaPartition, int]]
"""Rows, and the last offset of each partition among them."""


def kafka_schema(include_headers: bool, values: ValueSpec | None = None) -> pa.Schema:
    """The columns of Spark's Kafka source, followed by those that decoding adds."""
    fields = [*FIELDS, pa.field("headers", HEADERS)] if include_headers else FIELDS
    if values is not None:
        parsed = pa.field(PARSED, values.decoder().type)
        fields = [*fields, parsed, pa.field(PARSE_ERROR, pa.string())]
    return pa.schema(fields)


class RowMaker:
    """Makes batches of messages of these partitions; columns that are not wanted are null."""

    def __init__(
        self,
        schema: pa.Schema,
        partitions: Sequence[KafkaPartition],
        wanted: frozenset[str] | None = None,
    ) -> None:
        self._schema = schema
        topics = {topic for topic, _ in partitions}
        self._topic = next(iter(topics)) if len(topics) == 1 else None
        self._only_partition = partitions[0] if len(partitions) == 1 else None
        self._wanted = frozenset(schema.names) if wanted is None else wanted
        self._struct = pa.struct(list(schema))
        self._are_wanted = [name in self._wanted for name in schema.names]

    def make(self, messages: Sequence[Any]) -> Made:
        if len(messages) < FEW_ROWS:
            # A time outside the range of timestamps does not fit; `by_column` says which one.
            with suppress(OverflowError, pa.ArrowInvalid):
                return self.by_row(messages)
        return self.by_column(messages)

    def by_row(self, messages: Sequence[Any]) -> Made:
        rows: list[tuple[Any, ...]] = []
        last: dict[KafkaPartition, int] = {}
        are_wanted = None if all(self._are_wanted) else self._are_wanted
        headers = "headers" in self._schema.names
        for message in messages:
            topic, number, offset = message.topic(), message.partition(), message.offset()
            last[topic, number] = offset
            kind, time_ms = message.timestamp()
            row: tuple[Any, ...]
            row = (message.key(), message.value(), topic, number, offset, time_ms * 1000, kind - 1)
            if headers:
                row = (*row, _headers(message))
            if are_wanted is not None:
                pairs = zip(row, are_wanted, strict=True)
                row = tuple([cell if is_wanted else None for cell, is_wanted in pairs])
            rows.append(row)
        structs: Any = pa.array(rows, self._struct)
        return pa.RecordBatch.from_struct_array(structs), last

    def by_column(self, messages: Sequence[Any]) -> Made:
        # `map` over a method of the class runs without Python code for each message.
        kind: Any = type(messages[0])
        # With several partitions, topics, numbers and offsets are needed for the positions, even
        # if the query does not use these columns.
        topics = None if self._topic is not None else list(map(kind.topic, messages))
        numbers = None if self._only_partition is not None else list(map(kind.partition, messages))
        needs_offsets = "offset" in self._wanted or self._only_partition is None
        offsets = list(map(kind.offset, messages)) if needs_offsets else None
        arrays: dict[str, pa.Array[Any]] = {}
        wanted, count = self._wanted, len(messages)
        if "key" in wanted:
            arrays["key"] = pa.array(list(map(kind.key, messages)), pa.binary())
        if "value" in wanted:
            arrays["value"] = pa.array(list(map(kind.value, messages)), pa.binary())
        if "topic" in wanted:
            topic = self._topic
            arrays["topic"] = pa.array(topics) if topics is not None else _repeated(topic, count)
        if "partition" in wanted:
            arrays["partition"] = _numbers(numbers, np.int32) if numbers else self._number(count)
        if "offset" in wanted and offsets is not None:
            arrays["offset"] = _numbers(offsets, np.int64)
        if "timestamp" in wanted or "timestampType" in wanted:
            kinds, times = zip(*map(kind.timestamp, messages), strict=True)
            if "timestamp" in wanted:
                arrays["timestamp"] = _times(messages, times)
            if "timestampType" in wanted:
                arrays["timestampType"] = _kinds(kinds)
        if "headers" in wanted:
            arrays["headers"] = pa.array([_headers(message) for message in messages], HEADERS)
        columns = [
            arrays[column.name] if column.name in arrays else pa.nulls(count, column.type)
            for column in self._schema
        ]
        batch = batch_of(columns, self._schema, count)
        return batch, self._last(messages, topics, numbers, offsets)

    def _last(
        self,
        messages: Sequence[Any],
        topics: Sequence[str] | None,
        numbers: Sequence[int] | None,
        offsets: Sequence[int] | None,
    ) -> dict[KafkaPartition, int]:
        """The last offset of each partition: a dict keeps the last value, and offsets ascend."""
        if numbers is None or offsets is None:
            assert self._only_partition is not None
            return {self._only_partition: messages[-1].offset()}
        if topics is None:
            topic = self._topic or ""
            return {(topic, n): at for n, at in dict(zip(numbers, offsets, strict=True)).items()}
        return dict(zip(zip(topics, numbers, strict=True), offsets, strict=True))

    def _number(self, count: int) -> pa.Array[Any]:
        assert self._only_partition is not None
        return _repeated(pa.scalar(self._only_partition[1], pa.int32()), count)


def _repeated(value: Any, count: int) -> pa.Array[Any]:
    return cast("pa.Array[Any]", cast(Any, pa).repeat(value, count))


def _numbers(values: Sequence[int], kind: type[np.signedinteger[Any]]) -> pa.Array[Any]:
    # Twice as fast as `pa.array` on a list of Python integers.
    return pa.array(np.fromiter(values, kind, len(values)))


def _times(messages: Sequence[Any], times_ms: Sequence[int]) -> pa.Array[Any]:
    millis = np.fromiter(times_ms, np.int64, len(times_ms))
    if millis.max() > MAX_MS or millis.min() < -MAX_MS:
        row = int(np.abs(millis).argmax())
        bad = messages[row]
        raise KafkaTimestampError(bad.topic(), bad.partition(), bad.offset(), times_ms[row])
    micros: Any = millis * 1000
    buffer = pa.py_buffer(micros)
    return pa.Array.from_buffers(STAMP, len(times_ms), [None, buffer])


def _kinds(kinds: Sequence[int]) -> pa.Array[Any]:
    """Timestamp types in Java's numbering: -1 means none. librdkafka numbers them from 0."""
    if len(set(kinds)) == 1:
        return _repeated(pa.scalar(kinds[0] - 1, pa.int32()), len(kinds))
    return pa.array([kind - 1 for kind in kinds], pa.int32())


def _headers(message: Any) -> list[dict[str, Any]] | None:
    headers = message.headers()
    return [{"key": key, "value": value} for key, value in headers] if headers else None


class ParsedValues:
    """Decodes the values of one reader's rows."""

    def __init__(self, spec: ValueSpec, wanted: frozenset[str] | None) -> None:
        self._decoder = spec.decoder()
        self._is_wanted = wanted is None or not wanted.isdisjoint((PARSED, PARSE_ERROR))
        self.needed = wanted if wanted is None or not self._is_wanted else wanted | {"value"}
        """The columns of records that the rows need."""

    def parsed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with both columns; they are null if the query uses neither."""
        count, kind = batch.num_rows, self._decoder.type
        values, errors = pa.nulls(count, kind), pa.nulls(count, pa.string())
        if self._is_wanted:
            column = batch.column("value").to_numpy(zero_copy_only=False).tolist()
            values, reasons = self._decoder.decode(column, None)
            errors = pa.array(
                [None if reason is None else reason[:MAX_ERROR_CHARS] for reason in reasons],
                pa.string(),
            )
        names = [*batch.schema.names, PARSED, PARSE_ERROR]
        return batch_of([*batch.columns, values, errors], names, count)
