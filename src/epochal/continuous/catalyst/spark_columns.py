"""Converts SQL text and PySpark columns to expression trees, with Spark's analyzer.

Spark resolves names, types, implicit casts and functions on an empty DataFrame with the stream's
schema. The expressions of its analyzed plan are then read by `expression_reader.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from epochal.continuous.catalyst.expression_reader import ExpressionReader, columns_by_id
from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.catalyst.releases import with_replacements
from epochal.continuous.catalyst.spark_expressions import SparkExpressions
from epochal.continuous.catalyst.spark_objects import items, simple_name
from epochal.continuous.operators.expressions.expr import Expr
from epochal.errors import OptionError


@dataclass(frozen=True, slots=True)
class Resolved:
    """Resolved columns, and their names and types."""

    columns: tuple[Expr, ...]
    schema: pa.Schema


def resolve(spark: SparkSession, schema: pa.Schema, columns: Sequence[Any]) -> Resolved:
    """Resolve `columns` (SQL text or PySpark columns) over a stream of this schema."""
    frame = spark.createDataFrame([], spark_schema(schema))
    text = ", ".join(map(str, columns))
    try:
        found = frame.selectExpr(*columns) if _texts(columns) else frame.select(*columns)
    except (AnalysisException, ParseException) as error:
        raise OptionError(f"{text}: {error}") from None
    plan = with_replacements(spark, found._jdf.queryExecution().analyzed())
    if simple_name(plan) != "Project":
        raise OptionError(
            f"{text}: only expressions over the columns of one row are possible. To aggregate, use "
            f"group_by."
        )
    output = plan.child().output()
    columns_of = columns_by_id(output)
    reader, in_spark = ExpressionReader(spark, columns_of, schema.types), SparkExpressions(spark)
    exprs = tuple(in_spark.read(expr, reader, columns_of) for expr in items(plan.projectList()))
    return Resolved(exprs, arrow_schema(found.schema))


def spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema to Spark's."""
    return from_arrow_schema(schema)


def _texts(columns: Sequence[Any]) -> bool:
    texts = {isinstance(column, str) for column in columns}
    if len(texts) > 1:
        raise OptionError(
            "Some columns are text and some are PySpark columns. Use only one of the two."
        )
    return texts == {True}
