"""Dates and timestamps to text and back, as Spark's CAST does it, for all years.

A date is a number of days since 1970, a timestamp a number of microseconds since 1970 in UTC.
"""

from __future__ import annotations

import datetime
import functools
import re
from zoneinfo import ZoneInfo

from epochal.continuous.operators.spark_values.number_texts import BLANKS

SECOND = 1_000_000
DAY = 86_400 * SECOND
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  local times have no zone
_CYCLE = 146_097
"""Days in 400 years. After that many, the calendar repeats."""

_DATE = re.compile(
    r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL
)
_TIMESTAMP = re.compile(
    r"([+-]?)(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(\D.*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_TIME = re.compile(r"T\d|\d{1,2}:", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2})(?::?(\d{2}))?)?", re.ASCII)
SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip
"""Java's short names, which Spark accepts."""


def days_of(text: str) -> int | None:
    """The date in a text such as `2020-1-2`, `2020-01` or `2020-01-02 and more`."""
    found = _DATE.fullmatch(text.strip(BLANKS))
    if found is None:
        return None
    sign, year, month, day = found.groups()
    return days_of_civil(int(sign + year), int(month or 1), int(day or 1))


def days_of_civil(year: int, month: int, day: int) -> int | None:
    """The number of a day, by the calendar of ISO for all years; None if there is no such day."""
    cycles, year = divmod(year, 400)
    try:
        # Year 0 of a cycle is a leap year, as 2000.
        found = datetime.date(year + 2000, month, day)
    except ValueError:
        return None
    return (found - datetime.date(1970, 1, 1)).days + (cycles - 5) * _CYCLE


def civil_of_days(days: int) -> tuple[int, int, int]:
    """Year, month and day of a date."""
    cycles, rest = divmod(days - 10_957, _CYCLE)  # 2000-01-01 is day 10,957
    found = datetime.date(2000, 1, 1) + datetime.timedelta(days=rest)
    return found.year + 400 * cycles, found.month, found.day


def micros_of(text: str, zone: str) -> int | None:
    """The instant of a text such as `2020-1-2 3:04:05.6+01:00`; without a zone it is in `zone`."""
    parsed = _parse(text) or _parse_time(text, zone)
    if parsed is None:
        return None
    local, named = parsed
    return utc_of_local(local, zone if named is None else named)


def local_micros_of(text: str, *, zone_allowed: bool = True) -> int | None:
    """The date and time in a text, as a timestamp without time zone. A zone in it is ignored."""
    parsed = _parse(text)
    if parsed is None or (parsed[1] is not None and not zone_allowed):
        return None
    return parsed[0]


def _parse(text: str) -> tuple[int, str | None] | None:
    found = _TIMESTAMP.fullmatch(text.strip(BLANKS))
    if found is None:
        return None
    sign, year, month, day, hour, minute, second, fraction, zone = found.groups()
    days = days_of_civil(int(sign + year), int(month or 1), int(day or 1))
    if days is None or int(hour or 0) > 23 or int(minute or 0) > 59 or int(second or 0) > 59:
        return None
    if zone is not None and not is_zone(zone.strip(BLANKS)):
        return None
    seconds = (int(hour or 0) * 60 + int(minute or 0)) * 60 + int(second or 0)
    micros = int((fraction or "")[:6].ljust(6, "0"))
    local = days * DAY + seconds * SECOND + micros
    return local, None if zone is None else zone.strip(BLANKS)


def _parse_time(text: str, zone: str) -> tuple[int, str | None] | None:
    """A text of a time alone means that time today."""
    trimmed = text.strip(BLANKS)
    if not _TIME.match(trimmed):
        return None
    parsed = _parse(f"1970-01-01 {trimmed.removeprefix('T')}")
    if parsed is None:
        return None
    local, named = parsed
    today = datetime.datetime.now(zone_of(named or zone)).date()
    return local + (today - _EPOCH.date()).days * DAY, named


def is_zone(name: str) -> bool:
    """Whether Java knows a time zone of this name."""
    return zone_of(name) is not None


@functools.lru_cache(maxsize=1024)
def zone_of(name: str) -> datetime.tzinfo | None:
    """The time zone of a name, an offset or one of Java's short names; None if there is none."""
    name = SHORT_ZONES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return datetime.UTC
    found = _OFFSET.fullmatch(name)
    if found is not None:
        sign, hours, minutes, seconds = found.groups()
        if minutes is None and len(name.lstrip("UTCGM")) > 3:
            return None
        total = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
        if total > 18 * 3600 or int(minutes or 0) > 59 or int(seconds or 0) > 59:
            return None
        delta = datetime.timedelta(seconds=total)
        return datetime.timezone(-delta if sign == "-" else delta)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def utc_of_local(local: int, zone: str) -> int:
    """The instant of a local time. A time that does not exist counts from before the gap."""
    return local - _offset(_datetime(local), zone)


def local_of_utc(micros: int, zone: str) -> int:
    """The local time of an instant."""
    moment = _datetime(micros)
    found = zone_of(zone)
    assert found is not None, zone
    try:
        offset = moment.replace(tzinfo=datetime.UTC).astimezone(found).utcoffset()
    except OverflowError:
        offset = moment.replace(tzinfo=found).utcoffset()
    assert offset is not None
    return micros + offset // datetime.timedelta(microseconds=1)


def _offset(moment: datetime.datetime, zone: str) -> int:
    found = zone_of(zone)
    assert found is not None, zone
    offset = moment.replace(tzinfo=found).utcoffset()
    assert offset is not None
    return offset // datetime.timedelta(microseconds=1)


def _datetime(micros: int) -> datetime.datetime:
    """A Python datetime to which the same rules of time zones apply. Python has years 1 to 9999."""
    days, rest = divmod(micros, DAY)
    year = civil_of_days(days)[0]
    moved = 0
    if year > 9900:
        moved = -((year - 9500) // 400)
    elif year < 2:
        moved = (401 - year) // 400 + 1
    shifted = (days + moved * _CYCLE) * DAY + rest
    return _EPOCH + datetime.timedelta(microseconds=shifted)


def date_text(days: int) -> str:
    """A date as `2020-01-02`; a year after 9999 has a plus sign."""
    year, month, day = civil_of_days(days)
    return f"{year_text(year)}-{month:02}-{day:02}"


def year_text(year: int) -> str:
    """A year with at least four digits, and a sign where Java prints one."""
    if year < 0:
        return f"-{-year:04}"
    return f"+{year}" if year > 9999 else f"{year:04}"


def timestamp_text(local: int) -> str:
    """A local time as `2020-01-02 03:04:05.6`, without trailing zeros."""
    days, rest = divmod(local, DAY)
    seconds, micros = divmod(rest, SECOND)
    minutes, second = divmod(seconds, 60)
    fraction = f".{micros:06}".rstrip("0") if micros else ""
    return f"{date_text(days)} {minutes // 60:02}:{minutes % 60:02}:{second:02}{fraction}"
