"""Values of Python functions as Spark's JVM takes them over, and time zones as it names them. Pure.

The JVM does not cast: a value of a class that does not match the declared type becomes null, an int
for a double for example. Integers are cut to the width of the type. Any value becomes a string.
"""

from __future__ import annotations

import datetime
import functools
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

_LONG = 1 << 63
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2})(?::?(\d{2}))?)?", re.ASCII)
_SHORT_NAMES = {
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


def java_integer(bits: int) -> Callable[[Any], int | None]:
    """The conversion for integers of this width."""
    half, count = 1 << (bits - 1), 1 << bits

    def convert(value: Any) -> int | None:
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        if not -_LONG <= value < _LONG:
            return None  # arrives in the JVM as a BigInteger, which it cannot convert
        return (value + half) % count - half

    return convert


def java_bytes(value: Any) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def java_text(value: Any) -> str:
    """A value as Java prints it: a double is plain from 0.001 to 10 million, `d.dE±n` outside."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign, digits, exponent = Decimal(repr(float(value))).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)  # digits before the decimal point
    prefix = "-" if sign else ""
    if 1e-3 <= abs(value) < 1e7:
        if point <= 0:
            return f"{prefix}0.{'0' * -point}{text}"
        whole = text[:point].ljust(point, "0")
        return f"{prefix}{whole}.{text[point:] or '0'}"
    return f"{prefix}{text[0]}.{text[1:] or '0'}E{point - 1}"


@functools.lru_cache(maxsize=1024)
def zone_of(name: str) -> datetime.tzinfo | None:
    """The time zone of a name, an offset or one of Java's short names; None if there is none."""
    name = _SHORT_NAMES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return datetime.UTC
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        sign, hours, minutes, seconds = offset.groups()
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
