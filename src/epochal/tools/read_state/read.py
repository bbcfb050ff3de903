"""Reads state as an Arrow table, with the columns of Spark's `statestore` source.

    key         struct      the grouping key
    value       struct      what the operator keeps for it
    partition_id  int32

Variables of transformWithState have Spark's columns: a list has `list_element`, a map has
`user_map_key` and `user_map_value`, timers have `expiration_timestamp_ms`. Partitions are read in
parallel. The decoded chunks become the table without another copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.layout import DEFAULT_STORE
from epochal.errors import StateFormatError, StateReadError, StateValueError
from epochal.files import Files
from epochal.record_batches import batch_of, struct_of
from epochal.state.files.merge import Rows
from epochal.state.files.partitioning import place_of, placing_columns
from epochal.state.files.rocksdb_entries import VERSION_BYTE, scanned_part
from epochal.state.rows.byte_spans import arrow_buffer, spans_of
from epochal.state.rows.column_decoder import ROWS_AT_ONCE, decode_rows
from epochal.state.rows.tagged_json import json_column, json_rows, row_from_json
from epochal.state.rows.types import AtomicType, DataType, StructType
from epochal.state.rows.unsafe_row import Row, encode_row
from epochal.tools.inspect.epoch_overlay import overlaid
from epochal.tools.read_state.read_target import (
    FLAGGED_JOIN_FORMAT,
    JOIN_OPERATOR,
    StateBatch,
    StateVariable,
    StoreTarget,
    given_schemas,
    load_rows,
)
from epochal.tools.reporting import tracked

T = TypeVar("T")
MAX_BATCH_BYTES = 1 << 30
"""Well below the 2 GiB that a column of Arrow strings can hold."""
JoinSide = Literal["left", "right"]
CONFLICT = "STDS_CONFLICT_OPTIONS"
INVALID = "STDS_INVALID_OPTION_VALUE.WITH_MESSAGE"
UNSPECIFIED = "STDS_REQUIRED_OPTION_UNSPECIFIED"


class StateReader(Protocol):
    """Reads rows with the columns of Spark's source, partition by partition."""

    @property
    def fields(self) -> tuple[tuple[str, DataType | None], ...]:
        """The columns in order with their Spark types; None for columns that are not state."""
        ...

    @property
    def target(self) -> StoreTarget:
        """The store, or the main one if there are several."""
        ...

    def batches(self, partition: int) -> list[pa.RecordBatch]:
        """The decoded rows of one partition."""
        ...

    def schema(self) -> pa.Schema:
        """The schema of the batches, even if there are none."""
        ...


def read_state(
    checkpoint: str | Files | Checkpoint,
    operator_id: int = 0,
    store_name: str = DEFAULT_STORE,
    batch_id: int | None = None,
    *,
    join_side: JoinSide | None = None,
    state_variable: str | None = None,
    timers: bool = False,
    partition: int | None = None,
    key_schema: str | None = None,
    value_schema: str | None = None,
) -> pa.Table:
    """Read the state of one store as of a batch, by default the newest committed one.

    `join_side` reads the rows that a join keeps for that side, `state_variable` one variable of
    transformWithState, and `timers` its timers. `key_schema` and `value_schema`, in Spark's DDL,
    are for state of Spark before 3.1, which wrote no schema files; with a `join_side` they are the
    join key's columns and that side's columns. The checkpoint is not changed.
    """
    batch = open_batch(checkpoint, batch_id, key_schema, value_schema)
    reader = open_reader(
        batch,
        operator_id,
        store_name,
        join_side=join_side,
        state_variable=state_variable,
        timers=timers,
    )
    return read_table(reader, partition)


def read_table(reader: StateReader, partition: int | None = None) -> pa.Table:
    parts = in_parallel(reader.batches, choose_partitions(reader.target, partition))
    return pa.Table.from_batches([batch for part in parts for batch in part], reader.schema())


def open_batch(
    checkpoint: str | Files | Checkpoint,
    batch_id: int | None = None,
    key_schema: str | None = None,
    value_schema: str | None = None,
) -> StateBatch:
    opened = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    # The newest state of a continuous query is not in Spark's files.
    shown = Checkpoint(overlaid(opened.files))
    return StateBatch(shown, batch_id, given_schemas(key_schema, value_schema))


def open_reader(
    batch: StateBatch,
    operator_id: int = 0,
    store_name: str = DEFAULT_STORE,
    *,
    join_side: JoinSide | None = None,
    state_variable: str | None = None,
    timers: bool = False,
) -> StateReader:
    if join_side is None:
        return open_store(
            batch, operator_id, store_name, state_variable=state_variable, timers=timers
        )
    if store_name != DEFAULT_STORE:
        raise StateReadError(
            batch.checkpoint.url, "name a join side or a store, not both.", CONFLICT
        )
    return _open_join(batch, operator_id, join_side)


def open_store(
    batch: StateBatch,
    operator_id: int = 0,
    store_name: str = DEFAULT_STORE,
    *,
    state_variable: str | None = None,
    timers: bool = False,
) -> StoreReader:
    variables = batch.variables(operator_id)
    if variables is None:
        if state_variable is not None or timers:
            name = batch.operator_name(operator_id) or "unknown"
            stores = ", ".join(batch.store_names(operator_id)) or "none"
            raise StateReadError(
                batch.checkpoint.url,
                f"operator {operator_id} is {name}; only Spark's transformWithState has variables "
                f"and timers. Its stores are: {stores}. Choose one with --store.",
                INVALID,
            )
        return StoreReader(batch.store(operator_id, store_name))
    variable = _variable(batch, variables, state_variable, timers)
    target = batch.family(operator_id, variable.name)
    return StoreReader(replace(target, has_lists=variable.kind == "ListState"), variable)


def choose_partitions(target: StoreTarget, partition: int | None) -> tuple[int, ...]:
    """The partitions to read; StateReadError if `partition` does not exist."""
    if partition is None:
        return target.partitions
    if partition not in target.partitions:
        raise StateReadError(
            target.files.url,
            f"operator {target.operator_id} has the partitions 0 to "
            f"{len(target.partitions) - 1}, not {partition}.",
            "CANNOT_LOAD_STATE_STORE.SNAPSHOT_PARTITION_ID_NOT_FOUND",
        )
    return (partition,)


class StoreReader:
    """Reads one store or one variable, partition by partition."""

    def __init__(self, target: StoreTarget, variable: StateVariable | None = None) -> None:
        self.target, self.variable = target, variable

    @property
    def fields(self) -> tuple[tuple[str, DataType | None], ...]:
        key, value = self.target.schema.key, self.target.schema.value
        match self.variable.kind if self.variable else "":
            case "ListState":
                shown: tuple[tuple[str, DataType | None], ...] = (
                    ("key", key),
                    ("list_element", value),
                )
            case "MapState":
                grouping, user_key = (field.data_type for field in key.fields)
                shown = (("key", grouping), ("user_map_key", user_key), ("user_map_value", value))
            case "TimerState":
                grouping, moment = (field.data_type for field in key.fields)
                shown = (("key", grouping), ("expiration_timestamp_ms", moment))
            case _:
                shown = (("key", key), ("value", value))
        return (*shown, ("partition_id", None))

    def batches(self, partition: int) -> list[pa.RecordBatch]:
        return [
            self.decode(part, partition)
            for rows in load_rows(self.target, partition)
            for start in range(0, len(rows), ROWS_AT_ONCE)
            for part in rows.slice(start, start + ROWS_AT_ONCE).parts(MAX_BATCH_BYTES)
        ]

    def schema(self) -> pa.Schema:
        return self.decode(Rows(spans_of([]), spans_of([]), "no file"), 0).schema

    def decode(self, rows: Rows, partition: int) -> pa.RecordBatch:
        """Decode stored rows into the columns that Spark shows."""
        if not self.target.has_given_schema:
            return self._decode(rows, partition)
        try:
            return self._decode(rows, partition)
        except StateFormatError as error:
            raise StateReadError(
                self.target.files.url,
                f"the rows of operator {self.target.operator_id}, store {self.target.store_name} "
                f"do not fit the given schema ({error.reason}). Correct --key-schema or "
                f"--value-schema.",
                INVALID,
            ) from None

    def _decode(self, rows: Rows, partition: int) -> pa.RecordBatch:
        kind = self.variable.kind if self.variable else ""
        columns = self.keys(rows)
        if kind != "TimerState":
            columns = [*columns, self.values(rows)]
        # From a buffer: for anything else Arrow would import pandas, which is slow.
        same = arrow_buffer(np.full(len(rows), partition, np.int32))
        numbers = pa.Array.from_buffers(pa.int32(), len(rows), [None, same])
        return batch_of([*columns, numbers], [name for name, _ in self.fields], len(rows))

    def keys(self, rows: Rows) -> list[Any]:
        """The columns of the key: one, or two if the stored key is a pair."""
        target = self.target
        versions = target.settings.format.versions
        keys = versions.key_columns(rows.keys, target.encoder, target.schema.key, rows.source)
        paired = self.variable is not None and self.variable.kind in ("MapState", "TimerState")
        return list(keys.flatten()) if paired else [keys]

    def values(self, rows: Rows) -> pa.StructArray:
        spans = self.target.settings.format.versions.unwrap(rows.values, rows.source)
        return decode_rows(spans, self.target.schema.value, source=rows.source)


class JoinReader:
    """Reads the rows that one side of a join keeps, without the join's internal columns.

    `counts` is the store with the number of rows of each key; joins of format 4 have none.
    """

    def __init__(self, rows: StoreReader, counts: StoreReader | None) -> None:
        self._rows, self._counts = rows, counts

    @property
    def target(self) -> StoreTarget:
        return self._rows.target

    @property
    def fields(self) -> tuple[tuple[str, DataType | None], ...]:
        key, value = self.target.schema.key, self.target.schema.value
        return (
            ("key", StructType(key.fields[:-1]) if self._counts else key),
            ("value", StructType(value.fields[:-1]) if self._has_flags(value) else value),
            ("partition_id", None),
        )

    def _has_flags(self, value: StructType) -> bool:
        """Whether the rows end with the flag of those that have found a match."""
        last = value.fields[-1] if value.fields else None
        return (
            self.target.settings.join_format >= FLAGGED_JOIN_FORMAT
            and last is not None
            and (last.name, last.data_type) == ("matched", AtomicType("boolean"))
        )

    def schema(self) -> pa.Schema:
        return self._shown(self._rows.decode(Rows(spans_of([]), spans_of([]), "no file"), 0)).schema

    def batches(self, partition: int) -> list[pa.RecordBatch]:
        stored_batches = self._rows.batches(partition)
        if self._counts is not None:
            counts: list[Any] = [batch.column(1) for batch in self._counts.batches(partition)]
            counted = sum(int(values.field(0).sum().as_py() or 0) for values in counts)
            stored = sum(len(batch) for batch in stored_batches)
            if counted != stored:
                raise StateFormatError(
                    self.target.directory(partition).url,
                    0,
                    f"the join counts {counted} rows in this partition, but {stored} are stored",
                )
        return [self._shown(batch) for batch in stored_batches]

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns: list[Any] = []
        arrays: list[Any] = list(batch.columns)
        for array, (_, kind) in zip(arrays, self.fields, strict=True):
            if isinstance(kind, StructType):
                count = len(kind.fields)
                fields = [array.type.field(n) for n in range(count)]
                array = struct_of(array.flatten()[:count], fields, len(array))
            columns.append(array)
        return batch_of(columns, [name for name, _ in self.fields], batch.num_rows)


def in_parallel(read: Callable[[int], T], partitions: Sequence[int]) -> list[T]:
    """Read partitions with one thread per processor; return the results in order.

    Threads help because decompression, hashing and Arrow's kernels release the interpreter's lock.
    """
    workers = min(len(partitions), os.cpu_count() or 1)
    if workers < 2:
        return [read(partition) for partition in tracked(partitions)]
    # Imported here: the pool imports `logging`, and reading one partition needs neither.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as pool:
        answers = pool.map(read, partitions)
        return [next(answers) for _ in tracked(partitions)]


def _variable(
    batch: StateBatch, variables: dict[str, StateVariable], wanted: str | None, timers: bool
) -> StateVariable:
    url = batch.checkpoint.url
    if timers and wanted is not None:
        raise StateReadError(url, "name a variable or ask for timers, not both.", CONFLICT)
    if timers:
        timer_states = [v for v in variables.values() if v.kind == "TimerState"]
        if not timer_states:
            raise StateReadError(url, "this operator has no timers (time mode None).", INVALID)
        return timer_states[0]
    names = ", ".join(sorted(n for n, v in variables.items() if v.kind != "TimerState")) or "none"
    if wanted is None:
        raise StateReadError(
            url, f"name a variable of the transformWithState operator; it has {names}.", UNSPECIFIED
        )
    if wanted not in variables:
        raise StateReadError(
            url, f"the operator has no variable {wanted!r}; it has {names}.", INVALID
        )
    return variables[wanted]


def _open_join(batch: StateBatch, operator_id: int, side: JoinSide) -> JoinReader:
    url = batch.checkpoint.url
    if side not in ("left", "right"):
        raise StateReadError(url, f"a join side is left or right, not {side}.", INVALID)
    name = batch.operator_name(operator_id)
    if name not in (None, JOIN_OPERATOR):
        raise StateReadError(url, f"operator {operator_id} is {name}, which has no sides.", INVALID)
    families = batch.schemas(operator_id) if batch.uses_join_families(operator_id) else {}
    if f"{side}-keyWithTsToValues" in families:
        return JoinReader(open_store(batch, operator_id, f"{side}-keyWithTsToValues"), None)
    given = batch.given
    rows = batch.with_given(given.rows_of_join(batch.settings.join_format))
    counts = batch.with_given(given.counts_of_join())
    return JoinReader(
        open_store(rows, operator_id, f"{side}-keyWithIndexToValue"),
        open_store(counts, operator_id, f"{side}-keyToNumValues"),
    )


def rows_with_key(
    reader: StoreReader, key: Any, operator_name: str | None = None
) -> list[dict[str, Any]]:
    """The rows whose key, in JSON form, is `key`. Every field must be given; null means null.

    Only the partition of the key is read, and of a database only the entries with its prefix.
    """
    target = reader.target
    schema = reader.fields[0][1]
    if not isinstance(schema, StructType):
        raise StateValueError("key", "struct", "the key of this state is not a struct")
    row = row_from_json(key, schema, "key")
    encoded = encode_row(row, schema)
    placing = schema  # transformWithState places rows by the whole grouping key
    if reader.variable is None:
        placing = placing_columns(operator_name, target.family or target.store_name, schema)
    count = target.settings.partitions or len(target.partitions)
    partition = place_of(encoded, schema, placing, count)
    if partition not in target.partitions:
        return []
    # The key as readers show it, with every field.
    wanted = json_column(decode_rows(spans_of([encoded]), schema, source="key"), schema)[0]
    kinds = [kind for _, kind in reader.fields]
    return [
        shown
        for rows in load_rows(target, partition, _stored_prefix(reader, row, encoded))
        for part in json_rows(reader.decode(rows, partition), kinds)
        for shown in part
        if shown["key"] == wanted
    ]


def _stored_prefix(reader: StoreReader, row: Row, encoded: bytes) -> bytes:
    """How the stored keys of a key begin; empty if that does not follow from the key alone."""
    target = reader.target
    if not target.settings.format.is_database:
        return encoded
    if target.avro is not None:
        return b""  # such a key names the schema that it was written with
    match target.encoder.kind:
        case "plain":
            return VERSION_BYTE + encoded
        case "prefix":
            fields = target.schema.key.fields[: target.encoder.prefix_columns]
            # Maps and timers have the grouping key as the first column of their own key.
            columns = row if reader.fields[0][1] == target.schema.key else (row,)
            return scanned_part(encode_row(columns[: len(fields)], StructType(fields)))
    return b""
