"""Casts, and functions of dates and times, where Arrow's result is Spark's for sure. Pure.

Local times are computed by Arrow's time zones for the years in which they are complete and equal to
Java's. A local time that a clock change repeats or skips is left to Spark.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import AskSpark, Call, Function, Value, as_column

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name
types = pa.types

_YEARS = (-2_145_916_800_000_000, 2_114_380_800_000_000)
"""Between them, in microseconds, Arrow's time zones are complete."""

_DAYS = (-700_000, 2_900_000)
"""Between these days since 1970 Arrow's calendar is Spark's."""

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


def _local_times(value: Value, zone: str) -> Value:
    """Timestamps with a zone as local times; those without one stay as they are."""
    _require_years(value)
    if value.type.tz is None:
        return value
    return pc.local_timestamp(pc.cast(value, pa.timestamp("us", _arrow_zone(zone))))


def _zoned(local: Value, kind: Any, zone: str) -> Value:
    """Local times as timestamps of the type `kind`."""
    if kind.tz is None:
        return local
    _require_years(local)
    at = pc.assume_timezone(local, _arrow_zone(zone), ambiguous="raise", nonexistent="raise")
    return pc.cast(at, kind)


def _arrow_zone(zone: str) -> str:
    """The zone, if Arrow knows it under this name."""
    if zone == "Z" or zone.startswith(("+", "-", "UTC+", "UTC-", "GMT")):
        raise AskSpark
    return zone


def _require_years(value: Value) -> None:
    """Ask Spark about times at which Arrow may not know the zone."""
    _require_within(pc.cast(value, pa.int64()), *_YEARS)


def _require_within(numbers: Value, low: int, high: int) -> None:
    ends = pc.min_max(as_column(numbers, 1)).as_py()
    if ends["min"] is not None and not (ends["min"] > low and ends["max"] < high):
        raise AskSpark


def _whole_units(value: Value, micros: int) -> Value:
    """Whole seconds or milliseconds since 1970 of timestamps, rounded down."""
    column = as_column(pc.cast(value, pa.int64()), 1)
    numbers = column.fill_null(0).to_numpy(zero_copy_only=False) // micros
    units = pa.array(numbers, pa.int64(), mask=column.is_null().to_numpy(zero_copy_only=False))
    return units[0] if isinstance(value, pa.Scalar) else units


def _midnight(value: Value) -> Value:
    days = as_column(pc.cast(value, pa.int32()), 1)
    _require_within(days, *_DAYS)
    micros = pc.multiply(pc.cast(days, pa.int64()), pa.scalar(86_400_000_000, pa.int64()))
    stamps = pc.cast(micros, pa.timestamp("us"))
    return stamps[0] if isinstance(value, pa.Scalar) else stamps


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
    return pc.cast(pc.floor_temporal(_local_times(value, zone), unit="day"), kind, safe=False)


def _zoned_time(value: Value, kind: Any, zone: str) -> Value:
    return _zoned(_local_times(value, zone), kind, zone)


CASTS: dict[str, Cast] = {
    "CAST(binary AS string)": _text_of_bytes,
    "CAST(boolean AS string)": lambda value, kind, zone: pc.if_else(value, "true", "false"),
    "CAST(date AS timestamp)": lambda value, kind, zone: _zoned(_midnight(value), kind, zone),
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
    "CAST(timestamp AS integer)": lambda value, kind, zone: _whole_units(value, 1_000_000),
    "CAST(timestamp AS timestamp_ntz)": _zoned_time,
    "CAST(timestamp_ntz AS date)": _date_of_time,
    "CAST(timestamp_ntz AS timestamp)": _zoned_time,
}
"""The casts that Arrow evaluates. Integers are of all widths, doubles floats too."""


_UTC = ("UTC", "Etc/UTC")
_DAY = 86_400_000_000

_PART = re.compile(
    r"(?<!y)yyyy(?!y)|(?<!M)MM(?!M)|(?<!d)dd(?!d)|(?<!H)HH(?!H)|(?<!m)mm(?!m)|(?<!s)ss(?!s)"
    r"|[-/:., _]|(?<!')'[^']+'(?!')"
)
_WORDS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_UNITS = {"ss": "second", "mm": "minute", "HH": "hour"}
_FEW_TEXTS, _ROWS_PER_TEXT = 64, 8
"""Larger batches are left to Spark's code if they have fewer rows for each text than this: it makes
a text as fast as Arrow does."""


def _precise_timestamp(call: Call, value: Value) -> Value:
    """Microseconds of a timestamp, or the timestamp of microseconds: windows are computed so."""
    if types.is_timestamp(value.type):
        value = value.cast(pa.timestamp("us", value.type.tz))
    if types.is_timestamp(call.type):
        return value.cast(pa.int64()).cast(call.type)
    return value.cast(pa.int64())


def _zone(call: Call) -> str:
    return str(call.extra.get("zone", "UTC"))


def _date_part(kernel: str) -> Function:
    def apply(call: Call, value: Value) -> Value:
        _require_within(pc.cast(value, pa.int32()), *_DAYS)
        return pc.cast(getattr(pc, kernel)(value), pa.int32())

    return apply


def _time_part(kernel: str) -> Function:
    def apply(call: Call, value: Value) -> Value:
        return pc.cast(getattr(pc, kernel)(_local_times(value, _zone(call))), pa.int32())

    return apply


def _date_format(call: Call, value: Value, pattern: Value) -> Value:
    """`date_format`: rows of the same day or minute share one text, which is made once."""
    text = pattern.as_py() if isinstance(pattern, pa.Scalar) else None
    if text is None or _PART.sub("", text):
        raise AskSpark
    parts = _PART.findall(text)
    unit = next((unit for part, unit in _UNITS.items() if part in parts), "day")
    texts = "".join(_WORDS.get(part, part.strip("'").replace("%", "%%")) for part in parts)
    local = pc.floor_temporal(_local_times(value, _zone(call)), unit=unit)
    if isinstance(local, pa.Scalar) or len(local) <= _FEW_TEXTS:
        return pc.strftime(pc.cast(local, pa.timestamp("s")), texts)
    encoded = local.dictionary_encode()
    if len(encoded.dictionary) * _ROWS_PER_TEXT > len(local):
        raise AskSpark
    return pc.strftime(pc.cast(encoded.dictionary, pa.timestamp("s")), texts).take(encoded.indices)


def _add_duration(call: Call, value: Value, interval: Value) -> Value:
    """A timestamp plus an interval shorter than a day, which is as long on every calendar."""
    if types.is_interval(interval.type):
        if not isinstance(interval, pa.Scalar) or not interval.is_valid:
            raise AskSpark
        length = interval.as_py()
        if length.months or length.days or length.nanoseconds % 1000:
            raise AskSpark
        micros = pa.scalar(length.nanoseconds // 1000, pa.int64())
    else:
        micros = pc.cast(interval, pa.int64())
    if value.type.tz is not None and _zone(call) not in _UTC:
        # Spark adds days to the local time: days on which clocks change are not 24 hours long.
        _require_within(micros, -_DAY, _DAY)
    moved = pc.add_checked(pc.cast(value, pa.int64()), micros)
    return pc.cast(moved, value.type)


def _subtract_timestamps(call: Call, left: Value, right: Value) -> Value:
    # Spark subtracts local times: a clock change between them counts.
    if left.type.tz is not None and _zone(call) not in _UTC:
        raise AskSpark
    micros = pc.subtract_checked(pc.cast(left, pa.int64()), pc.cast(right, pa.int64()))
    return pc.cast(micros, call.type)


def _add_days(sign: int) -> Function:
    def apply(call: Call, value: Value, days: Value) -> Value:
        start, count = pc.cast(value, pa.int32()), pc.cast(days, pa.int32())
        kernel = pc.add_checked if sign > 0 else pc.subtract_checked
        return pc.cast(kernel(start, count), pa.date32())

    return apply


def _of_units(micros: int) -> Function:
    def apply(call: Call, value: Value) -> Value:
        if not types.is_integer(value.type):
            raise AskSpark
        factor = pa.scalar(micros, pa.int64())
        return pc.cast(pc.multiply_checked(pc.cast(value, pa.int64()), factor), call.type)

    return apply


FUNCTIONS: dict[str, Function] = {
    "Cast": lambda call, value: cast(value, call.type, _zone(call)),
    "DateAdd": _add_days(1),
    "DateDiff": lambda _, left, right: pc.subtract_checked(
        pc.cast(left, pa.int32()), pc.cast(right, pa.int32())
    ),
    "DateFormatClass": _date_format,
    "DateSub": _add_days(-1),
    "DayOfMonth": _date_part("day"),
    "DayOfYear": _date_part("day_of_year"),
    "Hour": _time_part("hour"),
    "MicrosToTimestamp": _of_units(1),
    "MillisToTimestamp": _of_units(1_000),
    "Minute": _time_part("minute"),
    "Month": _date_part("month"),
    "PreciseTimestampConversion": _precise_timestamp,
    "Quarter": _date_part("quarter"),
    "Second": _time_part("second"),
    "SecondsToTimestamp": _of_units(1_000_000),
    "SubtractTimestamps": _subtract_timestamps,
    "TimestampAddInterval": _add_duration,
    "UnixDate": lambda _, value: pc.cast(value, pa.int32()),
    "UnixMicros": lambda _, value: pc.cast(value, pa.int64()),
    "UnixMillis": lambda _, value: _whole_units(value, 1_000),
    "UnixSeconds": lambda _, value: _whole_units(value, 1_000_000),
    "Year": _date_part("year"),
}
