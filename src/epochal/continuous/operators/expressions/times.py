"""Functions of dates and times where Arrow's result is Spark's for sure. Pure."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.casts import local_times, whole_units
from epochal.continuous.operators.expressions.columns import as_column
from epochal.continuous.operators.expressions.expr import AskSpark, Call, Function, Value

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

_UTC = ("UTC", "Etc/UTC")
_DAY = 86_400_000_000

_PART = re.compile(
    r"(?<!y)yyyy(?!y)|(?<!M)MM(?!M)|(?<!d)dd(?!d)|(?<!H)HH(?!H)|(?<!m)mm(?!m)|(?<!s)ss(?!s)"
    r"|[-/:., _]|(?<!')'[^']+'(?!')"
)
_WORDS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_UNITS = {"ss": "second", "mm": "minute", "HH": "hour"}
_FEW_ROWS, _ROWS_PER_TEXT = 64, 8
"""Larger batches are left to Spark's code if they have fewer rows for each text than this: it makes
a text as fast as Arrow does."""


def _precise_timestamp(call: Call, value: Value) -> Value:
    """Microseconds of a timestamp, or the timestamp of microseconds: windows are computed so."""
    if pa.types.is_timestamp(value.type):
        value = value.cast(pa.timestamp("us", value.type.tz))
    if pa.types.is_timestamp(call.type):
        return value.cast(pa.int64()).cast(call.type)
    return value.cast(pa.int64())


def _zone(call: Call) -> str:
    return str(call.extra.get("zone", "UTC"))


def _date_part(kernel: str, **options: Any) -> Function:
    def apply(call: Call, value: Value) -> Value:
        days = as_column(pc.cast(value, pa.int32()), 1)
        ends = pc.min_max(days).as_py()
        if ends["min"] is not None and not (ends["min"] > -700_000 and ends["max"] < 2_900_000):
            raise AskSpark
        return pc.cast(getattr(pc, kernel)(value, **options), pa.int32())

    return apply


def _time_part(kernel: str) -> Function:
    def apply(call: Call, value: Value) -> Value:
        return pc.cast(getattr(pc, kernel)(local_times(value, _zone(call))), pa.int32())

    return apply


def _date_format(call: Call, value: Value, pattern: Value) -> Value:
    """`date_format`: rows of the same day or minute share one text, which is made once."""
    text = pattern.as_py() if isinstance(pattern, pa.Scalar) else None
    if text is None or _PART.sub("", text):
        raise AskSpark
    parts = _PART.findall(text)
    unit = next((unit for part, unit in _UNITS.items() if part in parts), "day")
    texts = "".join(_WORDS.get(part, part.strip("'").replace("%", "%%")) for part in parts)
    local = pc.floor_temporal(local_times(value, _zone(call)), unit=unit)
    if isinstance(local, pa.Scalar) or len(local) <= _FEW_ROWS:
        return pc.strftime(pc.cast(local, pa.timestamp("s")), texts)
    encoded = local.dictionary_encode()
    if len(encoded.dictionary) * _ROWS_PER_TEXT > len(local):
        raise AskSpark
    return pc.strftime(pc.cast(encoded.dictionary, pa.timestamp("s")), texts).take(encoded.indices)


def _add_duration(call: Call, value: Value, interval: Value) -> Value:
    """A timestamp plus an interval shorter than a day, which is as long on every calendar."""
    if pa.types.is_interval(interval.type):
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
        ends = pc.min_max(as_column(micros, 1)).as_py()
        if ends["min"] is not None and not -_DAY < ends["min"] <= ends["max"] < _DAY:
            raise AskSpark
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


def _days_between(call: Call, left: Value, right: Value) -> Value:
    return pc.subtract_checked(pc.cast(left, pa.int32()), pc.cast(right, pa.int32()))


def _of_units(micros: int) -> Function:
    def apply(call: Call, value: Value) -> Value:
        if not pa.types.is_integer(value.type):
            raise AskSpark
        factor = pa.scalar(micros, pa.int64())
        return pc.cast(pc.multiply_checked(pc.cast(value, pa.int64()), factor), call.type)

    return apply


FUNCTIONS: dict[str, Function] = {
    "DateAdd": _add_days(1),
    "DateDiff": _days_between,
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
    "UnixMillis": lambda _, value: whole_units(value, 1_000),
    "UnixSeconds": lambda _, value: whole_units(value, 1_000_000),
    "Year": _date_part("year"),
}
