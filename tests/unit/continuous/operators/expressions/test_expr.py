"""Expressions: constants of every type survive pickling, and each function has one definition."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from epochal.continuous.operators.expressions.expr import Literal

INTERVAL = pa.month_day_nano_interval()


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar((1, 2, 3_000), INTERVAL),
        pa.scalar(None, INTERVAL),
        pa.scalar(None, pa.null()),
        pa.scalar("text"),
        pa.scalar(Decimal("1.5"), pa.decimal128(38, 3)),
        pa.scalar({"a": [1, None]}),
    ],
    ids=str,
)
def test_a_constant_is_the_same_in_a_task(value: pa.Scalar[Any]) -> None:
    found = cloudpickle.loads(cloudpickle.dumps(Literal(value))).value
    assert found.equals(value)
    assert found.type == value.type
