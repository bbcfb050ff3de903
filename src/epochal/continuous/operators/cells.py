"""Converts Arrow columns to the values that state stores hold, and back. Pure.

Stores hold the values of Spark's rows (`epochal.state.rows.unsafe_row`): a timestamp is an int of
microseconds, a date an int of days, a struct a tuple.

Keys must also work as dict keys. So arrays are tuples here. Every NaN in a key is the same object,
because `nan != nan` and a dict would not find it otherwise. A `-0.0` in a key becomes `0.0`, as in
Spark's grouping.

`drop_late` removes the rows of a batch that are late. By which watermark they are, the task decides
(`tasks.stage_times`) and says with each call (`Moment.late_ms`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.continuous.operators.contract import Row
from epochal.errors import OptionError
from epochal.record_batches import FEW_ROWS, batch_of
from epochal.state.rows.arrow_types import spark_schema
from epochal.state.rows.types import StructType

Array: TypeAlias = Any
"""An Arrow array. pyarrow's stubs are typed by element, which code over any column cannot use."""

NAN = float("nan")

_SAME = frozenset(
    kind.id
    for kind in (
        *(pa.bool_(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.decimal128(1)),
    )
)
"""Types whose values a store holds as Python does: their conversion needs no further tests."""

_SAME_OUT = _SAME | {pa.float32().id, pa.float64().id}
"""The same for values that leave a store. In keys, floats must be made canonical."""


def cells(column: Array, *, keys: bool = False) -> list[Any]:
    """The column's values as a store holds them. With `keys`, they can be used as dict keys."""
    if column.type.id in _SAME:
        return _list(column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    types = pa.types
    if types.is_timestamp(kind):
        return _list(micros(column))
    if types.is_date(kind):
        return _list(column.cast(pa.date32()).cast(pa.int32()))
    if types.is_duration(kind):
        return _list(column.cast(pa.duration("us"), safe=False).cast(pa.int64()))
    if types.is_time(kind):
        return _list(column.cast(pa.time64("ns")).cast(pa.int64()))
    if types.is_floating(kind) and keys:
        return [_canonical_float(value) for value in column.to_pylist()]
    if types.is_struct(kind):
        members = [cells(column.field(i), keys=keys) for i in range(kind.num_fields)]
        rows = list(zip(*members, strict=True)) if members else [()] * len(column)
        if not column.null_count:
            return rows
        valid = column.is_valid().to_pylist()
        return [row if there else None for row, there in zip(rows, valid, strict=True)]
    if types.is_map(kind):
        return cells(column.cast(_entries(kind)), keys=keys)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _sliced(cells(column.flatten(), keys=keys), column)
    return _list(column)


def keys_of(batch: pa.RecordBatch, columns: Sequence[int]) -> list[Row]:
    """The values of the key columns, row by row."""
    if not columns:
        return [()] * batch.num_rows
    return list(zip(*(cells(batch.column(index), keys=True) for index in columns), strict=True))


def key_schema(schema: pa.Schema, names: Sequence[str]) -> StructType:
    """The schema of a key that consists of these columns."""
    return spark_schema(pa.schema([schema.field(name) for name in names]))


def hashable(value: Any) -> Any:
    """Convert a value read from a store to the form that `cells(..., keys=True)` returns."""
    if type(value) is list or type(value) is tuple:
        return tuple(hashable(element) for element in value)
    return _canonical_float(value) if type(value) is float else value


def arrow_column(values: Sequence[Any], kind: pa.DataType) -> Array:
    """Convert values of a store to a column of the type `kind`."""
    if kind.id in _SAME_OUT:
        return pa.array(values, kind)
    types = pa.types
    if types.is_struct(kind):
        absent = [value is None for value in values]
        fields = [kind.field(i) for i in range(kind.num_fields)]
        members = [
            arrow_column([None if value is None else value[i] for value in values], field.type)
            for i, field in enumerate(fields)
        ]
        return pa.StructArray.from_arrays(members, fields=fields, mask=pa.array(absent))
    if types.is_timestamp(kind):
        stamps: Array = pa.array(values, pa.int64()).view(pa.timestamp("us", tz=kind.tz))
        return stamps if kind.unit == "us" else stamps.cast(kind)
    if types.is_duration(kind):
        return pa.array(values, pa.int64()).cast(pa.duration("us")).cast(kind)
    if types.is_time(kind):
        return pa.array(values, pa.int64()).cast(pa.time64("ns")).cast(kind, safe=False)
    if types.is_date(kind):
        return pa.array(values, pa.int32()).cast(pa.date32()).cast(kind)
    if types.is_map(kind):
        entries = arrow_column(values, _entries(kind))
        absent = [*(value is None for value in values), False]
        starts = pa.array(entries.offsets.to_numpy(), pa.int32(), mask=np.array(absent))
        make_map: Any = pa.MapArray.from_arrays
        return make_map(starts, entries.values.field(0), entries.values.field(1), type=kind)
    if types.is_list(kind) and not types.is_primitive(kind.value_type):
        flat = [element for value in values if value is not None for element in value]
        offsets: list[int | None] = [0]
        for value in values:
            offsets.append((offsets[-1] or 0) + (0 if value is None else len(value)))
        mask = pa.array([value is None for value in values])
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), arrow_column(flat, kind.value_type), type=kind, mask=mask
        )
    return pa.array(values, kind)


class StoredBatches:
    """Makes batches of values of a store."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema, self._struct = schema, pa.struct(list(schema))
        self._are_same = all(kind.id in _SAME_OUT for kind in schema.types)

    def batch(self, columns: Sequence[Sequence[Any]], rows: int) -> pa.RecordBatch:
        """Convert columns of values to a batch of `rows` rows. Arrow arrays stay as they are."""
        if _has_arrays(columns):
            arrays = [
                column if isinstance(column, pa.Array) else arrow_column(column, kind)
                for column, kind in zip(columns, self._schema.types, strict=True)
            ]
            return batch_of(arrays, self._schema, rows)
        if columns and self._are_same and rows < FEW_ROWS:
            structs: Array = pa.array(list(zip(*columns, strict=True)), self._struct)
            return pa.RecordBatch.from_struct_array(structs)
        arrays = list(map(arrow_column, columns, self._schema.types))
        return batch_of(arrays, self._schema, rows)


def _has_arrays(columns: Sequence[Sequence[Any]]) -> bool:
    for column in columns:  # noqa: SIM110  `any` is slower
        if isinstance(column, pa.Array):
            return True
    return False


def micros(column: Array) -> Array:
    """A timestamp column as microseconds since 1970, in an int64 column."""
    if not pa.types.is_timestamp(column.type):
        raise OptionError(
            f"event time must be a timestamp, but the column is of type {column.type}. Cast it "
            f"before you use it as event time"
        )
    if column.type.unit != "us":
        column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    return column.view(pa.int64())


def event_times(column: Array) -> Array:
    """Event time in microseconds: a timestamp, or the end of a window."""
    return micros(column.flatten()[1] if pa.types.is_struct(column.type) else column)


def drop_late(batch: pa.RecordBatch, ends: Array, late_ms: int) -> tuple[pa.RecordBatch, int]:
    """Remove rows whose end (in microseconds) is at or before `late_ms`. Null ends are kept.

    Returns the other rows, and how many were late.
    """
    if late_ms < 0 or not batch.num_rows:
        return batch, 0
    first = pc.min(ends).as_py()
    if first is None or first > late_ms * 1000:
        return batch, 0
    late: Array = pc.less_equal(ends, pa.scalar(late_ms * 1000, pa.int64()))
    timely = batch.filter(pc.invert(late.fill_null(False)))
    return timely, batch.num_rows - timely.num_rows


def key_sorter(floats: bool) -> Callable[[Iterable[Row]], list[Row]]:
    """A function that sorts keys in Spark's order: ascending, nulls first, NaN last."""

    def by_value(keys: Iterable[Row]) -> list[Row]:
        ordered = list(keys)
        try:
            ordered.sort()
        except TypeError:  # nulls cannot be compared
            ordered.sort(key=_rank)
        return ordered

    def by_rank(keys: Iterable[Row]) -> list[Row]:
        return sorted(keys, key=_rank)

    return by_rank if floats else by_value


def holds_floats(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(holds_floats(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_floating(kind)


def _entries(kind: pa.DataType) -> pa.DataType:
    """The type of a map as a list of pairs."""
    map_type: Any = kind
    return pa.list_(pa.struct([map_type.key_field, map_type.item_field]))


def _rank(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    if type(value) is tuple:
        return (1, tuple(_rank(element) for element in value))
    return (2, 0) if value is NAN else (1, value)


def _canonical_float(value: float | None) -> float | None:
    if value is None:
        return None
    return NAN if value != value else value + 0.0  # the addition turns -0.0 into 0.0


def _list(column: Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _sliced(flat: list[Any], column: Array) -> list[Any]:
    rows: list[Any] = []
    index = 0
    for length in pc.list_value_length(column).to_pylist():
        if length is None:
            rows.append(None)
        else:
            rows.append(tuple(flat[index : index + length]))
            index += length
    return rows
