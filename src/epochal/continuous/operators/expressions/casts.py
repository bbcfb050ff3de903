"""Spark's CAST for Arrow values. Pure.

With ANSI mode on, a value that does not fit is an error; otherwise it becomes null. Text has Java's
format: a double prints as `1.0E10`, a timestamp without zone and without trailing zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import compute

from epochal.errors import OptionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

Value: TypeAlias = Any

_TRUE = ["t", "true", "y", "yes", "1"]
_FALSE = ["f", "false", "n", "no", "0"]


def cast(value: Value, kind: pa.DataType, *, ansi: bool, zone: str = "UTC") -> Value:
    """Cast `value` to `kind` as Spark does. Local times are in `zone`."""
    if value.type == kind:
        return value
    if pa.types.is_null(value.type):
        return value.cast(kind)
    if pa.types.is_string(kind):
        return _to_text(value, zone)
    if pa.types.is_string(value.type):
        return _from_text(value, kind, zone, ansi=ansi)
    if pa.types.is_floating(value.type) and pa.types.is_integer(kind):
        value = pc.trunc(value)
    if pa.types.is_boolean(kind):
        return pc.not_equal(value, pa.scalar(0, value.type))
    if pa.types.is_decimal(kind) and pa.types.is_floating(value.type):
        value = _each(value, lambda each: Decimal(repr(each)), pa.decimal128(38, 18))
    if pa.types.is_decimal(kind) and pa.types.is_integer(value.type):
        # Arrow requires a precision for all values of the integer type, not only the actual ones.
        # So cast to the largest precision first.
        value = pc.cast(value, pa.decimal128(38, kind.scale))
    if pa.types.is_timestamp(value.type) and pa.types.is_date(kind):
        local = pc.local_timestamp(pc.cast(value, pa.timestamp("us", zone)))
        value = pc.floor_temporal(local, unit="day")
    if pa.types.is_timestamp(value.type) and pa.types.is_integer(kind):
        micros = pc.cast(pc.cast(value, pa.timestamp("us", "UTC")), pa.int64())
        value = pc.cast(pc.floor(pc.divide(pc.cast(micros, pa.float64()), 1e6)), pa.int64())
    if pa.types.is_timestamp(kind) and pa.types.is_integer(value.type):
        value = pc.multiply_checked(pc.cast(value, pa.int64()), 1_000_000)
    try:
        return pc.cast(value, kind)
    except pa.ArrowInvalid as error:
        if ansi:
            raise OptionError(f"CAST_OVERFLOW: a value does not fit in {kind}: {error}.") from None
        return _each(value, lambda each: _fitting(each, kind), kind)


def _to_text(value: Value, zone: str) -> Value:
    kind = value.type
    if pa.types.is_floating(kind):
        return _each(value, java_text, pa.string())
    if pa.types.is_boolean(kind):
        return pc.if_else(value, "true", "false")
    if pa.types.is_timestamp(kind):
        text = pc.strftime(pc.cast(value, pa.timestamp("us", zone)), "%Y-%m-%d %H:%M:%S")
        return pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")  # it always has six decimals
    if pa.types.is_binary(kind) or pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return pc.cast(value, pa.string())
    raise OptionError(f"A cast from {kind} to string is not supported. Use map_in_arrow instead.")


def _from_text(value: Value, kind: pa.DataType, zone: str, *, ansi: bool) -> Value:
    if pa.types.is_binary(kind):
        return pc.cast(value, kind)
    trimmed = pc.utf8_trim_whitespace(value)
    if pa.types.is_boolean(kind):
        lower = pc.utf8_lower(trimmed)
        true = pc.is_in(lower, value_set=pa.array(_TRUE))
        known = pc.or_(true, pc.is_in(lower, value_set=pa.array(_FALSE)))
        _check(ansi and pc.any(pc.and_(pc.is_valid(value), pc.invert(known))).as_py(), kind)
        return pc.if_else(pc.and_(pc.is_valid(value), known), true, pa.scalar(None, pa.bool_()))
    try:
        if pa.types.is_timestamp(kind):
            local = pc.assume_timezone(pc.cast(trimmed, pa.timestamp("us")), zone)
            return pc.cast(local, kind)
        return pc.cast(trimmed, kind)
    except pa.ArrowInvalid as error:
        if ansi:
            raise OptionError(f"CAST_INVALID_INPUT: a text is not a {kind}: {error}.") from None
        return _each(trimmed, lambda each: _fitting(each, kind), kind)


def _check(failed: bool, kind: pa.DataType) -> None:
    if failed:
        raise OptionError(f"CAST_INVALID_INPUT: a text is not a {kind}.")


def _fitting(value: Any, kind: pa.DataType) -> Any:
    try:
        return pc.cast(pa.scalar(value), kind).as_py()
    except pa.ArrowInvalid:
        return None


def _each(value: Value, function: Callable[[Any], Any], kind: pa.DataType) -> Value:
    if isinstance(value, pa.Scalar):
        found = value.as_py()
        return pa.scalar(None if found is None else function(found), kind)
    return pa.array([None if v is None else function(v) for v in value.to_pylist()], kind)


def java_text(value: float) -> str:
    """A double as Java prints it: plain from 0.001 to 10 million, `d.dE±n` outside."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)  # digits before the decimal point
    prefix = "-" if sign else ""
    if 1e-3 <= abs(value) < 1e7:
        if point <= 0:
            return f"{prefix}0.{'0' * -point}{text}"
        whole = text[:point].ljust(point, "0")
        return f"{prefix}{whole}.{text[point:] or '0'}"
    return f"{prefix}{text[0]}.{text[1:] or '0'}E{point - 1}"
