"""Compares many column expressions with Spark's at once: one job for all, on rows of a Parquet
file, so that the optimiser leaves the expressions alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from tests.frames.many_expressions import comparable
from tests.frames.oracle import FAILED, evaluated

from epochal.continuous.catalyst.expression_reader import ExpressionReader, columns_by_id
from epochal.continuous.catalyst.spark_expressions import SparkExpressions
from epochal.continuous.catalyst.spark_objects import arrow_type_of, items


def stored(spark: SparkSession, rows: pa.Table, folder: Path) -> DataFrame:
    """The rows as a DataFrame that reads them from a file."""
    folder.mkdir(exist_ok=True)
    pq.write_table(rows, folder / "rows.parquet", coerce_timestamps="us")
    return spark.read.parquet(str(folder))


def known(frame: DataFrame, texts: Sequence[str]) -> list[str]:
    """The expressions that Spark accepts in the present mode."""
    found = []
    for text in texts:
        try:
            frame.selectExpr(text)
        except Exception:  # noqa: BLE001  what Spark refuses cannot be compared
            continue
        found.append(text)
    return found


def differences(
    spark: SparkSession, frame: DataFrame, rows: pa.Table, texts: Sequence[str]
) -> list[str]:
    """One line for each expression whose values differ from Spark's. An error counts as a value."""
    width = len(frame.columns)
    selected = frame.selectExpr("*", *(f"{text} AS r__{i}" for i, text in enumerate(texts)))
    try:
        theirs = selected.toArrow()
    except Exception:  # noqa: BLE001  find out which of the expressions fails
        if len(texts) > 1:
            half = len(texts) // 2
            parts = (texts[:half], texts[half:])
            return [line for part in parts for line in differences(spark, frame, rows, part)]
        theirs = None
    plan = selected._jdf.queryExecution().optimizedPlan()
    while plan.getClass().getSimpleName() != "Project":
        plan = plan.children().apply(0)
    child = plan.children().apply(0).output()
    columns, in_spark = columns_by_id(child), SparkExpressions(spark)
    reader = ExpressionReader(
        spark, columns, [arrow_type_of(attribute.dataType()) for attribute in items(child)]
    )
    batch = rows.select([each.name() for each in items(child)]).combine_chunks().to_batches()[0]
    schema = theirs.schema if theirs is not None else selected.limit(0).toArrow().schema
    lines = []
    for index, text in enumerate(texts, width):
        wanted: Any = FAILED if theirs is None else shown(theirs.column(index))
        try:
            tree = in_spark.read(plan.projectList().apply(index), reader, columns)
            found: Any = shown(evaluated(tree, batch, schema.field(index).type))
        except Exception as error:  # noqa: BLE001  an error is a result
            found = f"{type(error).__name__}: {error}"
            if wanted is FAILED:
                continue
        if found != wanted:
            lines.append(f"{text}: {_first_difference(batch, text, wanted, found)}")
    return lines


def shown(column: Any) -> list[Any]:
    """The values of a column in a form that can be compared."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return comparable(whole)


def _first_difference(batch: pa.RecordBatch, text: str, wanted: Any, found: Any) -> str:
    if not isinstance(wanted, list) or not isinstance(found, list):
        return f"Spark has {str(wanted)[:300]}, we have {str(found)[:300]}"
    differing = [i for i, pair in enumerate(zip(wanted, found, strict=True)) if pair[0] != pair[1]]
    row = differing[0]
    used = {name: str(batch.column(name)[row])[:60] for name in batch.schema.names if name in text}
    return f"{len(differing)} rows; {used}: Spark has {wanted[row]!r}, we have {found[row]!r}"
