"""Compares our evaluation of column expressions with Spark's own, value by value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from epochal.continuous.catalyst.expression_reader import ExpressionReader, columns_by_id
from epochal.continuous.catalyst.spark_expressions import SparkExpressions
from epochal.continuous.catalyst.spark_objects import arrow_type_of, items
from epochal.continuous.operators.expressions.columns import column_of
from epochal.continuous.operators.expressions.evaluate import evaluate
from epochal.continuous.operators.expressions.expr import Expr

FAILED = "failed"
"""Stands for the result of an expression that raised an error."""


def optimised(spark: SparkSession, frame: DataFrame, texts: Sequence[str]) -> list[Expr]:
    """The expressions as Spark's optimiser leaves them. The frame must not be a local relation."""
    plan = frame.selectExpr(*(f"{text} AS r{i}" for i, text in enumerate(texts)))
    found = plan._jdf.queryExecution().optimizedPlan()
    while found.getClass().getSimpleName() != "Project":
        found = found.children().apply(0)
    child = found.children().apply(0).output()
    columns, in_spark = columns_by_id(child), SparkExpressions(spark)
    reader = ExpressionReader(
        spark, columns, [arrow_type_of(attribute.dataType()) for attribute in items(child)]
    )
    assert [each.name() for each in items(child)] == frame.columns, "a column was pruned"
    return [in_spark.read(expr, reader, columns) for expr in items(found.projectList())]


def evaluated(expr: Expr, rows: pa.RecordBatch, kind: pa.DataType | None = None) -> Any:
    """An expression's column. It is evaluated for no row as well, which must not fail."""
    value = evaluate(expr, rows)
    kind = value.type if kind is None else kind
    none = column_of(evaluate(expr, rows.slice(0, 0)), 0, kind)
    assert len(none) == 0, f"{len(none)} values for no row"
    return column_of(value, rows.num_rows, kind)


def ours(expr: Expr, rows: pa.RecordBatch, kind: pa.DataType) -> Any:
    """Our values, or FAILED."""
    try:
        found = evaluated(expr, rows, kind)
    except Exception:  # noqa: BLE001  any error counts as one, as in Spark
        return FAILED
    return [plain(value) for value in found.to_pylist()]


def sparks(frame: DataFrame, text: str) -> tuple[Any, pa.DataType]:
    """Spark's values, or FAILED, and their type."""
    selected = frame.selectExpr(f"{text} AS r")
    kind = selected.limit(0).toArrow().schema.field(0).type
    try:
        found = selected.toArrow().column(0)
    except Exception:  # noqa: BLE001  any error counts as one
        return FAILED, kind
    return [plain(value) for value in found.to_pylist()], kind


def plain(value: Any) -> Any:
    """A value that can be compared with ==, also if it is NaN."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if value == 0:
            return "-0.0" if math.copysign(1, value) < 0 else 0.0
        case dict():
            return {key: plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
    return value
