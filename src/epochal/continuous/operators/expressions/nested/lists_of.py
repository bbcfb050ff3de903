"""Takes arrays and maps apart into flat columns, and puts flat columns together again. Pure.

All elements of a batch are one column, so a function computes them in one call, whatever the number
of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.values_of import as_column

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

Array: TypeAlias = Any
Kind: TypeAlias = Any
"""An Arrow type. The stubs do not know that a list type has a `value_type`."""

arrow: Any = pa  # its stubs are too strict about types that are known at run time only

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Lists:
    """A column of arrays or maps. The elements of a map are structs of key and value."""

    elements: Array
    """The elements of all rows, one after the other."""
    counts: Ints
    """The number of elements per row; 0 for a null."""
    nulls: Flags

    @property
    def starts(self) -> Ints:
        """The place of each row's first element."""
        return np.cumsum(self.counts) - self.counts

    @property
    def row_of(self) -> Ints:
        """The row of each element."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def position_of(self) -> Ints:
        """The position of each element in its row, from 0."""
        return np.arange(len(self.elements)) - np.repeat(self.starts, self.counts)

    @property
    def element_nulls(self) -> Flags:
        return null_flags_of(self.elements)

    def any(self, flags: Flags) -> Flags:
        """Whether any element of a row has its flag set."""
        return np.bincount(self.row_of[flags], minlength=len(self.counts)) > 0

    def kept(self, flags: Flags, kind: Kind) -> Array:
        """The column without the elements whose flag is not set."""
        counts = np.bincount(self.row_of[flags], minlength=len(self.counts))
        return list_column(taken(self.elements, np.flatnonzero(flags)), counts, self.nulls, kind)

    def reordered(self, order: Ints, kind: Kind) -> Array:
        """The column with the elements in a new order, in which no element changes its row."""
        return list_column(taken(self.elements, order), self.counts, self.nulls, kind)


def lists_of(column: Array) -> Lists:
    """Take a column of arrays or maps apart."""
    if pa.types.is_map(column.type):
        kind = column.type
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        column = column.cast(pa.list_(entry))
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return Lists(column.flatten(), counts, null_flags_of(column))


def list_column(elements: Array, counts: Ints, nulls: Flags, kind: Kind) -> Array:
    """A column of arrays or maps of the type `kind`. Rows that are null have no elements."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    mask = pa.array(nulls)
    if pa.types.is_map(kind):
        keys = retyped(elements.field(0), kind.key_type)
        items = retyped(elements.field(1), kind.item_type)
        return arrow.MapArray.from_arrays(offsets, keys, items, type=kind, mask=mask)
    elements = retyped(elements, kind.value_type)
    return arrow.ListArray.from_arrays(offsets, elements, type=kind, mask=mask)


def struct_column(members: Sequence[Array], kind: Kind, nulls: Flags | None = None) -> Array:
    """A column of structs of the type `kind`."""
    fields = list(kind)
    columns = [retyped(each, field.type) for each, field in zip(members, fields, strict=True)]
    mask = None if nulls is None else pa.array(nulls)
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def retyped(column: Array, kind: Kind) -> Array:
    """A column with the type `kind`, which differs at most in names and in what may be null."""
    if column.type == kind:
        return column
    if pa.types.is_null(column.type):
        return arrow.nulls(len(column), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        members = [column.field(i) for i in range(column.type.num_fields)]
        return struct_column(members, kind, null_flags_of(column))
    if pa.types.is_nested(kind) and pa.types.is_nested(column.type):
        lists = lists_of(column)
        return list_column(lists.elements, lists.counts, lists.nulls, kind)
    return column.cast(kind)


def taken(column: Array, places: Ints, missing: Flags | None = None) -> Array:
    """The values at some places; null where `missing` is set."""
    return column.take(pa.array(places.astype(np.int64), mask=missing))


def without_negative_zero(column: Array) -> Array:
    """Floating-point numbers with 0.0 for -0.0. Other columns stay as they are."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.add(column, pa.scalar(0.0, column.type))


def interleaved(columns: Sequence[Array]) -> Array:
    """The first values of all columns, then the second ones, and so on."""
    rows = len(columns[0])
    order = np.arange(len(columns) * rows).reshape(len(columns), rows).T.ravel()
    return taken(pa.concat_arrays(columns), order)


def null_flags_of(column: Array) -> Flags:
    """Which values are null."""
    if column.null_count == 0:
        return np.zeros(len(column), bool)
    found: Flags = column.is_null().to_numpy(zero_copy_only=False)
    return found


def bool_column(flags: Flags, nulls: Flags) -> Array:
    """A column of booleans."""
    return pa.array(flags, mask=nulls)


def ints_of(column: Array) -> Ints:
    """The integers of a column; 0 for null."""
    found: Ints = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def on_columns(function: Function) -> Function:
    """A function that takes columns only. Scalars are repeated for it."""

    def apply(call: Call, *values: Value) -> Value:
        rows = next((len(value) for value in values if not isinstance(value, pa.Scalar)), None)
        made = function(call, *(as_column(value, 1 if rows is None else rows) for value in values))
        return made[0] if rows is None else made

    return apply


def all_on_columns(functions: dict[str, Callable[..., Value]]) -> dict[str, Function]:
    """The same table, of functions that take scalars as well."""
    return {name: on_columns(function) for name, function in functions.items()}
