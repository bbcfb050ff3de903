"""Dates, timestamps and durations as integers, for functions that compute with them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.lists_of import null_flags_of, on_columns
from epochal.errors import OptionError

Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

MICROS = 1_000_000
DAY_MICROS = 86_400 * MICROS

_INT_LIMIT = 2**31


def ints_of_times(column: Any) -> Ints:
    """Days, microseconds, or the unscaled values of decimals; 0 for null."""
    kind = column.type
    if pa.types.is_decimal(kind):
        scaled = column.cast(pa.decimal128(38, kind.scale)).fill_null(0)
        words = np.frombuffer(scaled.buffers()[1], np.int64)[2 * scaled.offset :: 2]
        return words[: len(column)].copy()
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    found: Ints = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def column_of_ints(values: Ints, nulls: Flags, kind: pa.DataType) -> Any:
    """A column of dates, timestamps, durations or numbers; OptionError if a value does not fit."""
    if pa.types.is_decimal(kind):
        high = values >> 63
        words = np.column_stack([values, high]).astype(np.int64).tobytes()
        valid = pa.array(~nulls).buffers()[1]
        return pa.Array.from_buffers(kind, len(values), [valid, pa.py_buffer(words)])
    if kind.bit_width == 32:
        check(~nulls & ((values >= _INT_LIMIT) | (values < -_INT_LIMIT)), "a result overflows")
        values = np.where(nulls, 0, values).astype(np.int32)
    return pa.array(values, mask=nulls).cast(kind)


def check(failed: Flags, problem: str) -> None:
    """OptionError if a row has failed."""
    if failed.any():
        raise OptionError(
            f"DATETIME_OVERFLOW: {problem}. Filter such rows out, or use a try_ function."
        )


def checked_add(left: Ints, right: Ints, valid: Flags) -> Ints:
    """The sum; OptionError if it does not fit into 64 bits."""
    total = left + right
    check(valid & (((left ^ total) & (right ^ total)) < 0), "a timestamp overflows")
    return total


def checked_multiply(left: Ints, factor: Ints | int, valid: Flags) -> Ints:
    """The product; OptionError if it does not fit into 64 bits."""
    product = left * np.int64(factor) if isinstance(factor, int) else left * factor
    exact = left.astype(np.float64) * factor
    check(valid & (np.abs(exact - product) > 2.0**60), "a timestamp overflows")
    return product


@dataclass(frozen=True, slots=True)
class Given:
    """What a function of integers knows besides them."""

    call: Call
    valid: Flags
    """The rows without null."""
    zone: str
    """The zone of local times. A timestamp without zone is a local time already: that is UTC."""


Computation: TypeAlias = Callable[..., Any]
"""Takes a Given and the integers of all arguments. Returns integers, and possibly the flags of
further rows that are null."""


def on_ints(function: Computation, kind: pa.DataType | None = None) -> Function:
    """A function of integers, with null where an argument is null.

    `kind` is the type of the result for a call that does not say it.
    """

    def apply(call: Call, *columns: Value) -> Value:
        nulls = np.logical_or.reduce([null_flags_of(each) for each in columns])
        zoned = any(getattr(each.type, "tz", None) for each in (call, *columns))
        given = Given(call, ~nulls, str(call.extra.get("zone", "UTC")) if zoned else "UTC")
        made = function(given, *(ints_of_times(each) for each in columns))
        values, more = made if isinstance(made, tuple) else (made, nulls)
        result = kind if kind is not None and pa.types.is_null(call.type) else call.type
        return column_of_ints(values, nulls | more, result)

    return on_columns(apply)


def distinct_texts(column: Any) -> Iterator[tuple[str, Flags]]:
    """The different texts of a column, and the rows of each."""
    encoded = column.dictionary_encode()
    indices = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    for number, text in enumerate(encoded.dictionary.to_pylist()):
        yield text, indices == number
