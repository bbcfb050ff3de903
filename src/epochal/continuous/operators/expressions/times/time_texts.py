"""Functions between times and texts, with Java's patterns. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Literal, Value
from epochal.continuous.operators.expressions.nested.lists_of import (
    Array,
    all_on_columns,
    null_flags_of,
)
from epochal.continuous.operators.expressions.times.calendar_days import (
    days_from,
    month_lengths,
)
from epochal.continuous.operators.expressions.times.time_patterns import (
    Parsed,
    formatted,
    parsed,
    problem_of,
)
from epochal.continuous.operators.expressions.times.time_values import (
    DAY_MICROS,
    MICROS,
    Flags,
    Ints,
    checked_multiply,
    column_of_ints,
    distinct_texts,
    ints_of_times,
)
from epochal.continuous.operators.expressions.times.zones import find_zone, to_local, to_utc
from epochal.continuous.operators.spark_values.timestamp_texts import (
    days_of_civil,
    is_zone,
    utc_of_local,
)
from epochal.errors import OptionError


def _zone(call: Call) -> str:
    return str(call.extra.get("zone", "UTC"))


def _texts(call: Call, micros: Ints, nulls: Flags, patterns: Array) -> Value:
    zone, nulls = _zone(call), nulls | null_flags_of(patterns)
    found: list[str | None] = [None] * len(micros)
    local = to_local(micros, zone)
    for pattern, flags in distinct_texts(patterns):
        rows = np.flatnonzero(flags & ~nulls)
        for row, text in zip(
            rows.tolist(), formatted(local[rows], micros[rows], zone, pattern), strict=True
        ):
            found[row] = text
    return pa.array(found, pa.string())


def _format(call: Call, value: Value, pattern: Value) -> Value:
    return _texts(call, ints_of_times(value), null_flags_of(value), pattern)


def _from_unix_time(call: Call, value: Value, pattern: Value) -> Value:
    nulls = null_flags_of(value)
    micros = checked_multiply(ints_of_times(value), MICROS, ~nulls)
    return _texts(call, micros, nulls, pattern)


def _parse(call: Call, value: Value, pattern: Value, *, zoned: bool) -> tuple[Ints, Flags]:
    """The microseconds of texts, and which of them are null or say no time."""
    nulls = null_flags_of(value) | null_flags_of(pattern)
    texts, patterns = value.to_pylist(), pattern.to_pylist()
    found = [
        None if null else parsed(text, each)
        for text, each, null in zip(texts, patterns, nulls.tolist(), strict=True)
    ]
    micros, wrong = _instants(found, _zone(call), zoned=zoned)
    wrong &= ~nulls
    if call.ansi and wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise OptionError(
            f"CANNOT_PARSE_TIMESTAMP: the text {texts[row]!r} is not a time of the pattern "
            f"{patterns[row]!r}. Use try_to_timestamp to get null instead."
        )
    return micros, nulls | wrong


def _instants(found: list[Parsed | None], zone: str, *, zoned: bool) -> tuple[Ints, Flags]:
    nothing = Parsed(1970, 1, 1, 0, None)
    known = [each or nothing for each in found]
    wrong = np.array([each is None for each in found], bool)
    year, month, day, time = (
        np.array([getattr(each, name) for each in known], np.int64)
        for name in ("year", "month", "day", "micros")
    )
    wrong |= day > month_lengths(year, month)
    days = days_from(year, month, np.where(wrong, 1, day))
    for row, each in enumerate(known):
        if each.day_of_year is not None:
            day_number = _day_of_year(each)
            days[row], wrong[row] = day_number or 0, day_number is None
    local = days * DAY_MICROS + time
    if not zoned:
        return local, wrong
    micros = to_utc(local, zone)
    for name in {each.zone for each in known if each.zone}:
        try:
            find_zone(name)
        except OptionError:
            wrong |= np.array([each.zone == name for each in known])
            continue
        micros = np.where([each.zone == name for each in known], to_utc(local, name), micros)
    return micros, wrong


def _day_of_year(found: Parsed) -> int | None:
    """The day that a year and the number of a day in it say; None if that year is shorter."""
    first, following = (days_of_civil(year, 1, 1) for year in (found.year, found.year + 1))
    assert first is not None
    assert following is not None
    day = first + (found.day_of_year or 1) - 1
    return day if day < following else None


def micros_by(pattern: str, text: str, zone: str | None) -> int | None:
    """The microseconds of one text; None if it says no time. Without a zone, of a local time."""
    found = parsed(text, pattern)
    if found is None:
        return None
    if found.day_of_year is None:
        days = days_of_civil(found.year, found.month, found.day)
    else:
        days = _day_of_year(found)
    if days is None:
        return None
    local = days * DAY_MICROS + found.micros
    if zone is None:
        return local
    if found.zone is not None and not is_zone(found.zone):
        return None
    return utc_of_local(local, found.zone or zone)


def days_by(pattern: str, text: str) -> int | None:
    """The date that one text says; None if it says none."""
    found = micros_by(pattern, text, None)
    return None if found is None else found // DAY_MICROS


def _get_timestamp(call: Call, value: Value, pattern: Value) -> Value:
    zoned = getattr(call.type, "tz", None) is not None
    micros, nulls = _parse(call, value, pattern, zoned=zoned)
    return column_of_ints(micros, nulls, call.type)


def _unix_timestamp(call: Call, value: Value, pattern: Value) -> Value:
    kind = value.type
    if pa.types.is_string(kind):
        micros, nulls = _parse(call, value, pattern, zoned=True)
    else:
        micros, nulls = ints_of_times(value), null_flags_of(value)
        if pa.types.is_date(kind):
            micros = to_utc(micros * DAY_MICROS, _zone(call))
    seconds = np.sign(micros) * (np.abs(micros) // MICROS)  # Spark rounds towards zero here
    return column_of_ints(seconds, nulls, call.type)


FUNCTIONS: dict[str, Function] = all_on_columns(
    {
        "DateFormatClass": _format,
        "FromUnixTime": _from_unix_time,
        "GetTimestamp": _get_timestamp,
        "UnixTimestamp": _unix_timestamp,
        "ToUnixTimestamp": _unix_timestamp,
    }
)


def _pattern_problem(*, parsing: bool) -> Callable[[Call], str | None]:
    def check(call: Call) -> str | None:
        pattern = call.arguments[1]
        if not isinstance(pattern, Literal) or pattern.value.as_py() is None:
            return None
        return problem_of(pattern.value.as_py(), parsing=parsing)

    return check


CHECKS: dict[str, Callable[[Call], str | None]] = {
    name: _pattern_problem(parsing=name not in ("DateFormatClass", "FromUnixTime"))
    for name in FUNCTIONS
}
"""What is wrong with a call, so that a query is refused when it is written down."""
