"""Arrow scalars and columns: repeated, and given the type that a plan says. Pure."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Value

Array: TypeAlias = Any
Kind: TypeAlias = Any
"""An Arrow type. The stubs do not know that a list type has a `value_type`."""

arrow: Any = pa  # its stubs are too strict about types that are known at run time only


def as_column(value: Value, rows: int) -> Value:
    """Repeat a scalar `rows` times; a column stays as it is."""
    if not isinstance(value, pa.Scalar):
        return value
    # Arrow cannot repeat a list or a map zero times.
    return arrow.repeat(value, rows) if rows else arrow.nulls(0, value.type)


def column_of(value: Value, rows: int, kind: pa.DataType) -> Value:
    """Convert a value to a column of the type `kind` with `rows` rows."""
    value = as_column(value, rows)
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    return retyped(value, kind)


def retyped(column: Array, kind: Kind) -> Array:
    """A column with the type `kind`, which differs at most in names and in what may be null."""
    if column.type == kind:
        return column
    if pa.types.is_null(column.type):
        return arrow.nulls(len(column), kind)
    if pa.types.is_nested(kind) and _has_layout(column.type, kind):
        # The same buffers under other names: nothing is copied or checked.
        _, buffers = column.__arrow_c_array__()
        return arrow.Array._import_from_c_capsule(kind.__arrow_c_schema__(), buffers)
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        fields = list(kind)
        if not fields:
            return column
        members = [retyped(column.field(i), field.type) for i, field in enumerate(fields)]
        return pa.StructArray.from_arrays(members, fields=fields, mask=_nulls(column))
    if pa.types.is_nested(kind) and pa.types.is_nested(column.type):
        return _retyped_list(column, kind)
    return column.cast(kind)


def _has_layout(given: Kind, wanted: Kind) -> bool:
    """Whether values of two types have the same buffers."""
    if not given.num_fields or not wanted.num_fields:
        return bool(given == wanted)
    return (
        given.id == wanted.id
        and given.num_fields == wanted.num_fields
        and all(
            _has_layout(given.field(i).type, wanted.field(i).type) for i in range(given.num_fields)
        )
    )


def _retyped_list(column: Array, kind: Kind) -> Array:
    mask = _nulls(column)
    parts = [column]
    if pa.types.is_map(column.type):
        starts = arrow.array(np.asarray(column.offsets))
        parts = [
            arrow.ListArray.from_arrays(starts, part, mask=mask)
            for part in (column.keys, column.items)
        ]
    counts = parts[0].value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    elements = [part.flatten() for part in parts]
    if pa.types.is_map(kind):
        if len(elements) == 1:
            elements = [elements[0].field(0), elements[0].field(1)]
        keys, items = retyped(elements[0], kind.key_type), retyped(elements[1], kind.item_type)
        return arrow.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    return arrow.ListArray.from_arrays(
        offsets, retyped(elements[0], kind.value_type), type=kind, mask=mask
    )


def _nulls(column: Array) -> Array:
    return column.is_null() if column.null_count else arrow.array(np.zeros(len(column), bool))
