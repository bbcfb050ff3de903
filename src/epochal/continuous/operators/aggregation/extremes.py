"""Least, greatest, first and last values, with the buffers that Spark keeps for them. Pure.

Values are ordered as Spark orders them: NaN equals itself and is larger than any number, -0.0
equals 0.0, text is ordered by its bytes. Of equal values the earlier one is kept.

Note: Arrow ignores NaN and does not say which of -0.0 and 0.0 it keeps. Batches with either are
grouped in Python.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.continuous.operators.aggregation.calls import AggregateCall, ArrowFold, Fold
from epochal.continuous.operators.aggregation.sums import as_they_are
from epochal.continuous.operators.cells import Array
from epochal.errors import OptionError
from epochal.state.rows.arrow_types import spark_type
from epochal.state.rows.types import AtomicType, StructField

Less: TypeAlias = Callable[[Any, Any], bool]

_BOOLEAN = AtomicType("boolean")


def minimum(call: AggregateCall, kinds: Sequence[pa.DataType]) -> Fold:
    """The least value."""
    return _extreme(call, kinds[0], "min")


def maximum(call: AggregateCall, kinds: Sequence[pa.DataType]) -> Fold:
    """The greatest value."""
    return _extreme(call, kinds[0], "max")


def first(call: AggregateCall, kinds: Sequence[pa.DataType]) -> Fold:
    """The value of the first row, or with `ignoreNulls` the first value that is not null."""
    ignores_nulls = bool(call.extra.get("ignoreNulls", False))

    def update(kept: tuple[Any, bool], value: Any) -> tuple[Any, bool]:
        if kept[1] or (ignores_nulls and value is None):
            return kept
        return (value, True)

    return _of_one_row("first", kinds[0], update, lambda a, b: a if a[1] else b)


def last(call: AggregateCall, kinds: Sequence[pa.DataType]) -> Fold:
    """The value of the last row, or with `ignoreNulls` the last value that is not null."""
    ignores_nulls = bool(call.extra.get("ignoreNulls", False))

    def update(kept: tuple[Any, bool], value: Any) -> tuple[Any, bool]:
        return kept if ignores_nulls and value is None else (value, True)

    return _of_one_row("last", kinds[0], update, lambda a, b: b if b[1] else a)


def _ordering(call: AggregateCall, kind: pa.DataType) -> Less:
    if pa.types.is_nested(kind):
        raise OptionError(
            f"{call.function} of {call.arguments[-1]!r}: values of type {kind} are ordered only in "
            f"DataFrames, by Spark's own code"
        )
    return _less_with_nan if pa.types.is_floating(kind) else operator.lt


def _less_with_nan(a: float, b: float) -> bool:
    return a < b or (b != b and a == a)


def _extreme(call: AggregateCall, kind: pa.DataType, name: str) -> Fold:
    less = _ordering(call, kind)

    def least(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        return b if less(b, a) else a

    def greatest(a: Any, b: Any) -> Any:
        if a is None or b is None:
            return a if b is None else b
        return b if less(a, b) else a

    better = least if name == "min" else greatest
    arrow = None
    if not (pa.types.is_duration(kind) or pa.types.is_time(kind)):
        differs = _has_nan_or_negative_zero if pa.types.is_floating(kind) else None
        arrow = ArrowFold((name,), lambda found: found[0], differs=differs)
    return Fold(
        fields=(StructField(name, spark_type(kind)),),
        new=lambda: None,
        update=better,
        merge=better,
        results=as_they_are,
        arrow=arrow,
    )


def _of_one_row(
    name: str,
    kind: pa.DataType,
    update: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any],
) -> Fold:
    return Fold(
        fields=(StructField(name, spark_type(kind)), StructField("valueSet", _BOOLEAN)),
        new=lambda: (None, False),
        update=update,
        merge=merge,
        results=lambda kept: [value for value, _ in kept],
        arrow=ArrowFold((name,), lambda found: list(zip(found[0], found[1], strict=True))),
    )


def _has_nan_or_negative_zero(column: Array) -> bool:
    if bool(pc.any(pc.is_nan(column)).as_py()):
        return True
    values = column.drop_null().to_numpy(zero_copy_only=False)
    return bool(np.any(np.signbit(values) & (values == 0)))
