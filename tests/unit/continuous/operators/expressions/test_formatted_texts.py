"""format_string and format_number, where a text says more than a comparison with Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from epochal.continuous.operators.expressions.evaluate import evaluate, unsupported
from epochal.continuous.operators.expressions.expr import Call, Column, Literal
from epochal.errors import ExpressionError


def formatted(pattern: str, *values: Any) -> str:
    rows = pa.RecordBatch.from_arrays(
        [pa.array([value]) for value in values], names=[str(i) for i in range(len(values))]
    )
    columns = tuple(Column(i) for i in range(len(values)))
    call = Call("FormatString", (Literal(pa.scalar(pattern)), *columns), pa.string())
    return str(evaluate(call, rows)[0].as_py())


def test_a_double_is_rounded_half_up_as_java_rounds_it() -> None:
    assert formatted("%.2f|%.0f|%,.1f", 1.005, 2.5, 1234567.25) == "1.01|3|1,234,567.3"


def test_arguments_may_be_used_by_number_and_again() -> None:
    assert formatted("%2$s-%1$s-%<s", "a", "b") == "b-a-a"


@pytest.mark.parametrize("pattern", ["%d", "%.1d", "%-d", "%s %s", "%"])
def test_a_format_that_does_not_fit_its_argument_is_an_error(pattern: str) -> None:
    with pytest.raises(ExpressionError, match="format_string cannot format"):
        formatted(pattern, "text")


def test_a_constant_format_that_is_not_supported_is_known_before_any_row() -> None:
    call = Call("FormatString", (Literal(pa.scalar("%s %tY")), Column(0), Column(0)), pa.string())
    assert unsupported(call) == ["FormatString (the format '%tY')"]
