"""Compares many column expressions with Spark in one job: reading plans is fast, jobs are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tests.frames.streams_of_words import plain

from epochal.continuous.catalyst.expression_reader import (
    ExpressionReader,
    NotInArrow,
    SparkExpressions,
    columns_by_id,
)
from epochal.continuous.catalyst.spark_objects import arrow_type_of, items
from epochal.continuous.operators.expressions.expr import Expr

KEEP_PROJECTS = {
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    )
}
"""Otherwise the optimiser computes expressions over local data itself."""


def frame_of(spark: SparkSession, rows: pa.RecordBatch, schema: str) -> DataFrame:
    """A DataFrame of the rows, in their order."""
    table = pa.Table.from_batches([rows])
    return spark.createDataFrame(table, schema=schema).coalesce(1)


def both_forms(
    spark: SparkSession, frame: DataFrame, texts: Sequence[str]
) -> dict[str, tuple[Expr | None, Expr]]:
    """The expressions for Arrow, None if it cannot evaluate them, and for Spark's own code."""
    forms: dict[str, tuple[Expr | None, Expr]] = {}
    project, reader, columns = _project(spark, frame, texts)
    in_spark = SparkExpressions(spark)
    for number, text in enumerate(texts):
        expr = project.projectList().apply(number)
        try:
            arrow: Expr | None = reader.read(expr)
        except NotInArrow:
            arrow = None
        forms[text] = (arrow, in_spark.call(expr, columns))
    return forms


def _project(
    spark: SparkSession, frame: DataFrame, texts: Sequence[str]
) -> tuple[Any, ExpressionReader, dict[int, int]]:
    """The optimised projection of the texts, and what is needed to read its expressions."""
    plan = frame.selectExpr(*(f"{text} AS r{i}" for i, text in enumerate(texts)), "*")
    found = plan._jdf.queryExecution().optimizedPlan()
    while found.getClass().getSimpleName() != "Project":
        found = found.children().apply(0)
    child = found.children().apply(0).output()
    columns = columns_by_id(child)
    types = [arrow_type_of(attribute.dataType()) for attribute in items(child)]
    return found, ExpressionReader(spark, columns, types), columns


def comparable(column: Any) -> list[Any]:
    """Values that can be compared with ==. Times are numbers: Python's end in the year 9999."""
    kind = column.type
    if pa.types.is_struct(kind):
        members = [comparable(column.field(i)) for i in range(kind.num_fields)]
        valid = column.is_valid().to_pylist()
        return [
            tuple(each[row] for each in members) if valid[row] else None
            for row in range(len(column))
        ]
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return [comparable(each.values) if each.is_valid else None for each in column]
    if pa.types.is_string(kind):  # it may have bytes that are not UTF-8
        return list(column.cast(pa.binary()).to_pylist())
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return [plain(value) for value in column.to_pylist()]
