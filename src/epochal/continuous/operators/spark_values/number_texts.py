"""Numbers to text and back, as Java and Spark do it. Pure."""

from __future__ import annotations

import decimal
import math
import re
from decimal import Decimal

import numpy as np

BLANKS = "".join(map(chr, range(33))) + "\x7f"
"""What Spark trims from a text before it reads a number, a boolean or a date in it."""

EXACT = decimal.Context(prec=800, rounding=decimal.ROUND_HALF_UP, Emax=10**6, Emin=-(10**6))
"""Enough digits for every exact result that is then rounded to at most 38."""

MAX_PRECISION = 38

_DOUBLE = re.compile(r"[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)", re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")  # digits of any script
_WORDS = {
    "inf": math.inf,
    "+inf": math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
    "nan": math.nan,
}


def java_text(value: float, *, single: bool = False) -> str:
    """A double (or a float, if `single`) as Java prints it: plain from 0.001 to 10 million,
    `d.dE±n` outside."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    shortest = np.format_float_scientific(np.float32(value)) if single else repr(float(value))
    sign, digits, exponent = Decimal(shortest).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)  # digits before the decimal point
    prefix = "-" if sign else ""
    if 1e-3 <= abs(value) < 1e7:
        if point <= 0:
            return f"{prefix}0.{'0' * -point}{text}"
        whole = text[:point].ljust(point, "0")
        return f"{prefix}{whole}.{text[point:] or '0'}"
    return f"{prefix}{text[0]}.{text[1:] or '0'}E{point - 1}"


def long_of(text: str, *, fraction: bool) -> int | None:
    """The whole number in a text. With `fraction`, digits after a point are allowed and ignored."""
    trimmed = text.strip(BLANKS)
    if fraction:
        whole, point, rest = trimmed.partition(".")
        if point and (not _digits(rest, empty=True)):
            return None
    else:
        whole, point = trimmed, ""
    digits = whole[1:] if whole[:1] in ("+", "-") else whole
    if not _digits(digits, empty=bool(point)):
        return None
    number = int(digits or "0")
    number = -number if whole[:1] == "-" else number
    return number if -(2**63) <= number < 2**63 else None


def _digits(text: str, *, empty: bool) -> bool:
    return text.isascii() and text.isdigit() if text else empty


def double_of(text: str) -> float | None:
    """The double in a text, in any form that Java's `parseDouble` accepts, and Spark's words."""
    trimmed = text.strip(BLANKS[:-1])
    if _DOUBLE.fullmatch(trimmed):
        if trimmed[-1] in "fFdD":
            trimmed = trimmed[:-1]
        return float(trimmed)
    if _HEXADECIMAL.fullmatch(trimmed):
        return float.fromhex(trimmed)
    return _WORDS.get(trimmed.lower())


def decimal_of(text: str) -> Decimal | None:
    """The exact number in a text."""
    trimmed = text.strip(BLANKS[:-1])
    if not _DECIMAL.fullmatch(trimmed):
        return None
    try:
        return Decimal(trimmed)
    except decimal.DecimalException:
        return None


def decimal_of_double(value: float) -> Decimal | None:
    """The decimal that Java prints for a double; None if it is not finite."""
    return Decimal(repr(float(value))) if math.isfinite(value) else None


def fit_decimal(number: Decimal, precision: int, scale: int) -> Decimal | None:
    """A number rounded half up to a decimal type; None if it does not fit."""
    if number and number.adjusted() > MAX_PRECISION:
        return None
    if number.adjusted() < -100:
        return Decimal(0).scaleb(-scale)
    fitted = number.quantize(Decimal(1).scaleb(-scale), decimal.ROUND_HALF_UP, EXACT)
    return fitted if fitted.copy_abs() < Decimal(10) ** (precision - scale) else None


def round_to_single(value: float) -> float:
    """A double rounded to single precision."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))
