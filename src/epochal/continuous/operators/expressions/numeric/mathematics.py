"""Mathematical functions and functions of bits. Pure.

Numbers are computed one by one with the C library: Arrow's and NumPy's vectorised functions differ
from Java's in more digits. Square roots, rounding and angles are exact. Logarithms, powers and
trigonometric functions may differ from Java's in the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.lists_of import (
    all_on_columns,
    ints_of,
    null_flags_of,
)
from epochal.continuous.operators.expressions.values_of import each
from epochal.errors import OptionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

NAN, INF = math.nan, math.inf
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_UNSIGNED = 2**64


def _real(function: Callable[..., float]) -> Function:
    """A function of doubles: NaN outside its domain, and infinite if the result is too large."""

    def compute_one(*numbers: float) -> float:
        try:
            return function(*numbers)
        except ValueError:
            return NAN
        except OverflowError:
            return INF

    return lambda call, *values: each(compute_one, pa.float64(), *values)


def _logarithm(function: Callable[[float], float], above: float = 0.0) -> Function:
    """A logarithm; null for numbers up to `above`."""

    def compute_one(number: float) -> float | None:
        return None if number <= above else function(number)

    return lambda call, value: each(compute_one, pa.float64(), value)


def _log_to_base(base: float, number: float) -> float | None:
    if base <= 0 or number <= 0:
        return None
    return _quotient(math.log(number), math.log(base))


def _quotient(dividend: float, divisor: float) -> float:
    if divisor != 0:
        return dividend / divisor
    if dividend == 0 or math.isnan(dividend):
        return NAN
    return math.copysign(INF, dividend) * math.copysign(1.0, divisor)


def _power(base: float, exponent: float) -> float:
    if math.isnan(exponent) or (abs(base) == 1 and math.isinf(exponent)):
        return NAN  # C says 1
    if base == 0 and exponent < 0:
        is_odd = exponent % 2 == 1
        return math.copysign(INF, base) if is_odd else INF
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -INF if base < 0 and exponent % 2 == 1 else INF


def _odd(function: Callable[[float], float]) -> Callable[[float], float]:
    """A function that is infinite with the sign of its argument when it overflows."""

    def apply(number: float) -> float:
        try:
            return function(number)
        except OverflowError:
            return math.copysign(INF, number)

    return apply


def _cube_root(number: float) -> float:
    root = math.cbrt(number)
    if root == 0 or not math.isfinite(root):
        return root
    precise = np.longdouble(root)  # the C library's result may be wrong in the last bit
    return float(precise - (precise**3 - number) / (3 * precise * precise))


def _atanh(number: float) -> float:
    if abs(number) == 1:
        return math.copysign(INF, number)
    return 0.5 * (math.log1p(number) - math.log1p(-number))


def _factorial(call: Call, value: Value) -> Value:
    numbers = ints_of(value)
    table = np.array([math.factorial(n) for n in range(21)], np.int64)
    outside = (numbers < 0) | (numbers > 20)
    found = table[np.where(outside, 0, numbers)]
    return pa.array(found, mask=outside | null_flags_of(value))


def _convert(call: Call, value: Value, source: Value, target: Value) -> Value:
    def convert(text: str, old: int, new: int) -> str | None:
        return converted(text.encode(), old, new, ansi=call.ansi)

    return each(convert, pa.string(), value, source, target)


def converted(text: bytes, source: int, target: int, *, ansi: bool) -> str | None:
    """A number of another base. It is an unsigned one of 64 bits if `target` is positive."""
    if not (2 <= source <= 36 and 2 <= abs(target) <= 36 and text):
        return None
    negative = text.startswith(b"-")
    number = 0
    for byte in text[1:] if negative else text:
        digit = _DIGITS.find(chr(byte).upper()) if byte < 128 else -1
        if not 0 <= digit < source:
            break
        number = number * source + digit
        if number >= _UNSIGNED:
            if ansi:
                raise OptionError("ARITHMETIC_OVERFLOW: conv: a number has more than 64 bits.")
            number = _UNSIGNED - 1
            break
    is_large = number >= _UNSIGNED // 2
    if negative and target > 0:
        number = _UNSIGNED - 1 if is_large else -number % _UNSIGNED
        is_large = number >= _UNSIGNED // 2
    if target < 0 and is_large:
        number, negative = -number % _UNSIGNED, True
    digits = ""
    while number:
        number, digit = divmod(number, abs(target))
        digits = _DIGITS[digit] + digits
    return ("-" if negative and target < 0 else "") + (digits or "0")


def _bucket(value: float, low: float, high: float, count: int) -> int | None:
    finite = not math.isnan(value) and math.isfinite(low) and math.isfinite(high)
    if not finite or low == high or not 0 < count < 2**63 - 1:
        return None
    distance, width = (value - low, high - low) if low < high else (low - value, low - high)
    if distance < 0:
        return 0
    return count + 1 if distance >= width else int(float(count) * distance / width) + 1


def _bit_count(call: Call, value: Value) -> Value:
    numbers = ints_of(value.cast(pa.int64()))
    found = np.bitwise_count(numbers.view(np.uint64)).astype(np.int32)
    return pa.array(found, mask=null_flags_of(value))


def _bit(call: Call, value: Value, position: Value) -> Value:
    places, nulls = ints_of(position), null_flags_of(value) | null_flags_of(position)
    outside = ~nulls & ((places < 0) | (places >= value.type.bit_width))
    if outside.any():
        raise OptionError(
            f"getbit: the position {places[outside][0]} is not one of the "
            f"{value.type.bit_width} bits of the number."
        )
    found = ints_of(value) >> np.where(nulls, 0, places) & 1
    return pa.array(found.astype(np.int8), mask=nulls)


def _shift(name: str) -> Function:
    def apply(call: Call, value: Value, bits: Value) -> Value:
        width = value.type.bit_width
        signed: Any = np.int32 if width == 32 else np.int64
        numbers = ints_of(value).astype(signed)
        count = ints_of(bits) % width
        if name == "left":
            found = numbers << count.astype(signed)
        elif name == "right":
            found = numbers >> count.astype(signed)
        else:
            unsigned: Any = np.uint32 if width == 32 else np.uint64
            found = (numbers.view(unsigned) >> count.astype(unsigned)).view(signed)
        return pa.array(found, mask=null_flags_of(value) | null_flags_of(bits))

    return apply


def _binary_digits(number: int) -> str:
    return f"{number % _UNSIGNED:b}"


FUNCTIONS: dict[str, Function] = {
    "Sqrt": lambda call, value: pc.sqrt(value),
    "Cbrt": _real(_cube_root),
    "Exp": _real(math.exp),
    "Expm1": _real(math.expm1),
    "Log": _logarithm(math.log),
    "Log2": _logarithm(lambda number: math.log(number) / math.log(2)),
    "Log10": _logarithm(math.log10),
    "Log1p": _logarithm(math.log1p, above=-1.0),
    "Logarithm": lambda call, *values: each(_log_to_base, pa.float64(), *values),
    "Pow": _real(_power),
    "Sin": _real(math.sin),
    "Cos": _real(math.cos),
    "Tan": _real(math.tan),
    "Cot": _real(lambda angle: _quotient(1.0, math.tan(angle))),
    "Sec": _real(lambda angle: _quotient(1.0, math.cos(angle))),
    "Csc": _real(lambda angle: _quotient(1.0, math.sin(angle))),
    "Asin": _real(math.asin),
    "Acos": _real(math.acos),
    "Atan": _real(math.atan),
    "Atan2": _real(lambda y, x: math.atan2(y + 0.0, x + 0.0)),
    "Sinh": _real(_odd(math.sinh)),
    "Cosh": _real(math.cosh),
    "Tanh": _real(math.tanh),
    "Asinh": _real(math.asinh),
    "Acosh": _real(math.acosh),
    "Atanh": _real(_atanh),
    "Hypot": _real(math.hypot),
    "ToDegrees": _real(lambda angle: angle * 57.29577951308232),
    "ToRadians": _real(lambda angle: angle * 0.017453292519943295),
    "Rint": lambda call, value: pc.round(value, round_mode="half_to_even"),
    "WidthBucket": lambda call, *values: each(_bucket, pa.int64(), *values),
    "Bin": lambda call, value: each(_binary_digits, pa.string(), value),
    "Conv": _convert,
    **all_on_columns(
        {
            "Factorial": _factorial,
            "BitwiseCount": _bit_count,
            "BitwiseGet": _bit,
            "ShiftLeft": _shift("left"),
            "ShiftRight": _shift("right"),
            "ShiftRightUnsigned": _shift("unsigned"),
        }
    ),
}
