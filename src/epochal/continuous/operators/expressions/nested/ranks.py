"""Numbers values by Spark's order: equal values get equal numbers, larger ones larger ones. Pure.

With the numbers, every comparison of values of any type is one of integers. In Spark, NaN equals
itself and is the largest number, 0.0 equals -0.0, texts are ordered by their bytes, structs by
their members, arrays by their elements, and null comes before all values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.nested.lists_of import (
    Array,
    Ints,
    lists_of,
    null_flags_of,
    retyped,
)

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

NULL = -1
"""The rank of null."""


def ranks(*columns: Array) -> list[Ints]:
    """The ranks of the values of some columns, which are comparable across the columns."""
    kind = next((each.type for each in columns if not pa.types.is_null(each.type)), pa.null())
    found = _ranks(pa.concat_arrays([retyped(each, kind) for each in columns]))
    return np.split(found, np.cumsum([len(each) for each in columns])[:-1])


def _ranks(column: Array) -> Ints:
    kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), NULL)
    if pa.types.is_struct(kind):
        members = [_ranks(column.field(i)) for i in range(kind.num_fields)]
        found = _dense(np.column_stack(members)) if members else np.zeros(len(column), np.int64)
    elif pa.types.is_list(kind):
        lists = lists_of(column)
        parts = np.split(_ranks(lists.elements), lists.starts[1:]) if len(column) else []
        rows = [tuple(part.tolist()) for part in parts]
        order = {row: number for number, row in enumerate(sorted(set(rows)))}
        found = np.array([order[row] for row in rows], np.int64)
    elif pa.types.is_floating(kind):
        values = column.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
        found = _dense(values)
    elif pa.types.is_temporal(kind) and kind != pa.month_day_nano_interval():
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        found = _dense(column.cast(width).fill_null(0).to_numpy(zero_copy_only=False))
    elif pa.types.is_integer(kind):
        found = _dense(column.fill_null(0).to_numpy(zero_copy_only=False))
    else:
        found = pc.rank(column, tiebreaker="dense").to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where(null_flags_of(column), NULL, found)


def _dense(values: Any) -> Ints:
    axis = 0 if values.ndim > 1 else None
    found: Ints = np.unique(values, axis=axis, return_inverse=True)[1].reshape(-1)
    return found
