"""Results of plain Python functions become what Spark's JVM makes of them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from epochal.continuous.operators.stateless.python_functions import jvm_result
from epochal.errors import OptionError


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (IntegerType(), None, None),
        (IntegerType(), 2**31 + 5, -(2**31) + 5),
        (ByteType(), 200, -56),
        (LongType(), 2**63, None),
        (IntegerType(), True, None),
        (IntegerType(), 1.0, None),
        (BooleanType(), 1, None),
        (DoubleType(), 1, None),
        (DoubleType(), 1.5, 1.5),
        (StringType(), 1e10, "1.0E10"),
        (StringType(), True, "true"),
        (BinaryType(), "ü", "ü".encode()),
        (DecimalType(5, 2), Decimal("1.235"), Decimal("1.24")),
        (DecimalType(5, 2), 1, None),
        (ArrayType(IntegerType()), (1, "x", None), [1, None, None]),
        (ArrayType(IntegerType()), "ab", None),
        (StructType().add("a", "integer").add("b", "string"), (1, 2), {"a": 1, "b": "2"}),
    ],
)
def test_a_value_of_another_class_is_null(kind: DataType, value: Any, expected: Any) -> None:
    assert jvm_result(kind)(value) == expected


def test_a_decimal_with_too_many_digits_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"decimal\(3,2\)"):
        jvm_result(DecimalType(3, 2))(Decimal(123))
