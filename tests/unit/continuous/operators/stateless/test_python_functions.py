"""Functions of users are called with values of their kind; results become columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import types as spark

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Column
from epochal.continuous.operators.stateless.python_functions import (
    ARROW,
    ARROW_ITERATOR,
    ARROW_ROWS,
    MAP_ARROW,
    MAP_PANDAS,
    PANDAS,
    PANDAS_ITERATOR,
    PICKLED,
    Argument,
    Conversion,
    MapFramesSpec,
    PythonFunction,
    PythonFunctionsSpec,
    jvm_result,
)
from epochal.continuous.tasks.reports import failure_report
from epochal.errors import ExpressionError, OptionError
from epochal.errors.base import FailureKind

AT = Moment(0, -1, 0, -1)
UTC = Conversion("UTC")
BATCH = pa.RecordBatch.from_pydict({"a": [1, 2], "b": [10, 20]})


def call(
    kind: int, function: Callable[..., Any], *arguments: int | PythonFunction, **named: int
) -> PythonFunction:
    def given(value: int | PythonFunction, keyword: str | None = None) -> Argument:
        if isinstance(value, PythonFunction):
            return Argument(value, keyword=keyword)
        return Argument(Column(value), spark.LongType(), pa.int64(), keyword)

    return PythonFunction(
        cloudpickle.dumps((function, spark.LongType())),
        kind,
        (*map(given, arguments), *(given(value, name) for name, value in named.items())),
        "f",
    )


def added(*functions: PythonFunction) -> list[list[Any]]:
    """The columns that functions append."""
    fields = [pa.field(f"r{number}", pa.int64()) for number in range(len(functions))]
    spec = PythonFunctionsSpec(functions, pa.schema([*BATCH.schema, *fields]), UTC)
    (found,) = spec.open().process(BATCH, AT)
    assert found.columns[:2] == BATCH.columns
    return [column.to_pylist() for column in found.columns[2:]]


def minus(x: Any, y: Any) -> Any:
    return x - y


@pytest.mark.parametrize("kind", [PICKLED, ARROW_ROWS, PANDAS])
def test_arguments_go_by_position_and_by_name(kind: int) -> None:
    assert added(call(kind, minus, 1, 0), call(kind, minus, y=1, x=0)) == [[9, 18], [-9, -18]]


@pytest.mark.parametrize("kind", [PANDAS, ARROW])
def test_a_column_of_another_length_is_an_error(kind: int) -> None:
    with pytest.raises(OptionError, match="returned 1 values for 2 rows"):
        added(call(kind, lambda x: x[:1], 0))


def test_a_value_of_another_type_is_an_error_that_names_function_and_type() -> None:
    with pytest.raises(ExpressionError) as raised:
        added(call(ARROW_ROWS, lambda a: "text", 0))
    assert str(raised.value) == (
        "the function f is declared to return bigint, but it returned another value: Failed to "
        "parse string: 'text' as a scalar of type int64. Correct the function or its type."
    )
    assert failure_report(0, 0, raised.value).traceback == ""


def no_batch(batches: Iterator[Any]) -> Iterator[Any]:
    for _ in batches:
        raise ConnectionError("no rates today")
        yield


@pytest.mark.parametrize("kind", [PANDAS_ITERATOR, ARROW_ITERATOR])
def test_an_error_of_an_iterator_function_ends_the_query(kind: int) -> None:
    with pytest.raises(ConnectionError, match="no rates today") as raised:
        added(call(kind, no_batch, 0))
    assert failure_report(0, 0, raised.value).kind is FailureKind.REPEATS


def mapped(kind: int, function: Callable[..., Any]) -> list[dict[str, Any]]:
    pickled = cloudpickle.dumps((function, spark.StructType().add("b", "long").add("a", "long")))
    schema = pa.schema([("b", pa.int64()), ("a", pa.int64())])
    operator = MapFramesSpec(pickled, kind, schema, UTC).open()
    return [row for batch in operator.process(BATCH, AT) for row in batch.to_pylist()]


@pytest.mark.parametrize("kind", [MAP_PANDAS, MAP_ARROW])
def test_columns_of_a_mapped_batch_are_found_by_name(kind: int) -> None:
    assert mapped(kind, lambda batches: batches) == [{"b": 10, "a": 1}, {"b": 20, "a": 2}]


def test_a_mapping_that_returns_no_iterator_is_an_error() -> None:
    with pytest.raises(OptionError, match="must return an iterator"):
        mapped(MAP_ARROW, lambda batches: 5)


def test_a_mapping_that_lacks_a_column_is_an_error() -> None:
    with pytest.raises(OptionError, match="lacks the column b"):
        mapped(MAP_ARROW, lambda batches: (each.select(["a"]) for each in batches))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (spark.IntegerType(), None, None),
        (spark.IntegerType(), 2**31 + 5, -(2**31) + 5),
        (spark.ByteType(), 200, -56),
        (spark.LongType(), 2**63, None),
        (spark.IntegerType(), True, None),
        (spark.IntegerType(), 1.0, None),
        (spark.BooleanType(), 1, None),
        (spark.DoubleType(), 1, None),
        (spark.DoubleType(), 1.5, 1.5),
        (spark.StringType(), 1e10, "1.0E10"),
        (spark.StringType(), True, "true"),
        (spark.BinaryType(), "ü", "ü".encode()),
        (spark.DecimalType(5, 2), Decimal("1.235"), Decimal("1.24")),
        (spark.DecimalType(5, 2), 1, None),
        (spark.ArrayType(spark.IntegerType()), (1, "x", None), [1, None, None]),
        (spark.ArrayType(spark.IntegerType()), "ab", None),
        (spark.StructType().add("a", "integer").add("b", "string"), (1, 2), {"a": 1, "b": "2"}),
    ],
)
def test_a_value_of_another_class_is_null(kind: spark.DataType, value: Any, expected: Any) -> None:
    assert jvm_result(kind)(value) == expected


def test_a_decimal_with_too_many_digits_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"decimal\(3,2\)"):
        jvm_result(spark.DecimalType(3, 2))(Decimal(123))
