"""Random plans: filters, projections, unions, generators, joins with tables, windows, aggregations.

A plan is a list of steps, each a function of DataFrames with a name. The same plan is applied to
a batch and to a stream. Expressions are such that they never fail and do not depend on the order of
rows, so the result of a batch over all rows is what the stream must have shown in the end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = (
    "n bigint, k int, s string, d double, q decimal(18,4), ts timestamp, bo boolean, "
    "ai array<int>, st struct<a:int,b:string>"
)
START = datetime(2024, 3, 31, 0, tzinfo=UTC)
FLUSH = datetime(2030, 1, 1, tzinfo=UTC)
"""Rows of this time close all windows before it."""

Apply: TypeAlias = Callable[[DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A step of a plan. `text` is how to write it."""

    text: str
    apply: Apply


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps over the rows of one or two sources, and how the result is shown."""

    steps: tuple[PlanStep, ...]
    mode: str = "append"
    keys: tuple[str, ...] = ()
    """Of an aggregation: in output mode update the last row of a key counts."""
    has_windows: bool = False

    def apply(self, frame: DataFrame) -> DataFrame:
        for step in self.steps:
            frame = step.apply(frame)
        return frame

    def smaller(self) -> Iterator[Plan]:
        """The same plan without one of its steps, if it can be without it."""
        needed = self.mode != "append" or self.has_windows
        for number in range(int(self.has_windows), len(self.steps) - needed):
            yield replace(self, steps=self.steps[:number] + self.steps[number + 1 :])

    def __str__(self) -> str:
        return f"{self.mode}: df{''.join(step.text for step in self.steps)}"


def rows_of(chance: random.Random, count: int) -> pa.Table:
    """Rows in the order of their times."""

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.15 else value

    doubles = [0.0, -0.0, 1.5, float("nan"), float("inf"), -2.5, 1e300]
    words = ["", "a", "B", "é", "😀", "ß", "a b"]
    moments = sorted(chance.randint(0, 7200) for _ in range(count))
    rows = [
        {
            "n": number,
            "k": maybe(chance.randint(0, 4)),
            "s": maybe(chance.choice(words)),
            "d": maybe(chance.choice(doubles)),
            "q": maybe(chance.randint(-(10**6), 10**6) / 4),
            "ts": START + timedelta(seconds=moments[number]),
            "bo": maybe(chance.random() < 0.5),
            "ai": maybe([maybe(chance.randint(0, 3)) for _ in range(chance.randint(0, 3))]),
            "st": maybe({"a": maybe(chance.randint(0, 3)), "b": maybe(chance.choice(words))}),
        }
        for number in range(count)
    ]
    return pa.Table.from_pylist(rows, _ARROW)


_FIELDS: list[tuple[str, Any]] = [
    ("n", pa.int64()),
    ("k", pa.int32()),
    ("s", pa.string()),
    ("d", pa.float64()),
    ("q", pa.float64()),
    ("ts", pa.timestamp("us", "UTC")),
    ("bo", pa.bool_()),
    ("ai", pa.list_(pa.int32())),
    ("st", pa.struct([("a", pa.int32()), ("b", pa.string())])),
]
_ARROW = pa.schema(_FIELDS)  # fmt: skip

CONDITIONS = (
    "k > 1", "k IS NULL OR k <> 2", "s IS NOT NULL", "upper(s) = 'A'", "d > 0", "NOT isnan(d)",
    "q < 1000", "size(ai) > 1", "st.a = 2", "bo", "hour(ts) >= 1", "array_contains(ai, 1)",
    "coalesce(bo, false)", "s LIKE 'a%'", "n % 3 <> 0", "true", "k IN (1, 3)", "length(s) < 2",
)  # fmt: skip
COLUMNS = {
    "k": ("k + 1", "k % 3", "coalesce(k, -1)", "cast(size(ai) AS int)", "CASE WHEN bo THEN k END"),
    "s": ("upper(s)", "concat(s, '-', k)", "st.b", "cast(d AS string)", "date_format(ts, 'HH:mm')",
          "concat_ws(',', cast(ai AS array<string>))", "initcap(s)", "to_json(st)"),
    "d": ("d * 2", "round(d, 1)", "cast(k AS double)", "nanvl(d, 0)", "-d"),
    "q": ("cast(q + 1 AS decimal(18,4))", "cast(round(q, 1) AS decimal(18,4))"),
    "ai": ("sort_array(ai)", "transform(ai, x -> x + 1)", "array(k, 1)", "array_distinct(ai)"),
    "st": ("named_struct('a', k, 'b', s)", "if(bo, st, null)"),
    "bo": ("k > 2", "s IS NULL", "NOT bo"),
}  # fmt: skip
"""For a column, expressions of its type."""

MEASURES = (
    'count(*) AS c', 'sum(k) AS sk', 'min(s) AS ms', 'max(d + 0D) AS md', 'avg(k) AS ak',
    'sum(q) AS sq', 'count(s) AS cs', 'max(ts) AS mt', 'bool_or(bo) AS b', 'min(st.a) AS sa',
    'count_if(bo) AS ci', 'max(q) AS mq', 'sum(size(ai)) AS sz', 'bit_xor(k) AS bx',
)  # fmt: skip
KEYS = ("k", "s", "bo", "d", "k % 2 AS half", "upper(s) AS u", "st", "length(s) AS len")
GENERATORS = ("explode(ai) AS k", "explode_outer(ai) AS k", "explode(array(k, n)) AS k",
              "explode(split(s, '')) AS s",
              "explode(sequence(0, coalesce(k, 0))) AS k")  # fmt: skip


class Planner:
    """Makes plans that Spark accepts in a stream."""

    def __init__(self, chance: random.Random, table: DataFrame) -> None:
        """`table` has the columns k and name; it is joined with."""
        self._chance, self._table = chance, table

    def plan(self) -> Plan:
        """A plan of one to six steps."""
        steps = [self._row_step() for _ in range(self._chance.randint(0, 4))]
        kind = self._chance.choice(("rows", "rows", "total", "total", "windows", "distinct"))
        if kind == "rows":
            return Plan((*steps, self._row_step()))
        if kind == "distinct":
            columns = self._chance.sample(["k", "s", "bo", "q", "st"], 2)
            text = f".select({', '.join(map(repr, columns))}).dropDuplicates()"
            last = PlanStep(text, lambda frame: frame.select(*columns).dropDuplicates())
            return Plan((*steps, last))
        if kind == "windows":
            return self._windows(steps)
        keys = self._chance.sample(KEYS, self._chance.randint(0, 2))
        measures = self._chance.sample(MEASURES, self._chance.randint(1, 4))
        names = tuple(key.rpartition(" ")[2] for key in keys)
        mode = self._chance.choice(("complete", "update"))
        after = [self._after(measures)] if self._chance.random() < 0.3 and mode != "update" else []
        return Plan((*steps, _aggregation(keys, measures), *after), mode, names)

    def _windows(self, steps: list[PlanStep]) -> Plan:
        watermark = PlanStep(
            ".withWatermark('ts', '10 minutes')",
            lambda frame: frame.withWatermark("ts", "10 minutes"),
        )
        size = self._chance.choice(("'10 minutes'", "'1 hour', '20 minutes'", "'7 minutes'"))
        keys = [f"window(ts, {size}) AS w", *self._chance.sample(KEYS[:4], 1)]
        measures = self._chance.sample(MEASURES, self._chance.randint(1, 3))
        mode = self._chance.choice(("append", "append", "update", "complete"))
        names = tuple(key.rpartition(" ")[2] for key in keys)
        return Plan(
            (watermark, *steps, _aggregation(keys, measures)), mode, names, has_windows=True
        )

    def _after(self, measures: list[str]) -> PlanStep:
        name = measures[0].rpartition(" ")[2]
        return PlanStep(
            f".where('{name} IS NOT NULL')", lambda frame: frame.where(f"{name} IS NOT NULL")
        )

    def _row_step(self) -> PlanStep:
        match self._chance.choice(
            ("where", "where", "column", "column", "generate", "join", "union")
        ):
            case "where":
                condition = self._chance.choice(CONDITIONS)
                return PlanStep(f".where({condition!r})", lambda frame: frame.where(condition))
            case "column":
                name = self._chance.choice(list(COLUMNS))
                text = self._chance.choice(COLUMNS[name])
                return PlanStep(
                    f".withColumn({name!r}, F.expr({text!r}))",
                    lambda frame: frame.withColumn(name, F.expr(text)),
                )
            case "generate":
                return _generation(self._chance.choice(GENERATORS))
            case "join":
                how = self._chance.choice(("inner", "left", "left_semi", "left_anti"))
                return self._join(how)
            case _:
                one, other = self._chance.sample(CONDITIONS, 2)
                return PlanStep(
                    f".transform(lambda x: x.where({one!r}).union(x.where({other!r})))",
                    lambda frame: frame.where(one).union(frame.where(other)),
                )

    def _join(self, how: str) -> PlanStep:
        # Spark cannot plan a stream that is joined twice with columns of the same ids.
        table = self._table.select((F.col("k") + 0).alias("k"), F.lower("name").alias("name"))
        text = f".join(table, 'k', {how!r})" + (
            ".withColumn('s', F.coalesce('s', 'name')).drop('name')" if "_" not in how else ""
        )

        def apply(frame: DataFrame) -> DataFrame:
            joined = frame.join(table, "k", how)
            if "name" not in joined.columns:
                return joined.select(*frame.columns)
            filled = joined.withColumn("s", F.coalesce("s", "name")).drop("name")
            return filled.select(*frame.columns)

        return PlanStep(text, apply)


def _generation(generator: str) -> PlanStep:
    name = generator.rpartition(" ")[2]

    def apply(frame: DataFrame) -> DataFrame:
        kind = frame.schema[name].dataType.simpleString()
        others = [column for column in frame.columns if column != name]
        made = frame.selectExpr(*others, generator)
        return made.withColumn(name, F.col(name).cast(kind)).select(*frame.columns)

    return PlanStep(f".selectExpr(..., {generator!r})", apply)


def _aggregation(keys: list[str], measures: list[str]) -> PlanStep:
    def apply(frame: DataFrame) -> DataFrame:
        grouped = frame.groupBy(*map(F.expr, keys))
        return grouped.agg(*map(F.expr, measures))

    return PlanStep(f".groupBy({keys}).agg({measures})", apply)


def table_of(spark: SparkSession) -> DataFrame:
    """The table that streams are joined with."""
    rows = "(0, 'zero'), (1, 'one'), (1, 'uno'), (3, null), (null, 'none')"
    return spark.sql(f"SELECT * FROM VALUES {rows} AS joined(k, name)").coalesce(1)
