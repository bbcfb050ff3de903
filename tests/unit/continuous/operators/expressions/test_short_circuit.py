"""Arguments that Spark does not evaluate must not fail."""

from __future__ import annotations

import pyarrow as pa
import pytest

from epochal.continuous.operators.expressions.evaluate import evaluate
from epochal.continuous.operators.expressions.expr import Call, Column
from epochal.errors import ExpressionError

LONG = pa.int64()
NUMBER = Call("Cast", (Column(1),), LONG)
ROWS = pa.RecordBatch.from_pydict({"l": pa.array([None, 4], LONG), "s": pa.array(["x", "2"])})


def test_an_argument_is_not_evaluated_where_an_earlier_one_is_null() -> None:
    assert evaluate(Call("Add", (Column(0), NUMBER), LONG), ROWS).to_pylist() == [None, 6]


def test_an_argument_before_a_null_fails() -> None:
    with pytest.raises(ExpressionError, match="'x' cannot be cast"):
        evaluate(Call("Add", (NUMBER, Column(0)), LONG), ROWS)


def test_the_divisor_is_evaluated_before_the_dividend() -> None:
    divided = evaluate(Call("IntegralDivide", (NUMBER, Column(0)), LONG), ROWS)
    assert divided.to_pylist() == [None, 0]


def test_an_argument_fails_where_no_earlier_one_is_null() -> None:
    rows = ROWS.set_column(0, "l", pa.array([1, 4], LONG))
    with pytest.raises(ExpressionError, match="'x' cannot be cast"):
        evaluate(Call("Add", (Column(0), NUMBER), LONG), rows)
