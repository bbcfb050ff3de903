"""Turns a query's rows into Kafka records. Pure.

The columns are those of Spark's sink: `value`, and optionally `key`, `topic`, `headers` and
`partition`. Other columns are not written, as in Spark. The option `topic` overrides the column.
Kafka does not distinguish text from bytes, so text columns are cast to binary without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute

from epochal.errors import OptionError
from epochal.record_batches import FEW_ROWS, batch_of, table_of

pc: Any = pyarrow.compute
"""Untyped: its stubs miss functions that are used here."""

ANY_PARTITION = -1
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES: dict[str, tuple[pa.DataType, ...]] = {
    "value": (pa.binary(), pa.string()),
    "key": (pa.binary(), pa.string()),
    "topic": (pa.string(),),
    "partition": (pa.int32(),),
    "headers": (HEADERS,),
}

Record: TypeAlias = tuple[Any, ...]
"""Arguments of the client's `produce`: topic, value, key, partition, callback (under two names),
timestamp, headers."""


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """How rows become records."""

    columns: tuple[str, ...]
    """The query's columns that are written."""
    topic: str | None
    """The topic of all rows; None if each row names its own."""
    rows_topic: str | None = None
    """Fills the column topic of all rows; only if there are letters with another topic."""
    dead_letter_topic: str | None = None
    """The topic of dead letters, if there is one."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of staged rows: large types, so that an epoch of any size fits."""
        return pa.schema([(name, STAGED[name]) for name in self.columns])

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are written, in the types of `schema`."""
        arrays: list[Any] = [
            _repeated(self.rows_topic, batch.num_rows)
            if name == "topic" and self.rows_topic is not None
            else _cast(batch.column(name), STAGED[name])
            for name in self.columns
        ]
        return batch_of(arrays, self.schema, batch.num_rows)

    def records(self, batch: pa.RecordBatch) -> Iterator[Record]:
        """Arguments for `produce`, row by row; `batch` must come from `chosen`."""
        columns: dict[str, Any] = {name: batch.column(name) for name in self.columns}
        values = columns["value"].to_pylist()
        keys = columns["key"].to_pylist() if "key" in columns else [None] * len(values)
        if len(self.columns) == 1 + ("key" in columns) and self.topic is not None:
            return zip([self.topic] * len(values), values, keys, strict=True)
        topics, partitions = self._targets(batch)
        if "headers" not in columns:
            return zip(topics, values, keys, partitions, strict=True)
        return with_headers(topics, values, keys, partitions, columns["headers"].to_pylist())

    def highest_partitions(self, batch: pa.RecordBatch) -> dict[str, int]:
        """The topics of the rows, each with the highest partition that a row names."""
        if "partition" not in self.columns:
            topics: list[Any] = [self.topic] if self.topic else batch.column("topic").to_pylist()
            return dict.fromkeys(topics, ANY_PARTITION)
        named = pc.fill_null(batch.column("partition"), ANY_PARTITION)
        if self.topic is not None:
            return {self.topic: pc.max(named).as_py()} if batch.num_rows else {}
        columns = [batch.column("topic"), named]
        table = table_of(columns, ["topic", "partition"], batch.num_rows)
        highest = table.group_by("topic").aggregate([("partition", "max")]).to_pylist()
        return {row["topic"]: row["partition_max"] for row in highest}

    def check(self, batch: pa.RecordBatch, max_bytes: int) -> None:
        """Raise for a row that Kafka would reject, while its origin is still known."""
        for reason in self.bad_rows(batch, max_bytes).values():
            raise OptionError(f"kafka: {reason}.")

    def bad_rows(self, batch: pa.RecordBatch, max_bytes: int) -> dict[int, str]:
        """Why rows cannot become records, by their index; `batch` must come from `chosen`."""
        bad: dict[int, str] = {}
        if not batch.num_rows:
            return bad
        if self.topic is None and (topics := batch.column("topic")).null_count:
            bad |= dict.fromkeys(
                _indices(topics.is_null()),
                "a row has no topic: its column topic is null. Give every row a topic, or set one "
                "topic for all rows with the option topic",
            )
        if "partition" in self.columns:
            named = batch.column("partition")
            for index in _indices(pc.less(named, 0)):
                bad[index] = (
                    f"a row names partition {named[index]}, but partitions are numbered from 0. "
                    f"Correct the column partition; if it is null, the key decides"
                )
        if "headers" in self.columns:
            bad |= _bad_headers(batch.column("headers"))
        sizes = pc.fill_null(pc.binary_length(batch.column("value")), 0)
        if "key" in self.columns:
            sizes = pc.add(sizes, pc.fill_null(pc.binary_length(batch.column("key")), 0))
        for index in _indices(pc.greater(sizes, max_bytes)):
            bad[index] = (
                f"a row's key and value have {sizes[index]} bytes, but the limit is {max_bytes}. "
                f"Make the row smaller, or raise kafka.max.request.size and the topic's "
                f"max.message.bytes"
            )
        return bad

    @property
    def names_places(self) -> bool:
        return not (self.topic or self.rows_topic) or "partition" in self.columns

    def places(self, batch: pa.RecordBatch) -> list[tuple[str, int]] | None:
        """Topic and partition of each row; None if no row names either."""
        if not self.names_places:
            return None
        return list(zip(*self._targets(batch), strict=True))

    def _targets(self, batch: pa.RecordBatch) -> tuple[list[str], list[int]]:
        """The topic of each row, and the partition that it names."""
        topics: list[Any] = [self.topic] * batch.num_rows
        if self.topic is None:
            topics = batch.column("topic").to_pylist()
        partitions = [ANY_PARTITION] * batch.num_rows
        if "partition" in self.columns:
            partitions = pc.fill_null(batch.column("partition"), ANY_PARTITION).to_pylist()
        return topics, partitions

    def letters(self, letters: Sequence[bytes]) -> pa.RecordBatch:
        columns: dict[str, Any] = {
            "value": pa.array(letters, pa.large_binary()),
            "topic": pa.array([self.dead_letter_topic] * len(letters), pa.large_string()),
        }
        arrays = [
            columns[field.name] if field.name in columns else pa.nulls(len(letters), field.type)
            for field in self.schema
        ]
        return batch_of(arrays, self.schema, len(letters))


STAGED: dict[str, pa.DataType] = {
    "value": pa.large_binary(),
    "key": pa.large_binary(),
    "topic": pa.large_string(),
    "partition": pa.int32(),
    "headers": pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
}


def record_plan(
    schema: pa.Schema, topic: str | None, dead_letter_topic: str | None = None
) -> RecordPlan:
    """How rows of this schema are written; raise OptionError if they cannot be."""
    if "value" not in schema.names:
        raise OptionError(
            f"kafka: the rows must have a column named value, text or bytes. They have "
            f"{', '.join(schema.names) or 'no columns'}. Add one, for example with "
            f".select('CAST(id AS string) AS key', 'to_json(struct(*)) AS value')."
        )
    if topic is None and "topic" not in schema.names:
        raise OptionError(
            "kafka: no topic is given. Set the option topic, or add a column named topic."
        )
    columns = [name for name in TYPES if name in schema.names and (name != "topic" or not topic)]
    for name in columns:
        kind = schema.field(name).type
        if _small(kind) not in TYPES[name]:
            wanted = " or ".join(_type_text(wanted_type) for wanted_type in TYPES[name])
            raise OptionError(
                f"kafka: column {name} must be {wanted}, but it is {_type_text(kind)}. Cast it "
                f"before the sink."
            )
    if dead_letter_topic is None or topic is None:
        return RecordPlan(tuple(columns), topic, dead_letter_topic=dead_letter_topic)
    columns = [name for name in TYPES if name == "topic" or name in columns]
    return RecordPlan(tuple(columns), None, rows_topic=topic, dead_letter_topic=dead_letter_topic)


def _repeated(topic: str, count: int) -> Any:
    once: Any = pa.array([topic], STAGED["topic"])
    return once.take(pa.array([0] * count, pa.int64()))


def _indices(mask: Any) -> list[int]:
    return pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist() if pc.any(mask).as_py() else []


def _bad_headers(headers: Any) -> dict[int, str]:
    names = pc.struct_field(headers.flatten(), 0)
    if not names.null_count:
        return {}
    return {
        index: "a header of a row has no key. Give every header a key"
        for index, pairs in enumerate(headers.to_pylist())
        if any(pair is None or pair["key"] is None for pair in pairs or ())
    }


def with_headers(
    topics: list[str],
    values: list[bytes | None],
    keys: list[bytes | None],
    partitions: list[int],
    headers: list[Any],
) -> Iterator[Record]:
    """Records with headers, from the columns of rows."""
    for topic, value, key, partition, row_headers in zip(
        topics, values, keys, partitions, headers, strict=True
    ):
        pairs = (
            [(header["key"], header["value"]) for header in row_headers] if row_headers else None
        )
        yield topic, value, key, partition, None, None, 0, pairs


def _cast(column: Any, wanted: pa.DataType) -> Any:
    if pa.types.is_string(column.type) and pa.types.is_large_binary(wanted):
        column = column.cast(pa.binary())
    return column if column.type == wanted else column.cast(wanted)


def _small(kind: Any) -> pa.DataType:
    """The type with Arrow's small texts, bytes and lists in place of its large ones."""
    types = pa.types
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_small(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, _small(field.type)) for field in kind])
    return cast(pa.DataType, kind)


def _type_text(kind: pa.DataType) -> str:
    if kind == HEADERS:
        return "array<struct<key: string, value: binary>>"
    return "int" if kind == pa.int32() else str(kind)


def small_batch_records(
    plan: RecordPlan, batch: pa.RecordBatch, max_bytes: int
) -> list[Record] | None:
    """The records of a query's rows; None if there are many rows, or one may be refused.

    No row is refused here: the batch then takes the way of many rows, which tells the reason.
    """
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
        if any(partition is not None and partition < 0 for partition in named):
            return None
        partitions = [ANY_PARTITION if partition is None else partition for partition in named]
    if "headers" not in columns:
        return list(zip(topics, values, keys, partitions, strict=True))
    headers: list[Any] = batch.column("headers").to_pylist()
    if any(
        header is None or header["key"] is None
        for row_headers in headers
        for header in row_headers or ()
    ):
        return None
    return list(with_headers(topics, values, keys, partitions, headers))


def places_of(records: Sequence[Record]) -> dict[str, int]:
    """The topics of records, each with the highest partition that a record names."""
    highest: dict[str, int] = {}
    for topic, partition in map(place_of, records):
        highest[topic] = max(partition, highest.get(topic, ANY_PARTITION))
    return highest


def place_of(record: Record) -> tuple[str, int]:
    """The topic of a record and the partition that it names."""
    return record[0], record[3] if len(record) > 3 else ANY_PARTITION


def _bytes_of(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    values: list[Any] = batch.column(name).to_pylist()
    return [value.encode() if isinstance(value, str) else value for value in values]


def _longest(values: Sequence[bytes | None]) -> int:
    return max([len(value) for value in values if value is not None], default=0)
