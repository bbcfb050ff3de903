"""Casts where Arrow's result is Spark's for sure; all others raise AskSpark. Pure.

Local times are computed by Arrow's time zones for the years in which they are complete and equal to
Java's. A local time that a clock change repeats or skips is left to Spark.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.columns import as_column
from epochal.continuous.operators.expressions.expr import AskSpark, Function, Value

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name
types = pa.types

YEAR_1902, YEAR_2037 = -2_145_916_800_000_000, 2_114_380_800_000_000
"""Between them, in microseconds, Arrow's time zones are complete."""

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


def cast(value: Value, kind: pa.DataType, zone: str = "UTC") -> Value:
    """Cast `value` to `kind` as Spark does. Local times are in `zone`."""
    source = value.type
    if source == kind:
        return value
    if types.is_null(source):
        return value.cast(kind)
    is_number = types.is_integer(source) or types.is_floating(source)
    if types.is_integer(source) and types.is_integer(kind):
        return pc.cast(value, kind)
    if is_number and types.is_floating(kind):
        return pc.cast(value, kind, safe=False)
    if types.is_floating(source) and types.is_integer(kind):
        return _whole_numbers(value, kind)
    if types.is_string(kind):
        return _text(value, zone)
    if types.is_string(source) and types.is_binary(kind):
        return pc.cast(value, kind)
    if types.is_string(source) and types.is_integer(kind):
        _require_match(value, r"^-?[0-9]{1,18}$")
        return pc.cast(value, kind)
    if types.is_string(source) and kind == pa.float64():
        _require_match(value, r"^-?[0-9]{1,30}(\.[0-9]{1,30})?$")
        return pc.cast(value, kind)
    if types.is_decimal(kind):
        return _decimal(value, kind)
    if types.is_date(source) and types.is_timestamp(kind):
        return zoned(_midnight(value), kind, zone)
    if types.is_timestamp(source) and types.is_date(kind):
        return pc.cast(pc.floor_temporal(local_times(value, zone), unit="day"), kind, safe=False)
    if types.is_timestamp(source) and types.is_timestamp(kind):
        return zoned(local_times(value, zone), kind, zone)
    if types.is_timestamp(source) and source.tz and kind == pa.int64():
        return whole_units(value, 1_000_000)
    raise AskSpark


def local_times(value: Value, zone: str) -> Value:
    """Timestamps with a zone as local times; those without one stay as they are."""
    require_years(value)
    if value.type.tz is None:
        return value
    return pc.local_timestamp(pc.cast(value, pa.timestamp("us", arrow_zone(zone))))


def zoned(local: Value, kind: Any, zone: str) -> Value:
    """Local times as timestamps of the type `kind`."""
    if kind.tz is None:
        return local
    require_years(local)
    at = pc.assume_timezone(local, arrow_zone(zone), ambiguous="raise", nonexistent="raise")
    return pc.cast(at, kind)


def arrow_zone(zone: str) -> str:
    """The zone, if Arrow knows it under this name."""
    if zone == "Z" or zone.startswith(("+", "-", "UTC+", "UTC-", "GMT")):
        raise AskSpark
    return zone


def require_years(value: Value) -> None:
    """Ask Spark about times at which Arrow may not know the zone."""
    micros = as_column(pc.cast(value, pa.int64()), 1)
    ends = pc.min_max(micros).as_py()
    if ends["min"] is not None and not (ends["min"] > YEAR_1902 and ends["max"] < YEAR_2037):
        raise AskSpark


def whole_units(value: Value, micros: int) -> Value:
    """Whole seconds or milliseconds since 1970 of timestamps, rounded down."""
    column = as_column(pc.cast(value, pa.int64()), 1)
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False) // micros
    made = pa.array(numbers, pa.int64(), mask=column.is_null().to_numpy(zero_copy_only=False))
    return made[0] if isinstance(value, pa.Scalar) else made


def _midnight(value: Value) -> Value:
    days = as_column(pc.cast(value, pa.int32()), 1)
    ends = pc.min_max(days).as_py()
    if ends["min"] is not None and not (ends["min"] > -700_000 and ends["max"] < 2_900_000):
        raise AskSpark
    micros = pc.multiply(pc.cast(days, pa.int64()), pa.scalar(86_400_000_000, pa.int64()))
    made = pc.cast(micros, pa.timestamp("us"))
    return made[0] if isinstance(value, pa.Scalar) else made


def _decimal(value: Value, kind: Any) -> Value:
    source: Any = value.type
    if types.is_decimal(source):
        wider = kind.precision - kind.scale >= source.precision - source.scale
        if wider and kind.scale >= source.scale:
            return pc.cast(value, kind)
    if types.is_integer(source) and kind.precision - kind.scale >= _DIGITS[source.bit_width]:
        return pc.cast(value, kind)
    raise AskSpark


def _whole_numbers(value: Value, kind: Any) -> Value:
    """The whole parts, if all of them are within the type's range: every mode agrees there."""
    whole = pc.trunc(value)
    within = pc.less(pc.abs(whole), pa.scalar(2.0 ** (kind.bit_width - 1)))  # false for NaN
    if pc.all(as_column(within, 1)).as_py() is False:
        raise AskSpark
    return pc.cast(whole, kind, safe=False)


def _text(value: Value, zone: str) -> Value:
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
    if types.is_date(source):
        return pc.strftime(_midnight(value), "%Y-%m-%d")
    if types.is_timestamp(source):
        text = pc.strftime(local_times(value, zone), "%Y-%m-%d %H:%M:%S")
        return pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), ".")  # it always has six decimals
    raise AskSpark


def _require_match(value: Value, pattern: str) -> None:
    matched = as_column(pc.match_substring_regex(value, pattern), 1)
    if not np.all(matched.fill_null(True).to_numpy(zero_copy_only=False)):
        raise AskSpark


FUNCTIONS: dict[str, Function] = {
    "Cast": lambda call, value: cast(value, call.type, str(call.extra.get("zone", "UTC"))),
}
