"""Spark's `sequence`: arrays of equidistant numbers, dates or timestamps. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.arrays import MAX_ELEMENTS
from epochal.continuous.operators.expressions.nested.lists_of import (
    Array,
    Kind,
    all_on_columns,
    list_column,
    null_flags_of,
)
from epochal.continuous.operators.expressions.times.dates_times import plus_days, plus_months
from epochal.continuous.operators.expressions.times.intervals import INTERVAL, parts_of
from epochal.continuous.operators.expressions.times.time_values import (
    DAY_MICROS,
    Flags,
    Given,
    Ints,
    column_of_ints,
    ints_of_times,
)
from epochal.continuous.operators.expressions.times.zones import to_local, to_utc
from epochal.errors import OptionError


def _sequence(call: Call, start: Value, stop: Value, step: Value | None = None) -> Value:
    columns = [start, stop] if step is None else [start, stop, step]
    nulls = np.logical_or.reduce([null_flags_of(each) for each in columns])
    first, last = ints_of_times(start), ints_of_times(stop)
    kind: Kind = call.type
    if pa.types.is_temporal(start.type):
        months, days, micros = _step(first, last, step)
        if not (months.any() or (micros.any() if pa.types.is_date(start.type) else days.any())):
            step_size = days if pa.types.is_date(start.type) else micros
            values, counts = _numbers(first, last, step_size, nulls)
        else:
            given = _given(call, start, nulls)
            values, counts = _moments(given, start.type, first, last, (months, days, micros))
    else:
        step_size = np.where(first <= last, 1, -1) if step is None else ints_of_times(step)
        values, counts = _numbers(first, last, step_size, nulls)
    elements = column_of_ints(values, np.zeros(len(values), bool), kind.value_type)
    return list_column(elements, counts, nulls, kind)


def _given(call: Call, start: Array, nulls: Flags) -> Given:
    zoned = pa.types.is_date(start.type) or start.type.tz is not None
    return Given(call, ~nulls, str(call.extra.get("zone", "UTC")) if zoned else "UTC")


def _step(first: Ints, last: Ints, step: Array | None) -> tuple[Ints, Ints, Ints]:
    """The months, days and microseconds of the steps; a day if there is no step."""
    zeros = np.zeros_like(first)
    if step is None:
        return zeros, np.where(first <= last, 1, -1), zeros
    if step.type == INTERVAL:
        return parts_of(step)
    amount = ints_of_times(step)
    if not pa.types.is_duration(step.type):
        return amount, zeros, zeros
    days = np.sign(amount) * (np.abs(amount) // DAY_MICROS)
    return zeros, days, amount - days * DAY_MICROS


def _check(first: Ints, last: Ints, step: Ints, nulls: Flags) -> None:
    fits = np.where(step == 0, first == last, (last - first) * np.sign(step) >= 0)
    if (~fits & ~nulls).any():
        row = int(np.flatnonzero(~fits & ~nulls)[0])
        raise OptionError(
            f"ILLEGAL_SEQUENCE_BOUNDARIES: steps of {step[row]} do not lead from {first[row]} to "
            f"{last[row]}."
        )


def _numbers(first: Ints, last: Ints, step: Ints, nulls: Flags) -> tuple[Ints, Ints]:
    _check(first, last, step, nulls)
    counts = np.abs(last - first) // np.maximum(np.abs(step), 1) + 1
    counts = np.where(nulls, 0, counts)
    _check_count(int(counts.max(initial=0)))
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return first[rows] + step[rows] * positions, counts


def _check_count(count: int) -> None:
    if count > MAX_ELEMENTS:
        raise OptionError(
            f"sequence: an array would have {count} elements. At most {MAX_ELEMENTS} are possible."
        )


def _moments(
    given: Given, kind: pa.DataType, first: Ints, last: Ints, step: tuple[Ints, Ints, Ints]
) -> tuple[Ints, Ints]:
    """Steps of calendar units: each moment is computed from the first one."""
    months, days, micros = step
    is_date = pa.types.is_date(kind)
    if is_date and (given.valid & (months == 0) & (days == 0)).any():
        raise OptionError("sequence: dates need a step of at least a day. Use timestamps instead.")
    start, stop = (
        to_utc(each * DAY_MICROS, given.zone) if is_date else each for each in (first, last)
    )
    size = micros + months * 28 * DAY_MICROS + days * DAY_MICROS
    _check(start, stop, size, ~given.valid)
    rows = np.flatnonzero(given.valid)
    found_rows, found = [rows], [start[rows]]
    number = 0
    while len(rows):
        number += 1
        here = Given(given.call, np.ones(len(rows), bool), given.zone)
        moved = plus_months(here, start[rows], months[rows] * number)
        moved = plus_days(here, moved, days[rows] * number) + micros[rows] * number
        inside = (stop[rows] - moved) * np.sign(size[rows]) >= 0
        inside &= size[rows] != 0
        rows, moved = rows[inside], moved[inside]
        found_rows.append(rows)
        found.append(moved)
    owners, values = np.concatenate(found_rows), np.concatenate(found)
    values = values[np.argsort(owners, kind="stable")]
    counts = np.bincount(owners, minlength=len(first))
    return to_local(values, given.zone) // DAY_MICROS if is_date else values, counts


FUNCTIONS: dict[str, Function] = all_on_columns({"Sequence": _sequence})
