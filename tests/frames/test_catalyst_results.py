"""Operators without state give the rows that Spark gives: functions of users, generators, windows.

The same DataFrame is made twice: of a stream, whose tree we run over one batch, and of a table,
which Spark runs.
"""

# mypy: disable-error-code="untyped-decorator,type-arg"

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import arrow_udf, pandas_udf, udf
from pyspark.sql.types import LongType, StringType, StructType, TimestampType
from tests.frames.oracle import plain
from tests.spark.sessions import session_with

from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.catalyst.translation import read_plan
from epochal.continuous.operators.contract import Moment
from epochal.continuous.plan.logical import Node, Step, StreamSource, Union

DDL = (
    "i int, l bigint, f double, x string, b boolean, dec decimal(10,2), bin binary, d date, "
    "ts timestamp, n struct<p:int,q:string>, arr array<int>, m map<string,int>, "
    "structs array<struct<p:int,q:string>>"
)
AT = datetime.datetime(2024, 3, 10, 7, 30, 15, 123456, tzinfo=datetime.UTC)
ROWS: list[tuple[Any, ...]] = [
    (1, 10, 0.5, "a", True, Decimal("1.25"), b"ab", AT.date(), AT, (1, "p"), [1, None, 3],
     {"k": 1, "z": None}, [(1, "p"), None]),
    (2, -7, -2.5, '{"a": 1.50, "b": {"c": [1, null, "x"]}, "a": "t"}', False, Decimal("-7.00"), b"",
     AT.date(), AT.replace(year=1969), (2, None), [], {}, []),
    (None,) * 13,
    (-5, 2**40, 1e10, '{"a": null, "b": true} rest', None, Decimal("0.01"), b"\xff", AT.date(),
     AT.replace(month=7), None, [7], {"q": 5}, [(None, "r"), (4, "s")]),
]  # fmt: skip


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session_with({"spark.sql.session.timeZone": "America/New_York"})


def run(node: Node, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The rows of a tree without state over one batch of its source."""
    match node:
        case StreamSource():
            return [batch]
        case Step(child=child, operator=spec):
            operator, moment = spec.open(), Moment(0, -1, 0, -1)
            return [made for each in run(child, batch) for made in operator.process(each, moment)]
        case Union(children=children):
            return [each for child in children for each in run(child, batch)]
    raise AssertionError(node)


def shown(table: pa.Table) -> list[str]:
    return sorted(repr([plain(value) for value in row.values()]) for row in table.to_pylist())


def queried(frame: DataFrame, text: str) -> DataFrame:
    """A query in SQL over the view `v` of a frame."""
    frame.createOrReplaceTempView("v")
    return frame.sparkSession.sql(text)


@udf(LongType(), useArrow=True)
def plus(x: int | None, y: int = 1) -> int | None:
    return None if x is None else x + y


@udf(StringType(), useArrow=True)
def seen(*values: Any) -> str:
    return repr(values)


@udf(StringType(), useArrow=False)
def seen_plainly(*values: Any) -> str:
    return repr(values)


def plainly(kind: str, value: Any) -> Callable[[DataFrame], DataFrame]:
    """A function without Arrow that returns `value`, declared as `kind`."""
    return lambda frame: frame.select(udf(lambda _: value, kind, useArrow=False)("i").alias("r"))


@pandas_udf(LongType())
def add(x: pd.Series, y: pd.Series) -> pd.Series:
    return x + y


@pandas_udf(StringType())
def kinds(*columns: pd.Series) -> pd.Series:
    return pd.Series([repr([column.iloc[i] for column in columns]) for i in range(len(columns[0]))])


@pandas_udf(StructType().add("p", "integer").add("q", "string"))
def structs(x: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"q": x.astype(str), "p": x.fillna(0)})


@pandas_udf(LongType())
def shifted(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for each in batches:
        yield each + 5


@pandas_udf(TimestampType())
def later(x: pd.Series) -> pd.Series:
    return x + pd.Timedelta(hours=1)


@arrow_udf(LongType())
def arrow_add(x: pa.Array, y: pa.Array) -> pa.Array:
    return pc.add(x, y)


@arrow_udf(LongType())
def arrow_shifted(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    for each in batches:
        yield pc.add(each, 7)


def doubled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame({"ts": frame["ts"], "z": frame["l"] * 2, "x": frame["x"]})
        yield frame.assign(z=frame["l"])[["z", "x", "ts"]].head(1)


def doubled_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for each in batches:
        yield pa.RecordBatch.from_arrays([pc.multiply(each.column("l"), 2)], ["z"])


CASES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "row function": lambda d: d.select(plus("l"), plus("l", F.col("i") + 1), plus(y="l", x="i")),
    "chain of row functions": lambda d: d.select(plus(plus(plus("l")))),
    "function in filter and select": lambda d: d.filter(plus("l") > 5).select(plus("l"), "x"),
    "values that a row function sees": lambda d: d.select(seen(*d.columns)),
    "values that a plain function sees": lambda d: d.select(
        seen_plainly(*(each for each in d.columns if each != "m"))
    ),
    "pandas function": lambda d: d.select(add("l", "l"), add(add("l", "i"), "i")),
    "Series that a pandas function sees": lambda d: d.select(
        kinds("i", "l", "f", "x", "b", "dec", "d", "ts")
    ),
    "struct of a pandas function": lambda d: d.select(structs("i").alias("s")).select("s.*"),
    "pandas iterator": lambda d: d.select(shifted("l"), shifted(shifted("l"))),
    "timestamp of a pandas function": lambda d: d.select(later("ts")),
    "arrow function": lambda d: d.select(arrow_add("l", "l")),
    "arrow iterator": lambda d: d.select(arrow_shifted("l")),
    "kinds in a chain": lambda d: d.select(add(plus("l"), arrow_shifted("l"))),
    "mapInPandas": lambda d: d.mapInPandas(doubled, "z long, x string, ts timestamp"),
    "mapInArrow": lambda d: d.mapInArrow(doubled_arrow, "z long"),
    "explode": lambda d: d.select("x", F.explode("arr")),
    "explode of a map": lambda d: d.select("i", F.explode("m")),
    "posexplode": lambda d: d.select("i", F.posexplode("arr")),
    "inline": lambda d: d.select("i", F.inline("structs")),
    "explode outer": lambda d: d.select("i", F.explode_outer("arr").alias("e")),
    "posexplode outer of a map": lambda d: d.select("i", F.posexplode_outer("m")),
    "inline outer": lambda d: d.select("i", F.inline_outer("structs")),
    "stack": lambda d: d.selectExpr("x", "stack(2, i, 'one', 2, 'two')"),
    "stack with a hole": lambda d: d.selectExpr("stack(2, i, 'one', 3)"),
    "stack of odd types": lambda d: d.selectExpr(
        "stack(2, m, n, NULL, make_dt_interval(0, 0, i), map('z', i), NULL, ts, NULL)"
    ),
    "json_tuple": lambda d: d.select("i", F.json_tuple("x", "a", "b", "a")),
    "json_tuple outer": lambda d: queried(
        d, "SELECT i, g.* FROM v LATERAL VIEW OUTER json_tuple(x, 'a', string(i)) g AS a, b"
    ),
    "variant_explode": lambda d: queried(
        d,
        "SELECT i, pos, key, try_variant_get(value, '$', 'string') FROM v, "
        "LATERAL variant_explode(coalesce(try_parse_json(x), to_variant_object(arr)))",
    ),
    "variant_explode_outer": lambda d: queried(
        d, "SELECT i, pos, key FROM v, LATERAL variant_explode_outer(try_parse_json(x))"
    ),
    "explode of an expression of Spark's": lambda d: d.select("i", F.explode(F.split("x", ""))),
    "explode of a higher-order function": lambda d: d.selectExpr(
        "i", "explode(transform(arr, e -> e * l))"
    ),
    "explode of variants": lambda d: d.selectExpr(
        "explode(array(parse_json('[1]'), parse_json(NULL), try_parse_json(x)))"
    ).selectExpr("try_variant_get(col, '$', 'string')"),
    "explode of times until now": lambda d: d.selectExpr(
        "i", "explode(array(ts, current_timestamp())) AS t"
    ).selectExpr("i", "t < timestamp '2124-08-01 00:00:00'"),
    "explode of chance": lambda d: d.selectExpr(
        "i", "explode(array(rand(1), rand(2))) AS r"
    ).selectExpr("i", "r >= 0 AND r < 1"),
    "generator of chance": lambda d: d.selectExpr(
        "json_tuple(to_json(map('a', shuffle(array(1, 2)), 'i', array(i))), 'a', 'i') AS (r, i)"
    ).selectExpr("length(r)", "i"),
    "tumbling window": lambda d: d.select(F.window("ts", "1 hour").alias("w"), "i"),
    "sliding window": lambda d: d.select(F.window("ts", "7 minutes", "3 minutes").alias("w"), "i"),
    "union": lambda d: d.select("i", "x").union(d.select("i", F.lit("c"))),
    "plain bool as int": plainly("int", True),
    "plain int as double": plainly("double", 1),
    "plain int as string": plainly("string", 12),
    "plain float as string": plainly("string", 1e10),
    "plain bool as string": plainly("string", False),
    "plain float as int": plainly("int", 1.5),
    "plain int that is too large": plainly("int", 2**31 + 5),
    "plain list as array": plainly("array<int>", [1, None, "x"]),
    "plain tuple as struct": plainly("struct<a:int,b:string>", (1, 2)),
    "plain dict as map": plainly("map<string,int>", {"a": 1}),
    "plain text as binary": plainly("binary", "ab"),
    "plain decimal": plainly("decimal(5,2)", Decimal("1.235")),
    "plain timestamp": plainly("timestamp", AT.replace(tzinfo=None)),
    "plain date": plainly("date", datetime.date(2024, 1, 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_equal_sparks(spark: SparkSession, tmp_path: Path, case: str) -> None:
    table = spark.createDataFrame(ROWS, DDL).coalesce(1)  # one batch, as here
    stream = spark.readStream.schema(DDL).json(str(tmp_path))
    found = read_plan(CASES[case](stream))
    (batch,) = table.toArrow().cast(arrow_schema(DDL)).combine_chunks().to_batches()
    ours = pa.Table.from_batches(run(found.tree, batch), schema=found.tree.schema)
    theirs = CASES[case](table).toArrow()
    assert shown(ours) == shown(theirs.rename_columns(ours.column_names).cast(ours.schema))


def test_a_broadcast_variable_travels_with_its_function(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = spark.sparkContext.broadcast({1: "one"})
    named = udf(lambda i: names.value.get(i), "string", useArrow=True)
    stream = spark.readStream.schema(DDL).json(str(tmp_path))
    found = read_plan(stream.select(named("i").alias("n")))
    batch = pa.RecordBatch.from_pylist([{"i": 1}, {"i": 2}], schema=arrow_schema(DDL))
    assert [row for each in run(found.tree, batch) for row in each.to_pylist()] == [
        {"n": "one"},
        {"n": None},
    ]
