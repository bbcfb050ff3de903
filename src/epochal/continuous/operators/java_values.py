"""Values of Python functions as Spark's JVM takes them over. Pure.

The JVM does not cast: a value of a class that does not match the declared type becomes null, an int
for a double for example. Integers are cut to the width of the type. Any value becomes a string.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

_LONG = 1 << 63


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
