"""Days since 1970-01-01 and dates of the proleptic Gregorian calendar, for whole columns. Pure.

Python's dates end in the year 9999, and Spark's do not.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]

_ERA = 146_097
"""The days of 400 years."""


def date_of(days: Ints) -> tuple[Ints, Ints, Ints]:
    """The year, month and day of some days."""
    shifted = days + 719_468  # since 0000-03-01, so that the leap day is the last of its year
    era = shifted // _ERA
    day_of_era = shifted - era * _ERA
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month = month + np.where(month < 10, 3, -9)
    return year_of_era + era * 400 + (month <= 2), month, day


def days_from(year: Ints, month: Ints, day: Ints) -> Ints:
    """The days of some dates."""
    year = year - (month <= 2)
    era = year // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    found: Ints = era * _ERA + day_of_era - 719_468
    return found


def month_lengths(year: Ints, month: Ints) -> Ints:
    """The number of days of some months."""
    following = days_from(year + (month == 12), month % 12 + 1, np.ones_like(month))
    return following - days_from(year, month, np.ones_like(month))


def add_months(days: Ints, months: Ints) -> Ints:
    """The same days some months later; the last day of the month if there is no such day."""
    year, month, day = date_of(days)
    total = year * 12 + month - 1 + months
    year, month = total // 12, total % 12 + 1
    return days_from(year, month, np.minimum(day, month_lengths(year, month)))


def day_of_year(days: Ints) -> Ints:
    """The number of the day in its year, from 1."""
    year, _, _ = date_of(days)
    return days - days_from(year, np.ones_like(year), np.ones_like(year)) + 1


def iso_week(days: Ints) -> tuple[Ints, Ints]:
    """The year and number of the ISO week of some days."""
    thursday = days + 3 - weekday(days)
    year, _, _ = date_of(thursday)
    return year, (day_of_year(thursday) - 1) // 7 + 1


def weekday(days: Ints) -> Ints:
    """The day of the week: 0 is Monday."""
    found: Ints = (days + 3) % 7
    return found
