"""Defines the row values for which Python has no type, and exact decimals. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, TypeAlias

Row: TypeAlias = tuple[Any, ...]

_EXACT = Context(prec=80, Emin=-999999, Emax=999999)


@dataclass(frozen=True, slots=True)
class CalendarInterval:
    """Spark's calendar interval; its three parts do not convert into each other."""

    months: int
    days: int
    microseconds: int


@dataclass(frozen=True, slots=True)
class TimestampNanos:
    """A timestamp finer than a microsecond; `nanos` is 0 to 999."""

    epoch_micros: int
    nanos: int


@dataclass(frozen=True, slots=True)
class Variant:
    """Spark's variant, in its binary encoding."""

    value: bytes
    metadata: bytes


def unscaled_of(value: Decimal, precision: int, scale: int) -> int | None:
    """The integer that represents `value` at the scale; None if `value` does not fit exactly."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return None
    magnitude = int("".join(map(str, digits)) or "0")
    shift = exponent + scale
    if shift >= 0:
        if magnitude and shift > precision:
            return None
        magnitude *= 10**shift if magnitude else 1
    else:
        magnitude, rest = divmod(magnitude, 10 ** min(-shift, len(digits) + 1))
        if rest:
            return None
    if magnitude >= 10**precision:
        return None
    return -magnitude if sign else magnitude


def decimal_of(unscaled: int, scale: int) -> Decimal:
    """The decimal that `unscaled` represents at the scale."""
    return Decimal(unscaled).scaleb(-scale, _EXACT)


def minimal_bytes(unscaled: int) -> bytes:
    """Big-endian two's complement in as few bytes as possible, as Java's BigInteger gives."""
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)
