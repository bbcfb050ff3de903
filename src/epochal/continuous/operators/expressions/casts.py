"""Casts where Arrow's result is Spark's for sure, by pairs of types. Pure.

Local times are computed by Arrow's time zones for the years in which they are complete and equal to
Java's. A local time that a clock change repeats or skips is left to Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

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

Cast: TypeAlias = Callable[[Value, Any, str], Value]
"""Takes values, the type that they shall have, and the time zone."""


def cast(value: Value, kind: pa.DataType, zone: str = "UTC") -> Value:
    """Cast `value` to `kind` as Spark does. Local times are in `zone`."""
    if value.type == kind:
        return value
    name = cast_name(value.type, kind)
    if name is None:
        raise AskSpark
    return CASTS[name](value, kind, zone)


@functools.lru_cache(maxsize=1024)
def cast_name(source: Any, kind: Any) -> str | None:
    """The cast between two types, as `CASTS` calls it; None if Arrow does not evaluate it."""
    name = f"CAST({_family(source)} AS {_family(kind)})"
    fits = name in CASTS
    if types.is_decimal(kind):
        fits = fits and _has_digits(kind, source)
    elif types.is_timestamp(source) and types.is_integer(kind):
        fits = fits and kind == pa.int64()
    return name if fits else None


def _has_digits(kind: Any, source: Any) -> bool:
    """Whether a decimal type has a place for every digit of another type."""
    digits = kind.precision - kind.scale
    if types.is_integer(source):
        return bool(digits >= _DIGITS[source.bit_width])
    return bool(digits >= source.precision - source.scale and kind.scale >= source.scale)


def _family(kind: Any) -> str:
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    for name, is_of in _FAMILIES.items():
        if is_of(kind):
            return name
    return str(kind)


_FAMILIES: dict[str, Callable[[Any], bool]] = {
    "integer": types.is_integer,
    "double": types.is_floating,
    "decimal": types.is_decimal,
    "string": types.is_string,
    "binary": types.is_binary,
    "boolean": types.is_boolean,
    "date": types.is_date,
}


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


def _whole_numbers(value: Value, kind: Any, zone: str) -> Value:
    """The whole parts, if all of them are within the type's range: every mode agrees there."""
    whole = pc.trunc(value)
    within = pc.less(pc.abs(whole), pa.scalar(2.0 ** (kind.bit_width - 1)))  # false for NaN
    if pc.all(as_column(within, 1)).as_py() is False:
        raise AskSpark
    return pc.cast(whole, kind, safe=False)


def _text_of_bytes(value: Value, kind: Any, zone: str) -> Value:
    # Spark keeps bytes that are not UTF-8. A view costs a quarter of a cast of few rows.
    if isinstance(value, pa.Array):
        return value.view(kind)
    return pc.cast(value, kind, safe=False)


def _integer_of_text(value: Value, kind: Any, zone: str) -> Value:
    matched = as_column(pc.match_substring_regex(value, r"^-?[0-9]{1,18}$"), 1)
    if not np.all(matched.fill_null(True).to_numpy(zero_copy_only=False)):
        raise AskSpark
    return pc.cast(value, kind)


def _checked(value: Value, kind: Any, zone: str) -> Value:
    return pc.cast(value, kind)


def _unchecked(value: Value, kind: Any, zone: str) -> Value:
    return pc.cast(value, kind, safe=False)


def _date_of_time(value: Value, kind: Any, zone: str) -> Value:
    return pc.cast(pc.floor_temporal(local_times(value, zone), unit="day"), kind, safe=False)


def _zoned_time(value: Value, kind: Any, zone: str) -> Value:
    return zoned(local_times(value, zone), kind, zone)


CASTS: dict[str, Cast] = {
    "CAST(binary AS string)": _text_of_bytes,
    "CAST(boolean AS string)": lambda value, kind, zone: pc.if_else(value, "true", "false"),
    "CAST(date AS timestamp)": lambda value, kind, zone: zoned(_midnight(value), kind, zone),
    "CAST(date AS timestamp_ntz)": lambda value, kind, zone: _midnight(value),
    "CAST(decimal AS decimal)": _checked,
    "CAST(double AS double)": _unchecked,
    "CAST(double AS integer)": _whole_numbers,
    "CAST(integer AS decimal)": _checked,
    "CAST(integer AS double)": _unchecked,
    "CAST(integer AS integer)": _checked,
    "CAST(integer AS string)": _checked,
    "CAST(string AS binary)": _checked,
    "CAST(string AS integer)": _integer_of_text,
    "CAST(timestamp AS date)": _date_of_time,
    "CAST(timestamp AS integer)": lambda value, kind, zone: whole_units(value, 1_000_000),
    "CAST(timestamp AS timestamp_ntz)": _zoned_time,
    "CAST(timestamp_ntz AS date)": _date_of_time,
    "CAST(timestamp_ntz AS timestamp)": _zoned_time,
}
"""The casts that Arrow evaluates. Integers are of all widths, doubles floats too."""


FUNCTIONS: dict[str, Function] = {
    "Cast": lambda call, value: cast(value, call.type, str(call.extra.get("zone", "UTC")))
}
