"""Intervals: made, added, multiplied, and taken apart. Pure.

An interval of days and smaller units is a duration, one of years and months a number of months. A
calendar interval has months, days and microseconds, which are added one after the other.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.lists_of import (
    all_on_columns,
    null_flags_of,
)
from epochal.continuous.operators.expressions.times.calendar_days import add_months
from epochal.continuous.operators.expressions.times.dates_times import (
    make_date,
    plus_days,
    plus_duration,
    plus_months,
)
from epochal.continuous.operators.expressions.times.time_values import (
    DAY_MICROS,
    MICROS,
    Flags,
    Given,
    Ints,
    check,
    checked_add,
    checked_multiply,
    column_of_ints,
    distinct_texts,
    ints_of_times,
    on_ints,
)
from epochal.continuous.operators.expressions.times.zones import to_local, to_utc
from epochal.errors import OptionError

INTERVAL = pa.month_day_nano_interval()

_LAYOUT = np.dtype([("months", "i4"), ("days", "i4"), ("nanos", "i8")])
_EXACT = Context(prec=60)
_INT, _LONG = 2**31, 2**63


def parts_of(column: Any) -> tuple[Ints, Ints, Ints]:
    """The months, days and microseconds of calendar intervals."""
    found = np.frombuffer(column.buffers()[1], _LAYOUT)[column.offset :][: len(column)]
    months, days, nanos = (found[name].astype(np.int64) for name in ("months", "days", "nanos"))
    return months, days, nanos // 1000


def _intervals(months: Ints, days: Ints, micros: Ints, nulls: Flags) -> Any:
    too_long = (np.abs(micros) > _LONG // 1000) | (np.abs(months) > _INT) | (np.abs(days) > _INT)
    check(~nulls & too_long, "an interval overflows")
    made = np.zeros(len(months), _LAYOUT)
    made["months"], made["days"], made["nanos"] = months, days, micros * 1000
    valid = pa.array(~nulls).buffers()[1]
    return pa.Array.from_buffers(INTERVAL, len(made), [valid, pa.py_buffer(made.tobytes())])


def _add_to_timestamp(call: Call, value: Value, interval: Value) -> Value:
    nulls = null_flags_of(value) | null_flags_of(interval)
    zone = str(call.extra.get("zone", "UTC")) if getattr(value.type, "tz", None) else "UTC"
    given, micros = Given(call, ~nulls, zone), ints_of_times(value)
    if interval.type == INTERVAL:
        months, days, rest = parts_of(interval)
        moved = plus_days(given, plus_months(given, micros, months), days)
        return column_of_ints(checked_add(moved, rest, ~nulls), nulls, value.type)
    return column_of_ints(plus_duration(given, micros, ints_of_times(interval)), nulls, value.type)


def _add_to_date(call: Call, value: Value, interval: Value) -> Value:
    nulls = null_flags_of(value) | null_flags_of(interval)
    months, days, micros = parts_of(interval)
    dates = ints_of_times(value)
    if call.ansi:
        if (~nulls & (micros != 0)).any():
            raise OptionError(
                "INVALID_INTERVAL_WITH_MICROSECONDS_ADDITION: an interval with a time was added "
                "to a date. Cast the date to a timestamp first."
            )
        return column_of_ints(add_months(dates, months) + days, nulls, call.type)
    given = Given(call, ~nulls, str(call.extra.get("zone", "UTC")))
    start = to_utc(dates * DAY_MICROS, given.zone)
    moved = plus_days(given, plus_months(given, start, months), days) + micros
    return column_of_ints(to_local(moved, given.zone) // DAY_MICROS, nulls, call.type)


def negated(call: Call, value: Value) -> Value:
    """A calendar interval of the opposite direction."""
    months, days, micros = parts_of(value)
    return _intervals(-months, -days, -micros, null_flags_of(value))


def _make_interval(call: Call, *values: Value) -> Value:
    nulls = np.logical_or.reduce([null_flags_of(each) for each in values])
    years, months, weeks, days, hours, minutes, micros = map(ints_of_times, values)
    months, days = months + years * 12, days + weeks * 7
    micros = micros + hours * 3600 * MICROS + minutes * 60 * MICROS
    bad = (np.abs(months) >= _INT) | (np.abs(days) >= _INT)
    if not call.ansi:
        nulls = nulls | bad
    months, days, micros = (np.where(nulls, 0, each) for each in (months, days, micros))
    return _intervals(months, days, micros, nulls)


def _make_duration(given: Given, days: Ints, hours: Ints, minutes: Ints, micros: Ints) -> Ints:
    total = checked_add(micros, checked_multiply(days, DAY_MICROS, given.valid), given.valid)
    total = checked_add(total, hours * 3600 * MICROS, given.valid)
    return checked_add(total, minutes * 60 * MICROS, given.valid)


def _make_timestamp(call: Call, *values: Value) -> Value:
    nulls = np.logical_or.reduce([null_flags_of(each) for each in values])
    year, month, day, hour, minute, micros = map(ints_of_times, values[:6])
    days, bad = make_date(Given(call, ~nulls, "UTC"), year, month, day)
    wrong = (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59)
    wrong |= (micros < 0) | (micros > 60 * MICROS)  # exactly 60 seconds is the next minute
    if call.ansi and (wrong & ~nulls).any():
        raise OptionError(
            "DATETIME_FIELD_OUT_OF_BOUNDS: an hour, minute or second is out of bounds. Use "
            "try_make_timestamp to get null instead."
        )
    nulls = nulls | bad | wrong
    local = days * DAY_MICROS + hour * 3600 * MICROS + minute * 60 * MICROS + micros
    if getattr(call.type, "tz", None) is None:
        return column_of_ints(local, nulls, call.type)
    if len(values) == 6:
        return column_of_ints(to_utc(local, str(call.extra["zone"])), nulls, call.type)
    found = local.copy()
    for zone, rows in distinct_texts(values[6]):
        found = np.where(rows, to_utc(local, zone), found)
    return column_of_ints(found, nulls, call.type)


def _scaled(divides: bool) -> Function:
    """An interval times or divided by a number, rounded half up."""

    def apply(call: Call, value: Value, number: Value) -> Value:
        nulls = null_flags_of(value) | null_flags_of(number)
        limit = _INT if call.type.bit_width == 32 else _LONG
        found = [
            0 if null else _scale(amount, factor, divides, limit)
            for amount, factor, null in zip(
                ints_of_times(value).tolist(), number.to_pylist(), nulls.tolist(), strict=True
            )
        ]
        return column_of_ints(np.array(found, np.int64), nulls, call.type)

    return apply


def _scale(amount: int, factor: Any, divides: bool, limit: int) -> int:
    if divides and factor == 0:
        raise OptionError("INTERVAL_DIVIDED_BY_ZERO: an interval was divided by zero.")
    if isinstance(factor, float):
        exact = amount / factor if divides else amount * factor
        found = Decimal(exact) if np.isfinite(exact) else Decimal(2 * limit)
    elif divides:
        found = _EXACT.divide(Decimal(amount), Decimal(factor))
    else:
        found = _EXACT.multiply(Decimal(amount), Decimal(factor))
    rounded = int(found.to_integral_value(ROUND_HALF_UP))
    if not -limit <= rounded < limit:
        raise OptionError("INTERVAL_ARITHMETIC_OVERFLOW: an interval is too long.")
    return rounded


def _unit(outer: int, inner: int) -> Function:
    def apply(given: Given, value: Ints) -> Ints:
        size = np.abs(value) % outer // inner if outer else np.abs(value) // inner
        found: Ints = np.sign(value) * size
        return found

    return on_ints(apply)


def _in_zone(call: Call, value: Value, zone: Value, *, towards: bool) -> Value:
    micros = ints_of_times(value)
    found = micros.copy()
    for name, rows in distinct_texts(zone):
        moved = to_utc(micros, name) if towards else to_local(micros, name)
        found = np.where(rows, moved, found)
    return column_of_ints(found, null_flags_of(value) | null_flags_of(zone), call.type)


def _convert(call: Call, source: Value, target: Value, value: Value) -> Value:
    return _in_zone(call, _in_zone(call, value, source, towards=True), target, towards=False)


FUNCTIONS: dict[str, Function] = {
    "MakeDTInterval": on_ints(_make_duration),
    "MakeYMInterval": on_ints(lambda given, years, months: years * 12 + months),
    "ExtractANSIIntervalYears": _unit(0, 12),
    "ExtractANSIIntervalMonths": _unit(12, 1),
    "ExtractANSIIntervalDays": _unit(0, DAY_MICROS),
    "ExtractANSIIntervalHours": _unit(DAY_MICROS, 3600 * MICROS),
    "ExtractANSIIntervalMinutes": _unit(3600 * MICROS, 60 * MICROS),
    "ExtractANSIIntervalSeconds": _unit(60 * MICROS, 1),
    **all_on_columns(
        {
            "MakeInterval": _make_interval,
            "MakeTimestamp": _make_timestamp,
            "TimestampAddInterval": _add_to_timestamp,
            "DateAddInterval": _add_to_date,
            "MultiplyDTInterval": _scaled(divides=False),
            "MultiplyYMInterval": _scaled(divides=False),
            "DivideDTInterval": _scaled(divides=True),
            "DivideYMInterval": _scaled(divides=True),
            "FromUTCTimestamp": lambda call, value, zone: _in_zone(
                call, value, zone, towards=False
            ),
            "ToUTCTimestamp": lambda call, value, zone: _in_zone(call, value, zone, towards=True),
            "ConvertTimezone": _convert,
        }
    ),
}
