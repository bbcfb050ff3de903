"""Spark's CAST for Arrow values. Pure.

With ANSI mode on, a value that does not fit is an error; otherwise it becomes null, or wraps around
as in Java. Pairs of types that Arrow casts as Spark does use Arrow; the rest are cast row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Mode, Value
from epochal.continuous.operators.expressions.nested.lists_of import null_flags_of
from epochal.continuous.operators.expressions.row_casts import NoValue, caster, or_null
from epochal.continuous.operators.expressions.row_values import by_row
from epochal.continuous.operators.expressions.times.time_values import (
    DAY_MICROS,
    Ints,
    checked_multiply,
    column_of_ints,
    ints_of_times,
)
from epochal.continuous.operators.expressions.times.zones import to_local, to_utc
from epochal.continuous.operators.expressions.values_of import as_column
from epochal.continuous.operators.spark_values.number_texts import java_text
from epochal.errors import ExpressionError

__all__ = ["FUNCTIONS", "cast", "java_text"]

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name
types = pa.types

_YEAR_2, _YEAR_2037 = -62_100_000_000_000_000, 2_114_380_800_000_000
"""Between them, in microseconds, Arrow's years have four digits and its time zones are complete."""


def cast(value: Value, kind: pa.DataType, mode: Mode = "ansi", zone: str = "UTC") -> Value:
    """Cast `value` to `kind` as Spark does. Local times are in `zone`."""
    if value.type == kind:
        return value
    if types.is_null(value.type):
        return value.cast(kind)
    found = _by_arrow(value, kind, mode, zone)
    if found is not None:
        return found
    function = caster(value.type, kind, mode, zone)
    if mode == "try":
        return by_row(or_null(function), kind, value)
    try:
        return by_row(function, kind, value)
    except NoValue as error:
        raise ExpressionError(
            f"CAST_INVALID_INPUT: {error.args[0]!r} cannot be cast from {value.type} to {kind}. "
            f"Use try_cast to get null instead, or set spark.sql.ansi.enabled to false."
        ) from None


def _by_arrow(value: Value, kind: pa.DataType, mode: Mode, zone: str) -> Value | None:
    """The result, where Arrow can compute what Spark computes; otherwise None."""
    source = value.type
    number = types.is_integer(source) or types.is_floating(source)
    if types.is_integer(source) and types.is_integer(kind):
        return _integers(value, kind, mode)
    if number and types.is_floating(kind):
        return pc.cast(value, kind, safe=False)
    if types.is_floating(source) and types.is_integer(kind):
        return _whole_numbers(value, kind)
    if types.is_string(kind):
        return _texts(value, zone)
    if types.is_string(source) and types.is_binary(kind):
        return pc.cast(value, kind)
    if types.is_string(source) and types.is_integer(kind):
        return _plain_integers(value, kind)
    if types.is_string(source) and types.is_floating(kind):
        return _plain_numbers(value, kind)
    if types.is_decimal(source) and types.is_decimal(kind):
        wider = kind.precision - kind.scale >= source.precision - source.scale
        return pc.cast(value, kind) if wider and kind.scale >= source.scale else None
    if types.is_integer(source) and types.is_decimal(kind):
        digits = len(str(2 ** (source.bit_width - 1)))
        if kind.precision - kind.scale >= digits:
            return pc.cast(value, kind)
    if types.is_date(source) and types.is_timestamp(kind):
        return _on_column(_timestamps_of_dates, value, kind, zone)
    if types.is_timestamp(source) and (types.is_date(kind) or types.is_timestamp(kind)):
        return _on_column(_other_times, value, kind, zone)
    return None


def _on_column(function: Callable[..., Value], value: Value, kind: pa.DataType, zone: str) -> Value:
    column = as_column(value, 1)
    made = function(column, ints_of_times(column), kind, zone)
    return made[0] if isinstance(value, pa.Scalar) else made


def _timestamps_of_dates(column: Value, days: Ints, kind: Any, zone: str) -> Value:
    nulls = null_flags_of(column)
    if kind.tz is None:
        return column_of_ints(checked_multiply(days, DAY_MICROS, ~nulls), nulls, kind)
    return column_of_ints(to_utc(checked_multiply(days, DAY_MICROS, ~nulls), zone), nulls, kind)


def _other_times(column: Value, micros: Ints, kind: Any, zone: str) -> Value:
    """Dates of timestamps, or timestamps with a zone of ones without, or the other way round."""
    nulls = null_flags_of(column)
    if types.is_date(kind):
        local = to_local(micros, zone) if column.type.tz else micros
        return column_of_ints(local // DAY_MICROS, nulls, kind)
    if bool(column.type.tz) == bool(kind.tz):
        return column_of_ints(micros, nulls, kind)
    return column_of_ints((to_utc if kind.tz else to_local)(micros, zone), nulls, kind)


def _integers(value: Value, kind: pa.DataType, mode: Mode) -> Value | None:
    if mode == "legacy" or kind.bit_width >= value.type.bit_width:
        return pc.cast(value, kind, safe=False)
    try:
        return pc.cast(value, kind)
    except pa.ArrowInvalid:
        return None


def _whole_numbers(value: Value, kind: Any) -> Value | None:
    """The whole parts, if all of them are within the type's range: every mode agrees there."""
    whole = pc.trunc(value)
    within = pc.less(pc.abs(whole), pa.scalar(2.0 ** (kind.bit_width - 1)))  # false for NaN
    if pc.all(as_column(within, 1)).as_py() is False:
        return None
    return pc.cast(whole, kind, safe=False)


def _texts(value: Value, zone: str) -> Value | None:
    source = value.type
    if types.is_integer(source):
        return pc.cast(value, pa.string())
    if types.is_boolean(source):
        return pc.if_else(value, "true", "false")
    if types.is_binary(source):
        # Spark keeps bytes that are not UTF-8. A view costs a quarter of a cast of few rows.
        if isinstance(value, pa.Array):
            return value.view(pa.string())
        return pc.cast(value, pa.string(), safe=False)
    if types.is_timestamp(source) and _common_years(value):
        local = pc.cast(value, pa.timestamp("us", zone)) if source.tz else value
        text = pc.strftime(local, "%Y-%m-%d %H:%M:%S")
        return pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")  # it always has six decimals
    return None


def _common_years(value: Value) -> bool:
    """Whether Arrow converts all of these timestamps to local times as Java does."""
    micros = pc.cast(value, pa.int64())
    if isinstance(micros, pa.Scalar):
        return micros.is_valid and _YEAR_2 < micros.as_py() < _YEAR_2037
    ends = pc.min_max(micros).as_py()
    return ends["min"] is None or (ends["min"] > _YEAR_2 and ends["max"] < _YEAR_2037)


def _plain_integers(value: Value, kind: pa.DataType) -> Value | None:
    """Texts of digits only; None if there are others."""
    if not _all_match(value, r"^-?[0-9]{1,18}$"):
        return None
    try:
        return pc.cast(value, kind)
    except pa.ArrowInvalid:
        return None


def _plain_numbers(value: Value, kind: pa.DataType) -> Value | None:
    if kind != pa.float64() or not _all_match(value, r"^-?[0-9]{1,30}(\.[0-9]{1,30})?$"):
        return None
    return pc.cast(value, kind)


def _all_match(value: Value, pattern: str) -> bool:
    matched = pc.match_substring_regex(value, pattern)
    if isinstance(matched, pa.Scalar):
        return matched.as_py() is not False
    return bool(np.all(matched.fill_null(True).to_numpy(zero_copy_only=False)))


def _cast(call: Call, value: Value) -> Value:
    return cast(value, call.type, call.mode, str(call.extra.get("zone", "UTC")))


FUNCTIONS: dict[str, Function] = {"Cast": _cast}
