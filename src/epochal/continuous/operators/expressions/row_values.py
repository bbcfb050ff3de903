"""Arrow columns as lists of Python values, for functions that Arrow has no kernel for. Pure.

Dates are days and timestamps microseconds, so that all of Spark's years are possible. Texts may
contain bytes that are not UTF-8: Spark keeps them, and Java reads them as replacement characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Value
from epochal.continuous.operators.expressions.values_of import as_column

Row: TypeAlias = Callable[..., Any]

Kind: TypeAlias = Any
"""An Arrow type. The stubs of `pa.DataType` lack what only some types have, such as a scale."""


def storage(kind: Kind) -> Kind:
    """The type with numbers in place of dates, timestamps and durations."""
    types = pa.types
    if types.is_date(kind):
        return pa.int32()
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time(kind):
        return pa.int64()
    if types.is_map(kind):
        return pa.map_(storage(kind.key_type), storage(kind.item_type))
    if types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, storage(kind.value_type)))
    if types.is_struct(kind):
        members = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([pa.field(m.name, storage(m.type)) for m in members])
    return kind


def python_rows(value: Value) -> list[Any]:
    """The values of a column."""
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    stored = storage(value.type)
    if stored != value.type:
        value = value.cast(stored)
    try:
        return list(value.to_pylist())
    except UnicodeDecodeError:
        return list(readable(value).to_pylist())


def readable(value: Value) -> Value:
    """The column with replacement characters for bytes that are not UTF-8."""
    kind = value.type
    if pa.types.is_string(kind):
        raw = value.cast(pa.binary()).to_pylist()
        return pa.array([None if v is None else v.decode(errors="replace") for v in raw], kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(value.offsets, readable(value.values), mask=value.is_null())
    if pa.types.is_struct(kind):
        members = [readable(value.field(i)) for i in range(kind.num_fields)]
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(members, fields=fields, mask=value.is_null())
    return value


def arrow_column(rows: Iterable[Any], kind: pa.DataType) -> Value:
    """A column of values such as `python_rows` returns."""
    stored = storage(kind)
    made = pa.array(rows, stored)
    return made if stored == kind else made.cast(kind)


def by_row(function: Row, kind: pa.DataType, *values: Value, nulls: bool = False) -> Value:
    """Call a function for every row. Null if an argument is, unless the function takes nulls."""
    count = next((len(v) for v in values if not isinstance(v, pa.Scalar)), None)
    columns = [_repeated(value, 1 if count is None else count) for value in values]
    if nulls:
        made = [function(*row) for row in zip(*columns, strict=True)]
    elif len(columns) == 1:
        made = [None if v is None else function(v) for v in columns[0]]
    else:
        made = [None if None in row else function(*row) for row in zip(*columns, strict=True)]
    found = arrow_column(made, kind)
    return found[0] if count is None else found


def _repeated(value: Value, count: int) -> list[Any]:
    if isinstance(value, pa.Scalar):
        return python_rows(as_column(value, 1)) * count
    return python_rows(value)
