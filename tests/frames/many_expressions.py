"""Compares many column expressions with Spark in one job: reading plans is fast, jobs are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.frames.oracle import FAILED, evaluated, plain

from epochal.continuous.catalyst.expression_reader import (
    ExpressionReader,
    NotInArrow,
    columns_by_id,
)
from epochal.continuous.catalyst.spark_expressions import SparkExpressions
from epochal.continuous.catalyst.spark_objects import arrow_type_of, items
from epochal.continuous.operators.expressions.expr import Expr

KEEP_PROJECTS = {
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    )
}
"""Otherwise the optimiser computes expressions over local data itself."""


def modes_and_zones(*zones: str) -> list[Any]:
    """ANSI mode and legacy mode in each time zone; in CI one mode per zone."""
    return [
        pytest.param(ansi, zone, marks=() if ansi == bool(number % 2) else pytest.mark.long)
        for number, zone in enumerate(zones)
        for ansi in (True, False)
    ]


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


def expressions(spark: SparkSession, frame: DataFrame, texts: Sequence[str]) -> list[Expr]:
    """The expressions as Spark's optimiser leaves them, and as a query evaluates them."""
    project, reader, columns = _project(spark, frame, texts)
    in_spark, listed = SparkExpressions(spark), project.projectList()
    return [in_spark.read(listed.apply(i), reader, columns) for i in range(len(texts))]


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


def differences(
    spark: SparkSession, frame: DataFrame, rows: pa.RecordBatch, texts: Sequence[str]
) -> dict[str, Any]:
    """The expressions whose values differ: the first rows with Spark's value and ours."""
    trees = expressions(spark, frame, texts)
    theirs = values_of_spark(frame, texts)
    found: dict[str, Any] = {}
    for text, tree, expected in zip(texts, trees, theirs, strict=True):
        kind = expected.type if isinstance(expected, pa.Array) else None
        wanted = comparable(expected) if isinstance(expected, pa.Array) else expected
        got = _ours(tree, rows, kind)
        if wanted != got:
            found[text] = _first_differences(wanted, got)
    return found


def values_of_spark(frame: DataFrame, texts: Sequence[str]) -> list[Any]:
    """Spark's values of the expressions; FAILED for one that fails."""
    selected = frame.selectExpr(*(f"{text} AS r{i}" for i, text in enumerate(texts)))
    try:
        table = selected.toArrow()
    except Exception:  # noqa: BLE001  one of the expressions fails: find out which
        if len(texts) == 1:
            return [FAILED]
        middle = len(texts) // 2
        return [
            *values_of_spark(frame, texts[:middle]),
            *values_of_spark(frame, texts[middle:]),
        ]
    return [_whole(column) for column in table.columns]


def _whole(column: Any) -> Any:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _ours(tree: Expr, rows: pa.RecordBatch, kind: pa.DataType | None) -> Any:
    try:
        made = evaluated(tree, rows, kind)
    except Exception as error:  # noqa: BLE001  any error counts as one, as in Spark
        return FAILED if kind is None else f"{type(error).__name__}: {error}"
    return comparable(made)


def _first_differences(wanted: Any, got: Any) -> Any:
    if isinstance(wanted, str) or isinstance(got, str):
        return wanted if isinstance(wanted, str) else wanted[:3], got
    pairs = zip(wanted, got, strict=True)
    return [(row, *pair) for row, pair in enumerate(pairs) if pair[0] != pair[1]][:3]


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
