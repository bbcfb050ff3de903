"""Fields of dates and timestamps, and arithmetic with them. Pure.

A timestamp's fields are those of its local time in the session's time zone. Months and days are
added to the local time, hours and smaller units to the instant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.lists_of import (
    all_on_columns,
    null_flags_of,
)
from epochal.continuous.operators.expressions.times.calendar_days import (
    add_months,
    date_of,
    day_of_year,
    days_from,
    iso_week,
    month_lengths,
    weekday,
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
from epochal.continuous.operators.expressions.times.zones import offsets_at, to_local, to_utc
from epochal.errors import OptionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_WEEKDAYS = {"SU": 6, "MO": 0, "TU": 1, "WE": 2, "TH": 3, "FR": 4, "SA": 5}
_FULL_NAMES = (
    "SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY",
)  # fmt: skip

_INSTANT = pa.timestamp("us", "UTC")

UNIT_MICROS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": MICROS,
    "MINUTE": 60 * MICROS,
    "HOUR": 3600 * MICROS,
    "DAY": DAY_MICROS,
    "DAYOFYEAR": DAY_MICROS,
    "WEEK": 7 * DAY_MICROS,
}
UNIT_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}

_TRUNCATIONS = {
    "MON": "MONTH", "MM": "MONTH", "YYYY": "YEAR", "YY": "YEAR", "DD": "DAY",
    **{name: name for name in (*UNIT_MICROS, *UNIT_MONTHS) if name != "DAYOFYEAR"},
}  # fmt: skip


def _field(function: Callable[[Ints], Any]) -> Function:
    return on_ints(lambda given, days: function(days), pa.int32())


def _of_day(divisor: int, modulus: int) -> Function:
    """A field of the time of day."""
    return on_ints(
        lambda given, micros: to_local(micros, given.zone) // divisor % modulus, pa.int32()
    )


def _named(names: tuple[str, ...], function: Callable[[Ints], Ints]) -> Function:
    def apply(call: Call, value: Value) -> Value:
        numbers = pa.array(function(ints_of_times(value)), mask=null_flags_of(value))
        return pc.take(pa.array(names), numbers)

    return apply


def _last_day(given: Given, days: Ints) -> Ints:
    year, month, day = date_of(days)
    return days - day + month_lengths(year, month)


def _next_day(call: Call, value: Value, name: Value) -> Value:
    days, nulls = ints_of_times(value), null_flags_of(value) | null_flags_of(name)
    found = days.copy()
    for text, rows in distinct_texts(name):
        upper = text.upper()
        is_known = upper in _FULL_NAMES or (
            upper[:2] in _WEEKDAYS
            and (len(upper) == 2 or any(upper == each[:3] for each in _FULL_NAMES))
        )
        if not is_known:
            if call.ansi and (rows & ~nulls).any():
                raise OptionError(f"ILLEGAL_DAY_OF_WEEK: {text!r} is not the name of a day.")
            nulls = nulls | rows
            continue
        ahead = (_WEEKDAYS[upper[:2]] - 1 - weekday(days)) % 7 + 1
        found = np.where(rows, days + ahead, found)
    return column_of_ints(found, nulls, call.type)


def truncated_days(days: Ints, unit: str) -> Ints:
    """The first days of the weeks, months, quarters or years of some days."""
    if unit == "WEEK":
        return days - weekday(days)
    year, month, day = date_of(days)
    if unit == "MONTH":
        return days - day + 1
    first = (month - 1) // 3 * 3 + 1 if unit == "QUARTER" else np.ones_like(month)
    return days_from(year, first, np.ones_like(year))


def _trunc_date(call: Call, value: Value, name: Value) -> Value:
    days, nulls = ints_of_times(value), null_flags_of(value) | null_flags_of(name)
    found = days.copy()
    for text, rows in distinct_texts(name):
        unit = _TRUNCATIONS.get(text.upper(), "")
        if unit == "WEEK" or unit in UNIT_MONTHS:
            found = np.where(rows, truncated_days(days, unit), found)
        else:
            nulls = nulls | rows
    return column_of_ints(found, nulls, call.type)


def _trunc_timestamp(call: Call, name: Value, value: Value) -> Value:
    micros, nulls = ints_of_times(value), null_flags_of(value) | null_flags_of(name)
    zone = str(call.extra.get("zone", "UTC")) if getattr(value.type, "tz", None) else "UTC"
    found = micros.copy()
    for text, rows in distinct_texts(name):
        unit = _TRUNCATIONS.get(text.upper())
        if unit is None:
            nulls = nulls | rows
        else:
            found = np.where(rows, _truncated(micros, unit, zone), found)
    return column_of_ints(found, nulls, value.type)


def _truncated(micros: Ints, unit: str, zone: str) -> Ints:
    if unit in ("MICROSECOND", "MILLISECOND", "SECOND"):
        return micros - micros % UNIT_MICROS[unit]
    local = to_local(micros, zone)
    if unit in ("MINUTE", "HOUR", "DAY"):
        return to_utc(local - local % UNIT_MICROS[unit], zone, offsets_at(micros, zone))
    return to_utc(truncated_days(local // DAY_MICROS, unit) * DAY_MICROS, zone)


def plus_days(given: Given, micros: Ints, days: Ints) -> Ints:
    """Add days to the local time."""
    offsets = offsets_at(micros, given.zone)
    local = to_local(micros, given.zone)
    moved = checked_add(local, checked_multiply(days, DAY_MICROS, given.valid), given.valid)
    return np.where(days == 0, micros, to_utc(moved, given.zone, offsets))


def plus_months(given: Given, micros: Ints, months: Ints) -> Ints:
    """Add months to the local time."""
    local = to_local(micros, given.zone)
    days = add_months(local // DAY_MICROS, months)
    moved = checked_multiply(days, DAY_MICROS, given.valid) + local % DAY_MICROS
    offsets = offsets_at(micros, given.zone)
    return np.where(months == 0, micros, to_utc(moved, given.zone, offsets))


def plus_duration(given: Given, micros: Ints, duration: Ints) -> Ints:
    """Add the whole days to the local time, and the rest to the instant."""
    days = np.sign(duration) * (np.abs(duration) // DAY_MICROS)
    rest = duration - days * DAY_MICROS
    return checked_add(plus_days(given, micros, days), rest, given.valid)


def _timestamp_add(given: Given, quantity: Ints, micros: Ints) -> Ints:
    unit = str(given.call.extra["unit"]).upper()
    if unit in UNIT_MONTHS:
        months = checked_multiply(quantity, UNIT_MONTHS[unit], given.valid)
        check(given.valid & (np.abs(months) >= 2**31), "a number of months is too large")
        return plus_months(given, micros, months)
    amount = checked_multiply(quantity, UNIT_MICROS[unit], given.valid)
    if UNIT_MICROS[unit] < DAY_MICROS:
        return checked_add(micros, amount, given.valid)
    return plus_days(given, micros, amount // DAY_MICROS)


def _timestamp_diff(given: Given, start: Ints, end: Ints) -> Ints:
    unit = str(given.call.extra["unit"]).upper()
    one, other = to_local(start, given.zone), to_local(end, given.zone)
    if unit in UNIT_MICROS:
        return _towards_zero(other - one, UNIT_MICROS[unit])
    first, last = one // DAY_MICROS, other // DAY_MICROS
    one_time, other_time = one % DAY_MICROS, other % DAY_MICROS
    # A day counts only if the time of day is reached as well.
    last = last - ((last > first) & (other_time < one_time))
    last = last + ((last < first) & (other_time > one_time))
    packed = [(y * 12 + m) * 32 + d for y, m, d in (date_of(first), date_of(last))]
    return _towards_zero(_towards_zero(packed[1] - packed[0], 32), UNIT_MONTHS[unit])


def _towards_zero(values: Ints, divisor: int) -> Ints:
    found: Ints = np.sign(values) * (np.abs(values) // divisor)
    return found


def _months_between(call: Call, end: Value, start: Value, rounded: Value) -> Value:
    nulls = null_flags_of(end) | null_flags_of(start) | null_flags_of(rounded)
    zone = str(call.extra.get("zone", "UTC"))
    one, other = ints_of_times(end), ints_of_times(start)
    days = [to_local(each, zone) // DAY_MICROS for each in (one, other)]
    (year1, month1, day1), (year2, month2, day2) = map(date_of, days)
    months = (year1 * 12 + month1 - year2 * 12 - month2).astype(np.float64)
    is_last = (month_lengths(year1, month1) == day1) & (month_lengths(year2, month2) == day2)
    seconds = [
        _towards_zero(micros - to_utc(day * DAY_MICROS, zone), MICROS)
        for micros, day in zip((one, other), days, strict=True)
    ]
    more = ((day1 - day2) * 86_400 + seconds[0] - seconds[1]) / (31.0 * 86_400)
    exact = months + more
    is_rounded = rounded.fill_null(False).to_numpy(zero_copy_only=False)
    exact = np.where(is_rounded, np.floor(exact * 1e8 + 0.5) / 1e8, exact)
    return pa.array(np.where((day1 == day2) | is_last, months, exact), mask=nulls)


def _subtract_timestamps(given: Given, end: Ints, start: Ints) -> Ints:
    return to_local(end, given.zone) - to_local(start, given.zone)


def _subtract_dates(given: Given, end: Ints, start: Ints) -> Ints:
    return checked_multiply(end - start, DAY_MICROS, given.valid)


def make_date(given: Given, year: Ints, month: Ints, day: Ints) -> tuple[Ints, Flags]:
    """The days of some dates, and which of them do not exist; an error for those in ANSI mode."""
    bad = (month < 1) | (month > 12) | (day < 1) | (np.abs(year) > 999_999_999)
    month = np.where(bad, 1, month)
    bad = bad | (day > month_lengths(year, month))
    if given.call.ansi and (bad & given.valid).any():
        row = int(np.flatnonzero(bad & given.valid)[0])
        raise OptionError(
            f"DATETIME_FIELD_OUT_OF_BOUNDS: there is no date {year[row]}-{month[row]}-{day[row]}. "
            f"Use a try_ function to get null instead."
        )
    return np.where(bad, 0, days_from(year, month, np.where(bad, 1, day))), bad


def _since_epoch(divisor: int) -> Function:
    return on_ints(lambda given, micros: micros // divisor, pa.int64())


def _from_epoch(factor: int) -> Function:
    return on_ints(lambda given, value: checked_multiply(value, factor, given.valid), _INSTANT)


def _seconds_to_timestamp(call: Call, value: Value) -> Value:
    kind, nulls = value.type, null_flags_of(value)
    if pa.types.is_floating(kind):
        seconds = value.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64)
        nulls = nulls | ~np.isfinite(seconds)
        micros = np.where(nulls, 0.0, seconds) * 1e6
        check(np.abs(micros) > 2.0**63, "a timestamp overflows")
        return column_of_ints(np.trunc(micros).astype(np.int64), nulls, _INSTANT)
    scale = kind.scale if pa.types.is_decimal(kind) else 0
    numbers = ints_of_times(value)
    if scale > 6:
        divisor = 10 ** (scale - 6)
        check(~nulls & (numbers % divisor != 0), "a fraction is finer than microseconds")
        return column_of_ints(numbers // divisor, nulls, _INSTANT)
    return column_of_ints(checked_multiply(numbers, 10 ** (6 - scale), ~nulls), nulls, _INSTANT)


FUNCTIONS: dict[str, Function] = {
    "Year": _field(lambda days: date_of(days)[0]),
    "Quarter": _field(lambda days: (date_of(days)[1] + 2) // 3),
    "Month": _field(lambda days: date_of(days)[1]),
    "DayOfMonth": _field(lambda days: date_of(days)[2]),
    "DayOfYear": _field(day_of_year),
    "DayOfWeek": _field(lambda days: (weekday(days) + 1) % 7 + 1),
    "WeekDay": _field(weekday),
    "WeekOfYear": _field(lambda days: iso_week(days)[1]),
    "YearOfWeek": _field(lambda days: iso_week(days)[0]),
    "Hour": _of_day(3600 * MICROS, 24),
    "Minute": _of_day(60 * MICROS, 60),
    "Second": _of_day(MICROS, 60),
    "SecondWithFraction": _of_day(1, 60 * MICROS),
    "DateAdd": on_ints(lambda given, days, more: days + more),
    "DateSub": on_ints(lambda given, days, fewer: days - fewer),
    "DateDiff": on_ints(lambda given, end, start: end - start),
    "AddMonths": on_ints(lambda given, days, months: add_months(days, months)),
    "DateAddYMInterval": on_ints(lambda given, days, months: add_months(days, months)),
    "LastDay": on_ints(_last_day),
    "MakeDate": on_ints(make_date),
    "TimestampAdd": on_ints(_timestamp_add),
    "TimestampDiff": on_ints(_timestamp_diff),
    "TimestampAddYMInterval": on_ints(plus_months),
    "SubtractTimestamps": on_ints(_subtract_timestamps),
    "SubtractDates": on_ints(_subtract_dates),
    "UnixDate": on_ints(lambda given, days: days),
    "DateFromUnixDate": on_ints(lambda given, days: days),
    "UnixMicros": _since_epoch(1),
    "UnixMillis": _since_epoch(1_000),
    "UnixSeconds": _since_epoch(MICROS),
    "MillisToTimestamp": _from_epoch(1_000),
    "MicrosToTimestamp": _from_epoch(1),
    **all_on_columns(
        {
            "DayName": _named(_DAYS, weekday),
            "MonthName": _named(_MONTHS, lambda days: date_of(days)[1] - 1),
            "NextDay": _next_day,
            "TruncDate": _trunc_date,
            "TruncTimestamp": _trunc_timestamp,
            "MonthsBetween": _months_between,
            "SecondsToTimestamp": _seconds_to_timestamp,
        }
    ),
}

UNTYPED = frozenset(
    {
        *("Year", "Quarter", "Month", "DayOfMonth", "DayOfYear", "DayOfWeek", "WeekDay"),
        *("WeekOfYear", "YearOfWeek", "Hour", "Minute", "Second", "DayName", "MonthName"),
        *("UnixMicros", "UnixMillis", "UnixSeconds", "MillisToTimestamp", "MicrosToTimestamp"),
        *("SecondsToTimestamp", "TruncTimestamp", "MonthsBetween"),
    }
)
"""Functions that need not be told the type of their result."""
