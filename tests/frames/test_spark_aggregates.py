"""Aggregates in Spark's own code emit and store what Spark's micro-batches emit and store.

An operator of which one aggregate is not ours runs all of them there: so one query has them all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.frames.aggregate_cases import COLUMNS, DDL, Case
from tests.frames.test_aggregates import (
    PARTITIONS,
    files,
    grouped,
    ours,
    plain,
    run_in_spark,
    same,
    stored_by_spark,
)
from tests.frames.test_aggregates import differences as case_differences
from tests.spark.parity import File, Rows, replayed, spark_batches
from tests.spark.sessions import session_with
from tests.unit.continuous.operators.driving import Driver

from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.catalyst.translation import read_plan
from epochal.continuous.operators.aggregation.aggregate import AggregateSpec
from epochal.continuous.operators.contract import Moment
from epochal.continuous.plan.logical import Node, Stateful, Step, StreamSource, Watermarked
from epochal.state.files.schema_file import parse_schema_file

pytestmark = pytest.mark.timeout(600)

SCHEMA = (
    "id string, ts timestamp, v int, s string, d double, x decimal(10,2), big decimal(38,3), "
    "a array<int>"
)
AGGREGATES = """
percentile_approx(v, array(0.1, 0.5, 0.9), 50)
percentile(v, array(0.25, 0.75))
percentile(d, 0.5) FILTER (WHERE v > 3)
percentile_cont(0.3) WITHIN GROUP (ORDER BY d)
percentile_disc(0.3) WITHIN GROUP (ORDER BY v)
approx_percentile(ts, 0.5)
median(d)
mode(s)
mode(a)
mode() WITHIN GROUP (ORDER BY v DESC)
histogram_numeric(d, 4)
listagg(s, ',')
listagg(s, ',') WITHIN GROUP (ORDER BY s DESC)
string_agg(s)
collect_list(s)
collect_list(a)
collect_list(v) FILTER (WHERE v > 3)
collect_set(v)
collect_set(s)
array_agg(ts)
approx_count_distinct(s)
approx_count_distinct(v, 0.2)
approx_top_k(s, 3)
count_min_sketch(s, 0.1d, 0.9d, 1)
hll_sketch_agg(s)
hll_sketch_estimate(hll_sketch_agg(v))
theta_sketch_estimate(theta_sketch_agg(v))
kll_sketch_agg_bigint(v)
bitmap_construct_agg(bitmap_bit_position(v))
bitmap_or_agg(bitmap_construct)
max_by(s, ts)
max_by(a, d)
min_by(v, d)
product(v)
sum(x)
sum(big)
avg(d)
avg(x)
avg(big)
try_sum(v)
try_avg(x)
count(*)
count(v) FILTER (WHERE v > 3)
count_if(v > 3)
min(s)
max(ts)
max(a)
max(x)
first(s, true)
first(a)
last(d)
any_value(v)
bool_and(v > 3)
every(v > 0)
bit_xor(v)
bit_or(v)
stddev(d)
skewness(d)
kurtosis(d)
corr(v, d)
covar_samp(d, v)
regr_slope(d, v)
regr_r2(d, v)
""".strip().splitlines()
SOME = ["median(d)", "count(*)", "listagg(s, ',')", "sum(v) FILTER (WHERE v > 3)", "collect_set(s)"]
FOR_ALL_TYPES = [
    "first({}, true)",
    "last({}) FILTER (WHERE b)",
    "collect_list({})",
    "collect_set({})",
    "max({})",
    "max_by(s, {})",
    "min_by({}, s)",
    "mode({})",
    "approx_count_distinct({})",
]
ODD = ("f", "x", "d38", "bin", "ntz", "dur", "arr", "st")
EVENTS = arrow_schema(SCHEMA)

__all__ = ["files"]


@dataclass(frozen=True)
class Query:
    """A query, and its output mode."""

    run: Callable[[DataFrame], DataFrame]
    mode: str


def column(text: str) -> Any:
    """An aggregate. What is no function of SQL, or takes a result of one, is written out."""
    if text.startswith("product"):
        return F.product("v")
    if text.startswith("bitmap_or_agg"):
        return F.bitmap_or_agg(F.to_binary(F.lit("10"), F.lit("hex")))
    return F.expr(text)


def columns(texts: list[str]) -> list[Any]:
    return [column(text).alias(f"r{number}") for number, text in enumerate(texts)]


def by_id(texts: list[str]) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: frame.groupBy("id").agg(*columns(texts))


def windows(frame: DataFrame) -> DataFrame:
    timed = frame.withWatermark("ts", "10 seconds")
    return timed.groupBy(F.window("ts", "4 seconds").alias("w"), "id").agg(*columns(SOME))


def sessions(frame: DataFrame) -> DataFrame:
    gap = F.when(F.col("v") < 4, "2 seconds").otherwise("5 seconds")
    timed = frame.withWatermark("ts", "10 seconds")
    return timed.groupBy("id", F.session_window("ts", gap).alias("w")).agg(
        *columns(AGGREGATES[:34])
    )


QUERIES = {
    "everything": Query(by_id(AGGREGATES), "update"),
    "windows-update": Query(windows, "update"),
    "windows-append": Query(windows, "append"),
    "windows-complete": Query(windows, "complete"),
    "sessions-append": Query(sessions, "append"),
    "sessions-complete": Query(sessions, "complete"),
    "all-complete": Query(lambda frame: frame.groupBy().agg(*columns(SOME)), "complete"),
}


def run(node: Node, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The rows of a tree without state over one batch of its source."""
    match node:
        case StreamSource():
            return [batch]
        case Step(child=child, operator=spec):
            operator, moment = spec.open(), Moment(0, -1, 0, -1)
            return [made for each in run(child, batch) for made in operator.process(each, moment)]
    raise AssertionError(node)


class Planned(Driver):
    """Runs a whole plan with one stateful operator."""

    def __init__(self, tree: Node) -> None:
        self.after: list[Step] = []
        while isinstance(tree, Step):
            self.after.insert(0, tree)
            tree = tree.child
        assert isinstance(tree, Stateful)
        (self.before,) = tree.children
        super().__init__(tree.spec, PARTITIONS)

    def turn(self, batch: pa.RecordBatch | None, *rest: Any, **times: Any) -> Rows:
        if batch is not None:
            found = run(without_watermarks(self.before), batch)
            batch = found[0] if found else None
        rows = super().turn(batch, *rest, **times)
        batches = [pa.RecordBatch.from_pylist(rows, schema=self.spec.output_schema)]
        for step in self.after:
            operator = step.operator.open()
            batches = [new for b in batches for new in operator.process(b, Moment(0, -1, 0, -1))]
        return [row for each in batches for row in each.to_pylist()]


def without_watermarks(tree: Node) -> Node:
    """A tree without state, for a test that says itself where the watermark is."""
    if isinstance(tree, Watermarked):
        return without_watermarks(tree.child)
    if isinstance(tree, Step):
        return replace(tree, child=without_watermarks(tree.child))
    return tree


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    partitions = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
    return session_with({"spark.sql.session.timeZone": "UTC", **partitions})


@pytest.mark.parametrize("name", QUERIES)
def test_an_epoch_emits_and_stores_what_a_batch_of_spark_does(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    query = QUERIES[name]
    batches = spark_batches(spark, tmp_path, SCHEMA, events(), query.run, mode=query.mode)
    stream = spark.readStream.schema(SCHEMA).json(str(tmp_path / "input"))
    driver = Planned(read_plan(query.run(stream), output_mode=query.mode).tree)
    assert isinstance(driver.spec, AggregateSpec)
    assert driver.spec.spark is not None
    got = replayed(driver, batches, EVENTS)
    for batch, rows in zip(batches, got, strict=True):
        assert differences(batch.output, rows) == []
    checkpoint = tmp_path / "checkpoint"
    (store,) = driver.spec.stores
    (family,) = parse_schema_file((checkpoint / "state/0/0/_metadata/schema").read_bytes())
    assert shapes(store.value) == shapes(family.value)
    theirs = stored_by_spark(checkpoint, family, batches[-1].number + 1)
    assert len(theirs) > 0
    assert ours(driver) == theirs


def shapes(schema: Any) -> list[Any]:
    """Names and types. The metadata of Spark's fields tells of watermarks and windows."""
    return [(each.name, each.data_type, each.nullable) for each in schema.fields]


def differences(wanted: Rows, got: Rows) -> list[Any]:
    """The results that differ, in rows that are found by their groups."""
    theirs, mine = (
        {repr([plain(row.get(name)) for name in ("id", "w")]): row for row in rows}
        for rows in (wanted, got)
    )
    if theirs.keys() != mine.keys():
        return [theirs.keys(), mine.keys()]
    return [
        (key, name, value, mine[key][name])
        for key, row in theirs.items()
        for name, value in row.items()
        if not same(plain(value), plain(mine[key][name]))
    ]


def events() -> list[File]:
    rng = random.Random(23)

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.15 else value

    files: list[File] = []
    for place in range(5):
        rows: File = [
            (
                rng.choice(["a", "b", "c", "d", None]),
                second(max(1, 7 * place + rng.randrange(-14, 5))),
                maybe(rng.randrange(9)),
                maybe(rng.choice("abcd") * rng.randrange(1, 12)),
                maybe(rng.randrange(1000) / 8),
                maybe(rng.randrange(-9999, 9999)),
                maybe(rng.randrange(-9999, 9999) * 1000),
                maybe([maybe(rng.randrange(3))]),
            )
            for _ in range(40)
        ]
        rows += [("none", second(7 * place + 1), *[None] * 6)]
        files.append(rows)
    return files


def second(number: float) -> datetime:
    return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=number)


@pytest.mark.parametrize("place", ["odd", "plain"])
def test_values_of_all_types_go_to_sparks_code_and_back(
    spark: SparkSession, files: list[Path], tmp_path: Path, place: str
) -> None:
    names = [name for name in COLUMNS if (name in ODD) == (place == "odd")]
    cases = [Case(text.format(name), "", ()) for name in names for text in FOR_ALL_TYPES]
    cases.append(Case("mode(i)", "", ()))
    outputs = run_in_spark(spark, files, tmp_path, cases)
    stream = spark.readStream.schema(DDL).parquet(str(files[0].parent))
    driver = Planned(read_plan(grouped(stream, cases), output_mode="update").tree)
    (family,) = parse_schema_file((tmp_path / "state/0/0/_metadata/schema").read_bytes())
    for number, path in enumerate(files):
        rows = spark.read.parquet(str(path)).coalesce(1).toArrow().cast(arrow_schema(DDL))
        (batch,) = rows.combine_chunks().to_batches()
        got = driver.turn(batch, watermark_ms=-1)
        driver.cut()
        assert case_differences(cases, outputs[number], got) == []
        assert ours(driver) == stored_by_spark(tmp_path, family, number + 1)
        driver.restart()
