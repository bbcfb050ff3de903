"""The functions that Spark's optimiser writes into plans."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from epochal.continuous.operators.expressions.expr import Call
from epochal.continuous.operators.expressions.planner_functions import FUNCTIONS

AMOUNTS = pa.array(
    [Decimal("1.25"), None, Decimal("-0.01"), Decimal("9999.99")], pa.decimal128(6, 2)
)


def test_the_digits_of_a_decimal_are_a_long_and_back() -> None:
    digits = FUNCTIONS["UnscaledValue"](Call("UnscaledValue", (), pa.int64()), AMOUNTS)
    assert digits.to_pylist() == [125, None, -1, 999_999]
    kind = pa.decimal128(16, 2)
    assert FUNCTIONS["MakeDecimal"](Call("MakeDecimal", (), kind), digits).equals(
        AMOUNTS.cast(kind)
    )


def test_a_part_of_a_column_has_its_own_digits() -> None:
    call = Call("UnscaledValue", (), pa.int64())
    assert FUNCTIONS["UnscaledValue"](call, AMOUNTS.slice(2, 1)).to_pylist() == [-1]


def test_too_many_digits_are_an_error_in_ansi_mode_and_null_otherwise() -> None:
    kind, digits = pa.decimal128(3, 1), pa.array([999, 1000])
    lenient = Call("MakeDecimal", (), kind, extra={"nullOnOverflow": True})
    assert FUNCTIONS["MakeDecimal"](lenient, digits).to_pylist() == [Decimal("99.9"), None]
    with pytest.raises(pa.ArrowInvalid, match="NUMERIC_VALUE_OUT_OF_RANGE"):
        FUNCTIONS["MakeDecimal"](
            Call("MakeDecimal", (), kind, extra={"nullOnOverflow": False}), digits
        )
