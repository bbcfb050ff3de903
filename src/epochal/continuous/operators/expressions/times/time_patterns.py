"""Formats and parses times by Java's patterns, such as `yyyy-MM-dd HH:mm`. Pure.

The rules are those of Java's DateTimeFormatter in strict mode with American names, minus what Spark
refuses: week-based letters and narrow texts. A pattern becomes a list of items. For parsing, each
item is a part of one regular expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from epochal.continuous.operators.expressions.times.calendar_days import (
    date_of,
    day_of_year,
    weekday,
)
from epochal.continuous.operators.expressions.times.time_values import DAY_MICROS, MICROS, Ints
from epochal.continuous.operators.expressions.times.zones import offsets_at
from epochal.errors import OptionError

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
QUARTERS = ("1st quarter", "2nd quarter", "3rd quarter", "4th quarter")

_LONGEST = {
    "G": 4, "y": 6, "M": 4, "L": 4, "d": 2, "D": 3, "E": 4, "a": 1, "h": 2, "H": 2, "k": 2, "K": 2,
    "m": 2, "s": 2, "S": 9, "q": 4, "Q": 4, "V": 2, "X": 5, "x": 5, "Z": 5, "O": 4,
}  # fmt: skip
"""The letters that are supported, and how often they may be repeated."""

_NOT_PARSED = "EqQO"


@dataclass(frozen=True, slots=True)
class Item:
    """A letter of a pattern with its number of repetitions, or a literal text."""

    letter: str
    count: int = 0
    literal: str = ""


Optional: TypeAlias = tuple["Item | Optional", ...]
"""Items in brackets."""


def problem_of(pattern: str, *, parsing: bool) -> str | None:
    """Why a pattern is not supported; None if it is."""
    try:
        list(_flat(items_of(pattern, parsing=parsing)))
    except OptionError as error:
        return str(error)
    return None


@lru_cache(maxsize=256)
def items_of(pattern: str, *, parsing: bool) -> Optional:
    """The items of a pattern; OptionError if it is not supported."""
    open_ones: list[list[Item | Optional]] = [[]]
    rest = pattern
    while rest:
        first = rest[0]
        if first == "'":
            quoted = re.match(r"'((?:[^']|'')*)'", rest)
            if quoted is None:
                raise _bad(pattern, "a quotation mark is not closed")
            text = quoted[1].replace("''", "'") or "'"
            open_ones[-1].append(Item("", literal=text))
            rest = rest[quoted.end() :]
            continue
        if first == "[":
            open_ones.append([])
        elif first == "]":
            if len(open_ones) == 1:
                raise _bad(pattern, "a bracket is closed that was not opened")
            closed = tuple(open_ones.pop())
            open_ones[-1].append(closed)
        elif first.isascii() and first.isalpha():
            count = len(rest) - len(rest.lstrip(first))
            _check(pattern, first, count, parsing=parsing)
            open_ones[-1].append(Item(first, count))
            rest = rest[count:]
            continue
        elif first in "#{}":
            raise _bad(pattern, f"the character {first!r} is reserved")
        else:
            open_ones[-1].append(Item("", literal=first))
        rest = rest[1:]
    while len(open_ones) > 1:
        closed = tuple(open_ones.pop())
        open_ones[-1].append(closed)
    return tuple(open_ones[0])


def _check(pattern: str, letter: str, count: int, *, parsing: bool) -> None:
    most = _LONGEST.get(letter, 0)
    if not most or (parsing and letter in _NOT_PARSED):
        raise _bad(pattern, f"the letter {letter!r} is not supported here")
    if count > most or (letter == "V" and count != 2) or (letter == "O" and count not in (1, 4)):
        raise _bad(pattern, f"{letter * count!r} is not supported")


def _bad(pattern: str, reason: str) -> OptionError:
    return OptionError(
        f"INVALID_DATETIME_PATTERN: {pattern!r}: {reason}. Use another pattern or a UDF."
    )


def _flat(items: Optional) -> Iterator[Item]:
    for item in items:
        if isinstance(item, Item):
            yield item
        else:
            yield from _flat(item)


# Formatting


def formatted(local: Ints, micros: Ints, zone: str, pattern: str) -> list[str]:
    """Local times as texts. `micros` are the same times in UTC."""
    items = list(_flat(items_of(pattern, parsing=False)))
    if not items:
        return [""] * len(local)
    has_era = any(item.letter == "G" for item in items)
    # Most patterns are coarse, so many rows have the same text: make each text once.
    _, firsts, places = np.unique(
        local // _resolution(items), return_index=True, return_inverse=True
    )
    columns = [_texts(item, local[firsts], micros[firsts], zone, has_era=has_era) for item in items]
    texts = ["".join(parts) for parts in zip(*columns, strict=True)]
    return [texts[place] for place in places.tolist()]


def _resolution(items: list[Item]) -> int:
    """The microseconds in which the text of a pattern does not change."""
    letters = {item.letter for item in items}
    if letters & set("SXxZO"):
        return 1
    if "s" in letters:
        return MICROS
    if "m" in letters:
        return 60 * MICROS
    return 3600 * MICROS if letters & set("hHkKa") else DAY_MICROS


def _texts(item: Item, local: Ints, micros: Ints, zone: str, *, has_era: bool) -> list[str]:
    letter, count = item.letter, item.count
    if not letter:
        return [item.literal] * len(local)
    days = local // DAY_MICROS
    seconds = local % DAY_MICROS // MICROS
    if letter in "XxZO":
        return [_offset_text(each, letter, count) for each in offsets_at(micros, zone).tolist()]
    if letter == "V":
        return [zone] * len(local)
    if letter == "S":
        return [f"{each:06d}000"[:count] for each in (local % MICROS).tolist()]
    if letter in "GyMLdDEqQ":
        return _date_texts(letter, count, days, has_era=has_era)
    hours = seconds // 3600
    if letter == "a":
        return ["PM" if each >= 12 else "AM" for each in hours.tolist()]
    found = {
        "H": hours,
        "k": (hours - 1) % 24 + 1,
        "K": hours % 12,
        "h": (hours - 1) % 12 + 1,
        "m": seconds // 60 % 60,
        "s": seconds % 60,
    }[letter]
    return [f"{each:0{count}d}" for each in found.tolist()]


def _date_texts(letter: str, count: int, days: Ints, *, has_era: bool) -> list[str]:
    year, month, day = date_of(days)
    if letter == "G":
        names = ("Before Christ", "Anno Domini") if count == 4 else ("BC", "AD")
        return [names[each > 0] for each in year.tolist()]
    if letter == "y":
        of_era = np.where(year > 0, year, 1 - year) if has_era else year
        return [_year_text(each, count) for each in of_era.tolist()]
    if letter == "E":
        return [WEEKDAYS[each][: None if count == 4 else 3] for each in weekday(days).tolist()]
    if letter in "qQ" and count > 2:
        quarters = ((month + 2) // 3).tolist()
        return [QUARTERS[each - 1] if count == 4 else f"Q{each}" for each in quarters]
    if letter in "ML" and count > 2:
        return [MONTHS[each - 1][: None if count == 4 else 3] for each in month.tolist()]
    found = {"d": day, "D": day_of_year(days), "q": (month + 2) // 3, "Q": (month + 2) // 3}
    return [f"{each:0{count}d}" for each in found.get(letter, month).tolist()]


def _year_text(year: int, count: int) -> str:
    if count == 2:
        return f"{abs(year) % 100:02d}"
    sign = "-" if year < 0 else "+" if count >= 4 and year >= 10**count else ""
    return f"{sign}{abs(year):0{count}d}"


def _offset_text(offset: int, letter: str, count: int) -> str:
    sign, size = "-" if offset < 0 else "+", abs(offset)
    hours, minutes, seconds = size // 3600, size // 60 % 60, size % 60
    if letter == "O" or (letter == "Z" and count == 4):
        if not offset:
            return "GMT"
        more = f":{minutes:02d}" if minutes or seconds or count == 4 else ""
        more += f":{seconds:02d}" if seconds else ""
        return f"GMT{sign}{hours:02d}{more}" if count == 4 else f"GMT{sign}{hours}{more}"
    if letter == "Z":
        letter, count = ("X", 5) if count == 5 else ("x", 2)
    if not offset and letter == "X":
        return "Z"
    colon = ":" if count in (3, 5) else ""
    text = f"{sign}{hours:02d}"
    if count > 1 or minutes:
        text += f"{colon}{minutes:02d}"
    if count > 3 and seconds:
        text += f"{colon}{seconds:02d}"
    return text


# Parsing

_OFFSETS = {
    ("X", 1): r"[+-]\d\d(?:\d\d)?|Z",
    ("X", 2): r"[+-]\d{4}|Z",
    ("X", 3): r"[+-]\d\d:\d\d|Z",
    ("X", 4): r"[+-]\d{4}(?:\d\d)?|Z",
    ("X", 5): r"[+-]\d\d:\d\d(?::\d\d)?|Z",
}
_DIGITS = {1: r"\d{1,19}", 2: r"\d{2}"}


@lru_cache(maxsize=256)
def _expression(pattern: str) -> tuple[re.Pattern[str], tuple[Item, ...]]:
    found: list[Item] = []
    text = _regex(items_of(pattern, parsing=True), found)
    return re.compile(text, re.IGNORECASE | re.ASCII), tuple(found)


def _regex(items: Optional, found: list[Item]) -> str:
    parts = []
    for item in items:
        if not isinstance(item, Item):
            parts.append(f"(?:{_regex(item, found)})?")
        elif not item.letter:
            parts.append(re.escape(item.literal))
        else:
            found.append(item)
            parts.append(f"({_part(item)})")
    return "".join(parts)


def _part(item: Item) -> str:
    letter, count = item.letter, item.count
    if letter == "G":
        return "Before Christ|Anno Domini" if count == 4 else "BC|AD"
    if letter == "y":
        if count in (1, 3):
            return rf"-?\d{{{count},19}}"
        return (
            r"\d{2}" if count == 2 else rf"-\d{{{count},10}}|\+\d{{{count + 1},10}}|\d{{{count}}}"
        )
    if letter in "ML" and count > 2:
        return "|".join(name if count == 4 else name[:3] for name in MONTHS)
    if letter == "D":
        return (r"\d{1,19}", r"\d{2,3}", r"\d{3}")[count - 1]
    if letter == "a":
        return "AM|PM"
    if letter == "S":
        return rf"\d{{1,{count}}}"
    if letter == "V":
        return r"[A-Za-z][A-Za-z0-9/_+\-:]*|[+-]\d\d?(?::?\d\d(?::?\d\d)?)?"
    if letter == "Z":
        letter, count = ("X", 5) if count == 5 else ("x", 2)
    if letter in "Xx":
        text = _OFFSETS["X", count]
        return text if letter == "X" else text.removesuffix("|Z")
    return _DIGITS[count]


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a text says: a local date and time, and possibly a zone."""

    year: int
    month: int
    day: int
    micros: int
    """Since midnight."""
    zone: str | None
    day_of_year: int | None = None


def parsed(text: str, pattern: str) -> Parsed | None:
    """The time that a text says; None if it does not match the pattern. The date may not exist."""
    expression, items = _expression(pattern)
    match = expression.fullmatch(text)
    if match is None:
        return None
    values: dict[str, int] = {}
    zone = None
    for item, part in zip(items, match.groups(), strict=True):
        if part is None:
            continue
        if item.letter in "XxZV":
            zone = "UTC" if part in ("Z", "z") else part
            continue
        value = _value(item, part)
        if values.setdefault("M" if item.letter == "L" else item.letter, value) != value:
            return None
    return _resolved(values, zone)


def _value(item: Item, part: str) -> int:
    letter, count = item.letter, item.count
    if letter == "G":
        return int(part.lower() in ("ad", "anno domini"))
    if letter == "a":
        return int(part.lower() == "pm")
    if letter in "ML" and count > 2:
        return next(i for i, name in enumerate(MONTHS, 1) if name[:3].lower() == part[:3].lower())
    if letter == "S":
        return int(part.ljust(9, "0")) // 1000
    if letter == "y" and count == 2:
        return 2000 + int(part)
    return int(part)


_RANGES = {
    "M": (1, 12), "d": (1, 31), "D": (1, 366), "H": (0, 23), "k": (1, 24), "K": (0, 11),
    "h": (1, 12), "m": (0, 59), "s": (0, 59),
}  # fmt: skip


def _resolved(values: dict[str, int], zone: str | None) -> Parsed | None:
    for letter, value in values.items():
        low, high = _RANGES.get(letter, (-(10**9), 10**9))
        if not low <= value <= high:
            return None
    year = values.get("y", 1970)
    if "G" in values:
        if year < 1:
            return None
        year = year if values["G"] else 1 - year
    hour = _hour(values)
    if hour is None:
        return None
    seconds = hour * 3600 + values.get("m", 0) * 60 + values.get("s", 0)
    micros = seconds * MICROS + values.get("S", 0)
    month, day = values.get("M", 1), values.get("d", 1)
    return Parsed(year, month, day, micros, zone, values.get("D"))


def _hour(values: dict[str, int]) -> int | None:
    """The hour of the day, by whatever letters say it; None if they contradict each other."""
    afternoon = values.get("a")
    of_half = values["K"] if "K" in values else values["h"] % 12 if "h" in values else None
    hours = {values["H"]} if "H" in values else set()
    if "k" in values:
        hours.add(values["k"] % 24)
    if of_half is not None and (afternoon is not None or not hours):
        hours.add(of_half + 12 * (afternoon or 0))
    if not hours:
        return 12 * (afternoon or 0)
    if len(hours) > 1 or (afternoon is not None and next(iter(hours)) // 12 != afternoon):
        return None
    return hours.pop()
