"""format_string with Java's formats, and format_number. Pure.

Formats that are not supported here (dates, %a, %g and %h) are refused when the query is written
down, if the format is a constant.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from typing import Any

import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Literal, Value
from epochal.continuous.operators.expressions.row_values import Kind, by_row
from epochal.continuous.operators.spark_values.number_texts import EXACT, java_text
from epochal.errors import ExpressionError

types = pa.types

_PART = re.compile(r"%(?:(\d+)\$)?([-#+ 0,(<]*)(\d+)?(?:\.(\d+))?(.)", re.DOTALL)
_CONVERSIONS = "bBsScCdoxXeEfn%"
_PATTERN = re.compile(r"(?:(#,(?:###,)*##(?=0(?:\.|$)))|#*)(0+)(?:\.(0*)(#*))?")
_DEFAULT_PATTERN = "#,###,###,###,###,###,##0"


class _Wrong(Exception):
    """A value and its format do not belong together."""


def _format_string(call: Call, pattern: Value, *values: Value) -> Value:
    kinds = [each.type for each in values]

    def single(text: str | None, *row: Any) -> str | None:
        if text is None:
            return None
        try:
            return _formatted(text, row, kinds)
        except _Wrong as error:
            raise ExpressionError(
                f"format_string cannot format with {text!r}: {error}. Change the format, or cast "
                f"the argument."
            ) from None

    return by_row(single, pa.string(), pattern, *values, nulls=True)


def _formatted(text: str, row: tuple[Any, ...], kinds: list[Kind]) -> str:
    parts: list[str] = []
    end = following = 0
    last = -1
    while (at := text.find("%", end)) >= 0:
        found = _PART.match(text, at)
        if found is None or found[5] not in _CONVERSIONS:
            raise _Wrong(f"{text[at : at + 4]!r} is no supported format")
        parts.append(text[end:at])
        end = found.end()
        if found[5] in "n%":
            parts.append("\n" if found[5] == "n" else _padded("%", found[2], found[3]))
            continue
        if found[1]:
            last = int(found[1]) - 1
        elif "<" not in found[2]:
            last, following = following, following + 1
        if not 0 <= last < len(row):
            raise _Wrong(f"{found.group()!r} has no argument")
        parts.append(_single(found, row[last], kinds[last]))
    return "".join([*parts, text[end:]])


def _single(found: re.Match[str], value: Any, kind: Kind) -> str:
    _, flags, width, precision, letter = found.groups()
    made = _CONVERTERS[letter.lower()](value, kind, flags, width, precision)
    return made.upper() if letter.isupper() else made


def _padded(text: str, flags: str, width: str | None) -> str:
    size = int(width or 0) - sum(each > "\uffff" for each in text)  # Java counts those twice
    return text.ljust(size) if "-" in flags else text.rjust(size)


def _text(value: Any, kind: Kind, flags: str, width: str | None, precision: str | None) -> str:
    if set(flags) - set("-<"):
        raise _Wrong(f"the flags {flags!r} are for numbers")
    if value is None:
        text = "null"
    elif types.is_boolean(kind):
        text = str(value).lower()
    elif types.is_floating(kind):
        text = java_text(value, single=kind == pa.float32())
    elif types.is_decimal(kind):
        text = f"{value:f}"
    elif types.is_string(kind) or types.is_integer(kind) or types.is_temporal(kind):
        text = str(value)
    else:
        raise _Wrong(f"a value of type {kind} has no text")
    return _padded(text if precision is None else text[: int(precision)], flags, width)


def _boolean(value: Any, kind: Kind, flags: str, width: str | None, precision: str | None) -> str:
    truth = value is not None and (value if types.is_boolean(kind) else True)
    return _text(str(bool(truth)).lower(), pa.string(), flags, width, precision)


def _character(value: Any, kind: Kind, flags: str, width: str | None, precision: str | None) -> str:
    if value is None:
        return _padded("null", flags, width)
    if not _is_whole(kind) or kind.bit_width > 32 or precision is not None:
        raise _Wrong(f"%c takes an integer, not {kind}")
    if not 0 <= value <= 0x10FFFF:
        raise _Wrong(f"{value} is no character")
    return _padded(chr(value), flags, width)


def _is_whole(kind: Kind) -> bool:
    return types.is_integer(kind) or types.is_date(kind) or types.is_timestamp(kind)


def _whole(value: Any, kind: Kind, flags: str, width: str | None, precision: str | None) -> str:
    if precision is not None:
        raise _Wrong("an integer has no precision")
    _check_width(flags, width)
    if value is None:
        return _padded("null", flags, width)
    if not _is_whole(kind):
        raise _Wrong(f"%d takes an integer, not {kind}")
    return _signed(value < 0, f"{abs(value):,}" if "," in flags else str(abs(value)), flags, width)


def _in_base(letter: str) -> Callable[..., str]:
    def apply(value: Any, kind: Kind, flags: str, width: str | None, precision: str | None) -> str:
        if precision is not None or set(flags) & set("+ ,("):
            raise _Wrong(f"%{letter} takes neither a precision nor the flags {flags!r}")
        _check_width(flags, width)
        if value is None:
            return _padded("null", flags, width)
        if not _is_whole(kind):
            raise _Wrong(f"%{letter} takes an integer, not {kind}")
        prefix = {"x": "0x", "o": "0"}[letter] if "#" in flags else ""
        digits = format(value % (1 << kind.bit_width), letter)
        if "0" in flags:
            digits = digits.rjust(int(width or 0) - len(prefix), "0")
        return _padded(prefix + digits, flags, width)

    return apply


def _check_width(flags: str, width: str | None) -> None:
    if width is None and set(flags) & set("-0"):
        raise _Wrong("the flags - and 0 need a width")
    if ("-" in flags and "0" in flags) or ("+" in flags and " " in flags):
        raise _Wrong(f"the flags {flags!r} contradict each other")


def _signed(negative: bool, digits: str, flags: str, width: str | None) -> str:
    before, after = ("(", ")") if negative and "(" in flags else ("-" if negative else "", "")
    if not negative:
        before = "+" if "+" in flags else " " if " " in flags else ""
    if "0" in flags:
        digits = digits.rjust(int(width or 0) - len(before) - len(after), "0")
    return _padded(before + digits + after, flags, width)


def _real(value: Any, kind: Kind, flags: str, width: str | None, precision: str | None) -> str:
    _check_width(flags, width)
    if value is None:
        return _padded("null"[: None if precision is None else int(precision)], flags, width)
    if not types.is_floating(kind):
        raise _Wrong(f"%f takes a double, not {kind}: cast it to double")
    if not math.isfinite(value):
        return _not_finite(value, flags, width)
    # Java rounds the digits that it would print, half up.
    step = Decimal(1).scaleb(-int(precision or 6) if precision != "0" else 0, EXACT)
    number = Decimal(repr(abs(value))).quantize(step, ROUND_HALF_UP, EXACT)
    digits = f"{number:,f}" if "," in flags else f"{number:f}"
    return _signed(math.copysign(1, value) < 0, digits, flags, width)


def _not_finite(value: float, flags: str, width: str | None) -> str:
    if math.isnan(value):
        return _padded("NaN", flags, width)
    return _signed(value < 0, "Infinity", flags.replace("0", ""), width)


def _scientific(
    value: Any, kind: Kind, flags: str, width: str | None, precision: str | None
) -> str:
    _check_width(flags, width)
    if value is None:
        return _padded("null"[: None if precision is None else int(precision)], flags, width)
    if not types.is_floating(kind) or "," in flags:
        raise _Wrong(f"%e takes a double, not {kind}, and no commas")
    if not math.isfinite(value):
        return _not_finite(value, flags, width)
    places = 6 if precision is None else int(precision)
    number, exponent = Decimal(repr(abs(value))), 0
    if number:
        exponent = number.adjusted()
        step = Decimal(1).scaleb(exponent - places, EXACT)
        number = number.quantize(step, ROUND_HALF_UP, EXACT)
        exponent = number.adjusted()
        number = number.scaleb(-exponent, EXACT)
    number = number.quantize(Decimal(1).scaleb(-places, EXACT), ROUND_HALF_UP, EXACT)
    digits = f"{number:f}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"
    return _signed(math.copysign(1, value) < 0, digits, flags, width)


_CONVERTERS: dict[str, Callable[..., str]] = {
    "b": _boolean, "c": _character, "d": _whole, "e": _scientific, "f": _real, "o": _in_base("o"),
    "s": _text, "x": _in_base("x"),
}  # fmt: skip


def _format_number(call: Call, value: Value, pattern: Value) -> Value:
    def single(number: Any, wanted: int | str) -> str | None:
        if isinstance(wanted, int):
            return None if wanted < 0 else _grouped(number, wanted, wanted, 1, groups=True)
        found = _pattern(wanted)
        if found is None:
            raise ExpressionError(
                f"format_number does not support the pattern {wanted!r}. Use a number of digits, "
                f"or a pattern such as '#,##0.00'."
            )
        return _grouped(number, *found[:3], groups=found[3])

    return by_row(single, pa.string(), value, pattern)


@functools.lru_cache(maxsize=64)
def _pattern(text: str) -> tuple[int, int, int, bool] | None:
    """Least and most decimals, least digits, and whether thousands are grouped."""
    found = _PATTERN.fullmatch(text or _DEFAULT_PATTERN)
    if found is None:
        return None
    least = len(found[3] or "")
    return least, least + len(found[4] or ""), len(found[2]), found[1] is not None


def _grouped(number: Any, least: int, most: int, digits: int, *, groups: bool) -> str:
    if isinstance(number, float) and not math.isfinite(number):
        return "NaN" if math.isnan(number) else "∞" if number > 0 else "-∞"
    exact = Decimal(number)
    if isinstance(number, float):
        # Java has no more digits than it needs to tell a double from all others.
        shortest = Decimal(repr(number))
        exact = shortest if int(shortest.as_tuple().exponent) >= -most else exact
    rounded = exact.copy_abs().quantize(Decimal(1).scaleb(-most, EXACT), ROUND_HALF_EVEN, EXACT)
    whole, _, decimals = f"{rounded:f}".partition(".")
    while len(decimals) > least and decimals.endswith("0"):
        decimals = decimals[:-1]
    whole = whole.rjust(digits, "0")
    text = f"{int(whole):,}" if groups else whole
    return ("-" if exact.is_signed() else "") + text + ("." + decimals if decimals else "")


def problem_of(call: Call) -> str | None:
    """What is wrong with a constant format; None if nothing is."""
    format_at = 0 if call.function == "FormatString" else 1
    pattern = call.arguments[format_at]
    text = pattern.value.as_py() if isinstance(pattern, Literal) else None
    if not isinstance(text, str):
        return None
    if call.function == "FormatNumber":
        return None if _pattern(text) else f"the pattern {text!r}"
    for at in (each.start() for each in re.finditer("%", text.replace("%%", "  "))):
        found = _PART.match(text, at)
        if found is None or found[5] not in _CONVERSIONS:
            return f"the format {text[at : at + 4]!r}"
    return None


FUNCTIONS: dict[str, Function] = {"FormatNumber": _format_number, "FormatString": _format_string}

CHECKS: dict[str, Callable[[Call], str | None]] = dict.fromkeys(FUNCTIONS, problem_of)
"""What is wrong with a call, so that a query is refused when it is written down."""
