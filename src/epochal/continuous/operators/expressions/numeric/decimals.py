"""Arithmetic on decimals, exact and then rounded half up to the type that Spark gives. Pure.

Arrow computes where its type of the result is Spark's; the rest is computed row by row.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.row_values import Kind, by_row
from epochal.continuous.operators.spark_values.number_texts import EXACT, fit_decimal
from epochal.errors import ExpressionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

_JAVA = decimal.Context(prec=34, rounding=decimal.ROUND_HALF_EVEN)
"""Scala's BigDecimal rounds the results of some operations to 34 digits."""

_QUOTIENT_DIGITS = 39

_DIVISION = decimal.Context(prec=120, rounding=decimal.ROUND_HALF_UP)
"""More digits than any result has. One that is not exact can thus be rounded once more."""


def _remainder(left: Decimal, right: Decimal) -> Decimal:
    _quotient(left, right)
    return EXACT.remainder(left, right)


def _quotient(left: Decimal, right: Decimal) -> int:
    found = int(EXACT.divide_int(left, right))
    if str(abs(found))[_QUOTIENT_DIGITS:].strip("0"):
        raise ExpressionError(
            f"{left} divided by {right} has more than {_QUOTIENT_DIGITS} digits. Spark cannot "
            f"compute the whole quotient of decimals, or their remainder, then."
        )
    return found


def _pmod(left: Decimal, right: Decimal) -> Decimal:
    rest = _remainder(left, right)
    return _remainder(EXACT.add(rest, right), right) if rest < 0 else rest


_OPERATIONS: dict[str, Callable[..., Decimal]] = {
    "Abs": lambda value: _JAVA.minus(value) if value < 0 else value,
    "Add": EXACT.add,
    "Divide": _DIVISION.divide,
    "Multiply": EXACT.multiply,
    "Pmod": _pmod,
    "Remainder": _remainder,
    "Subtract": EXACT.subtract,
    "UnaryMinus": lambda value: _JAVA.subtract(Decimal(0), value),
}
_ALWAYS_STRICT = ("Abs", "UnaryMinus")
_KERNELS = {"Add": "add", "Multiply": "multiply", "Subtract": "subtract"}


def arithmetic(call: Call, *values: Value) -> Value:
    """One of the operations above. A divisor must not be 0."""
    if call.function == "IntegralDivide":
        return _integral_divide(call, *values)
    target: Kind = call.type
    if call.function in _KERNELS:
        found = _by_arrow(_KERNELS[call.function], values)
        if (found is not None and found.type == target) or pa.types.is_null(target):
            return found
    if not pa.types.is_decimal(target):
        target = values[0].type
    operation = _OPERATIONS[call.function]

    def single(*numbers: Decimal) -> Decimal | None:
        return fitted(call, operation(*numbers), target)

    return by_row(single, target, *values)


def _integral_divide(call: Call, left: Value, right: Value) -> Value:
    # Spark computes a decimal without fraction, which may overflow, and takes its lowest 64 bits.
    digits = left.type.precision - left.type.scale + right.type.scale
    kind = pa.decimal128(max(1, min(digits, 38)), 0)

    def single(a: Decimal, b: Decimal) -> int | None:
        found = fitted(call, Decimal(_quotient(a, b)), kind)
        return None if found is None else _long(int(found))

    return by_row(single, pa.int64(), left, right)


def _by_arrow(name: str, values: tuple[Value, ...]) -> Value | None:
    try:
        return pc.call_function(name, list(values))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None  # the precision would be larger than 38


def _long(number: int) -> int:
    """The lowest 64 bits, as in Java."""
    return (number + 2**63) % 2**64 - 2**63


def fitted(call: Call, number: Decimal, kind: Kind) -> Decimal | None:
    """The number in a decimal type. One that does not fit is null, or an error in ANSI mode."""
    found = fit_decimal(number, kind.precision, kind.scale)
    if found is None and (call.ansi or call.function in _ALWAYS_STRICT):
        raise _overflow(call, number, kind)
    return found


def _overflow(call: Call, number: Decimal, kind: Kind) -> ExpressionError:
    return ExpressionError(
        f"NUMERIC_VALUE_OUT_OF_RANGE: {number} is the result of {call.function} and does not fit "
        f"in {kind}. Use a try_ function to get null instead, or set spark.sql.ansi.enabled to "
        f"false."
    )


def rounded(call: Call, value: Value, scale: int, mode: str, kind: Kind) -> Value:
    """The values rounded to `scale` digits. One that does not fit in `kind` then is an error."""
    step = Decimal(1).scaleb(-scale, EXACT)
    strict = Call(call.function, (), kind, "ansi")

    def single(number: Decimal) -> Decimal | None:
        return fitted(strict, number.quantize(step, mode, EXACT), kind)

    return by_row(single, kind, value)


def _check_overflow(call: Call, value: Value) -> Value:
    failing = not call.extra.get("nullOnOverflow", not call.ansi)
    strict = Call(call.function, (), call.type, "ansi" if failing else "legacy")
    return by_row(lambda number: fitted(strict, number, call.type), call.type, value)


FUNCTIONS: dict[str, Function] = {
    "CheckOverflow": _check_overflow,
    "CheckOverflowInSum": _check_overflow,
    "PromotePrecision": lambda _, value: value,
}
