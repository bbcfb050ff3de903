"""The steps that random plans are made of: functions of a DataFrame and some texts.

A step does the same to a batch and to a stream. What it makes does not depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

DELAY = "10 minutes"
"""By how much rows may be out of order: no row is ever late."""


GROUPING = "grouping_id() AS gid"
"""Which keys a row of a rollup or cube has."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the steps of a plan read."""

    rows: DataFrame
    other: DataFrame
    """Another stream with the same rows; the same rows if they are a batch."""
    table: DataFrame
    """A table with the columns k and name."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A step of a plan: a function of this module and what it is called with."""

    function: Callable[..., DataFrame]
    arguments: tuple[Any, ...] = ()
    needed: bool = False
    """Whether the plan means something else without it."""

    def apply(self, frame: DataFrame, inputs: Inputs) -> DataFrame:
        return self.function(frame, inputs, *self.arguments)

    def smaller(self) -> Iterator[PlanStep]:
        """The same step with one aggregate less."""
        if self.function is aggregate:
            how, keys, measures = self.arguments
            for measure in measures[1:]:
                if measure != GROUPING:
                    less = [other for other in measures if other != measure]
                    yield replace(self, arguments=(how, keys, less))

    def __str__(self) -> str:
        return f".{self.function.__name__}({', '.join(map(repr, self.arguments))})"


def table_of(spark: SparkSession) -> DataFrame:
    """The table that streams are joined with. In SQL it is called `names`."""
    rows = "(0, 'zero'), (1, 'one'), (1, 'uno'), (3, null), (null, 'none')"
    table = spark.sql(f"SELECT * FROM VALUES {rows} AS names(k, name)").coalesce(1)
    table.createOrReplaceTempView("names")
    return table


def where(frame: DataFrame, _: Inputs, condition: str) -> DataFrame:
    return frame.where(condition)


def with_column(frame: DataFrame, _: Inputs, name: str, text: str) -> DataFrame:
    return frame.withColumn(name, F.expr(text))


def select(frame: DataFrame, _: Inputs, *texts: str) -> DataFrame:
    return frame.selectExpr(*texts)


def union(frame: DataFrame, _: Inputs, one: str, other: str) -> DataFrame:
    """Some rows, and once more some rows."""
    return frame.where(one).union(frame.where(other))


def union_streams(frame: DataFrame, inputs: Inputs, condition: str) -> DataFrame:
    return frame.unionByName(inputs.other.where(condition).select(*frame.columns))


def generate(frame: DataFrame, _: Inputs, generator: str) -> DataFrame:
    """The rows that a generator makes, with one of the columns replaced by its result."""
    name = generator.rpartition(" ")[2]
    kind = frame.schema[name].dataType.simpleString()
    others = [column for column in frame.columns if column != name]
    made = frame.selectExpr(*others, generator)
    return made.withColumn(name, F.col(name).cast(kind)).select(*frame.columns)


def join_table(frame: DataFrame, inputs: Inputs, how: str, column: str) -> DataFrame:
    """A join with the table; its names take the place of nulls in a column."""
    # Spark cannot plan a stream that is joined twice with columns of the same ids.
    table = inputs.table.select((F.col("k") + 0).alias("k"), F.lower("name").alias("name"))
    left, right = (table, frame) if how == "right" else (frame, table)
    joined = left.join(right, "k", how)
    if "name" in joined.columns:
        joined = joined.withColumn(column, F.coalesce(column, "name"))
    return joined.select(*frame.columns)


def name_keys(frame: DataFrame, inputs: Inputs, how: str) -> DataFrame:
    """Results of an aggregation by k with all names of their keys."""
    names = inputs.table.select((F.col("k") + 0).alias("k"), F.upper("name").alias("name"))
    return frame.join(names, "k", how)


def observe(frame: DataFrame, _: Inputs, name: str) -> DataFrame:
    return frame.observe(name, F.count("*").alias("rows"), F.max("n").alias("last"))


def in_python(frame: DataFrame, _: Inputs) -> DataFrame:
    """The same rows, which Python has seen."""
    return frame.mapInArrow(_same, frame.schema)


def _same(batches: Any) -> Any:
    yield from batches


def count_in_python(frame: DataFrame, _: Inputs) -> DataFrame:
    return frame.withColumn("k", F.udf(_next, "int", useArrow=False)("k"))


def _next(k: int | None) -> int | None:
    return None if k is None else k + 1


def watermark(frame: DataFrame, _: Inputs, delay: str = DELAY) -> DataFrame:
    return frame.withWatermark("ts", delay)


def aggregate(
    frame: DataFrame, _: Inputs, how: str, keys: Sequence[str], measures: Sequence[str]
) -> DataFrame:
    """An aggregation; `how` is groupBy, rollup or cube."""
    return getattr(frame, how)(*map(F.expr, keys)).agg(*map(F.expr, measures))


def drop_duplicates(frame: DataFrame, _: Inputs, keys: Sequence[str]) -> DataFrame:
    """Of each key one row, which may be any."""
    return frame.dropDuplicates(list(keys)).select(*keys)


def drop_within_watermark(frame: DataFrame, inputs: Inputs, keys: Sequence[str]) -> DataFrame:
    """The same for a stream whose watermark is far behind: no key is forgotten before the end."""
    if not frame.isStreaming:
        return drop_duplicates(frame, inputs, keys)
    return frame.dropDuplicatesWithinWatermark(list(keys)).select(*keys)


def limit(frame: DataFrame, _: Inputs, count: int) -> DataFrame:
    """So many rows, of which one cannot tell which they are."""
    return frame.selectExpr("1 AS one").limit(count)


def join_streams(
    frame: DataFrame, inputs: Inputs, how: str, own: bool, condition: str, keys: str
) -> DataFrame:
    """A join of two streams, or of a stream with itself, over equal keys and a range of time."""
    right = (frame if own else inputs.other.withWatermark("ts", DELAY)).where(condition)
    right = right.selectExpr("n AS n2", "k AS k2", "s AS s2", "d AS d2", "ts AS ts2")
    near = "ts2 BETWEEN ts - INTERVAL 5 MINUTES AND ts + INTERVAL 10 MINUTES"
    return frame.join(right, F.expr(f"{keys} AND {near}"), how)


def join_windows(frame: DataFrame, inputs: Inputs, how: str, size: str) -> DataFrame:
    """Results of an aggregation by window and k, beside those of another stream."""
    rows = inputs.other.withWatermark("ts", DELAY).where("k <> 2")
    right = rows.groupBy(F.expr(f"window(ts, {size}) AS w2"), F.col("k").alias("k2"))
    return frame.join(right.agg(F.count("*").alias("c2")), F.expr("w = w2 AND k = k2"), how)
