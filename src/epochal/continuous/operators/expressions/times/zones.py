"""Local times of time zones as Java computes them, for whole columns. Reads time zone files.

Java and Arrow differ: in Java, a local time that a change of clocks skips is moved forward by the
length of the gap, one that occurs twice is the earlier one, and the last rules of a zone hold
forever. Each zone becomes a table of its changes until 2500. The calendar repeats after 400 years,
so later times are looked up 400 years earlier.
"""

from __future__ import annotations

import re
import struct
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from epochal.continuous.operators.expressions.times.calendar_days import days_from
from epochal.continuous.operators.spark_values.timestamp_texts import SHORT_ZONES
from epochal.errors import OptionError

Ints: TypeAlias = npt.NDArray[np.int64]

DAY = 86_400
CYCLE_SECONDS = 146_097 * DAY
"""The calendar repeats after 400 years."""
LAST_YEAR = 2500
MICROS = 1_000_000

_FIXED = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?")


@dataclass(frozen=True, slots=True)
class Zone:
    """The changes of a zone's offset, in seconds."""

    changes: Ints
    """When the offset changes, in UTC."""
    offsets: Ints
    """The offset before the first change, then the one after each change."""
    local_changes: Ints
    """The first local times that have the new offset and are not ambiguous."""


def to_local(micros: Ints, zone: str) -> Ints:
    """Local times, in microseconds, of instants."""
    return micros + offsets_at(micros, zone) * MICROS


def offsets_at(micros: Ints, zone: str) -> Ints:
    """The offsets from UTC at some instants, in seconds."""
    table = find_zone(zone)
    seconds = micros // MICROS
    found: Ints = table.offsets[np.searchsorted(table.changes, _within(seconds), side="right")]
    return found


def to_utc(local: Ints, zone: str, preferred: Ints | None = None) -> Ints:
    """Instants of local times. Where two offsets are possible, `preferred` decides."""
    table = find_zone(zone)
    seconds = _within(local // MICROS)
    offsets = table.offsets[np.searchsorted(table.local_changes, seconds, side="right")]
    found: Ints = local - offsets * MICROS
    if preferred is None:
        return found
    wanted: Ints = local - preferred * MICROS
    return np.where(offsets_at(wanted, zone) == preferred, wanted, found)


def _within(seconds: Ints) -> Ints:
    last = int(days_from(np.array([LAST_YEAR]), np.array([1]), np.array([1]))[0]) * DAY
    late = np.maximum(seconds - last, 0)
    found: Ints = seconds - -(-late // CYCLE_SECONDS) * CYCLE_SECONDS
    return found


@lru_cache(maxsize=64)
def find_zone(name: str) -> Zone:
    """The table of a zone; OptionError if there is no such zone."""
    text = SHORT_ZONES.get(name, name)
    if text in ("Z", "UTC", "GMT", "UT"):
        return _table([], [0])
    fixed = _FIXED.fullmatch(text)
    if fixed:
        sign, hours, minutes, seconds = fixed.groups()
        offset = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
        if offset <= 18 * 3600:
            return _table([], [-offset if sign == "-" else offset])
    return _read(_file(text))


def _table(changes: list[int], offsets: list[int]) -> Zone:
    after = np.array(offsets, np.int64)
    local = np.array(changes, np.int64) + np.maximum(after[:-1], after[1:])
    return Zone(np.array(changes, np.int64), after, local)


def _file(name: str) -> bytes:
    safe = re.fullmatch(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+)*", name)
    for folder in zoneinfo.TZPATH if safe else ():
        path = Path(folder, name)
        if path.is_file():
            return path.read_bytes()
    try:
        if safe:
            package, _, last = f"tzdata.zoneinfo.{name.replace('/', '.')}".rpartition(".")
            return (resources.files(package) / last).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError, IsADirectoryError):
        pass
    raise OptionError(
        f"INVALID_TIMEZONE: there is no time zone {name!r}. Use the name of a region, such as "
        f"Europe/Berlin, or an offset, such as +02:00."
    )


def _read(data: bytes) -> Zone:
    """Read a file in the format of RFC 8536, version 2 or later."""
    header = struct.Struct(">4sc15x6l")
    _, _, *first = header.unpack_from(data)
    utc, std, leap, times, types, chars = first
    skip = header.size + times * 5 + types * 6 + chars + leap * 8 + std + utc
    _, _, utc, std, leap, times, types, chars = header.unpack_from(data, skip)
    at = skip + header.size
    changes = list(struct.unpack_from(f">{times}q", data, at))
    kinds = data[at + times * 8 : at + times * 9]
    at += times * 9
    known = [struct.unpack_from(">lbb", data, at + 6 * i) for i in range(types)]
    rule = data[at + types * 6 + chars + leap * 12 + std + utc :].decode().strip()
    initial = next((each[0] for each in known if not each[1]), known[0][0])
    offsets = [initial, *(known[kind][0] for kind in kinds)]
    for change, offset in _by_rule(rule):
        if not changes or change > changes[-1]:
            changes.append(change)
            offsets.append(offset)
    return _table(changes, offsets)


_RULE = re.compile(
    r"(?:<[^>]+>|[A-Za-z]+)([+-]?[\d:]+)(?:<[^>]+>|[A-Za-z]+)([+-]?[\d:]+)?,([^,]+),([^,]+)"
)


def _by_rule(rule: str) -> Iterator[tuple[int, int]]:
    """The yearly changes until the last year, by a rule such as `EST5EDT,M3.2.0,M11.1.0`."""
    match = _RULE.fullmatch(rule)
    if match is None:
        return
    standard = -_seconds(match[1])
    summer = -_seconds(match[2]) if match[2] else standard + 3600
    for year in range(1970, LAST_YEAR + 1):
        begin = _moment(match[3], year) - standard
        end = _moment(match[4], year) - summer
        yield from sorted([(begin, summer), (end, standard)])


def _seconds(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    parts = [int(part) for part in text.lstrip("+-").split(":")]
    return sign * sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))


def _moment(text: str, year: int) -> int:
    """The local time of a rule's day in a year: `M3.2.0/2` is the second Sunday of March at 2."""
    day, _, time = text.partition("/")
    seconds = _seconds(time) if time else 7200
    if not day.startswith("M"):
        number = int(day.lstrip("J")) - (1 if day.startswith("J") else 0)
        first = _day(year, 1, 1)
        if day.startswith("J") and _day(year, 3, 1) - first == 60 and number >= 59:
            number += 1
        return (first + number) * DAY + seconds
    month, week, weekday = map(int, day[1:].split("."))
    first = _day(year, month, 1)
    found = first + (weekday - (first + 4)) % 7 + 7 * (week - 1)
    following = _day(year + month // 12, month % 12 + 1, 1)
    return (found - 7 * (found >= following)) * DAY + seconds


def _day(year: int, month: int, day: int) -> int:
    return int(days_from(np.array([year]), np.array([month]), np.array([day]))[0])
