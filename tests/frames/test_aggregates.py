"""Aggregates give what Spark's give, keep the state that Spark keeps, and go on from Spark's.

So do those that run in Spark's own code. Windows and sessions of both are in random plans.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.frames.planned import (
    COLUMNS,
    DDL,
    PARTITIONS,
    Planned,
    all_aggregates,
    batch_of,
    compare_batches,
    differences,
    grouped,
    random_table,
    some_aggregates,
    stream_of,
    write_files,
)
from tests.spark.sessions import session_with

from epochal.continuous.operators.aggregation.aggregate import AggregateSpec

pytestmark = pytest.mark.timeout(600)
CHUNK = 60
EVERYTHING = list(dict.fromkeys(all_aggregates()))
MATRIX = {
    "sample": some_aggregates(),
    **{str(at // CHUNK): EVERYTHING[at : at + CHUNK] for at in range(0, len(EVERYTHING), CHUNK)},
}

OF_SPARK = """
percentile_approx(i, array(0.1, 0.5, 0.9), 50)
percentile(i, array(0.25, 0.75))
percentile(y, 0.5) FILTER (WHERE i > 3)
percentile_cont(0.3) WITHIN GROUP (ORDER BY y)
percentile_disc(0.3) WITHIN GROUP (ORDER BY i)
approx_percentile(ts, 0.5)
median(y)
mode(i)
mode() WITHIN GROUP (ORDER BY i DESC)
histogram_numeric(y, 4)
listagg(s, ',')
listagg(s, ',') WITHIN GROUP (ORDER BY s DESC)
string_agg(s)
collect_list(i) FILTER (WHERE i > 3)
array_agg(ts)
approx_count_distinct(i, 0.2)
approx_top_k(s, 3)
count_min_sketch(s, 0.1d, 0.9d, 1)
hll_sketch_agg(s)
hll_sketch_estimate(hll_sketch_agg(i))
theta_sketch_estimate(theta_sketch_agg(i))
kll_sketch_agg_bigint(i)
bitmap_construct_agg(bitmap_bit_position(i))
bitmap_or_agg(bitmap_construct)
max_by(arr, y)
min_by(i, y)
product(y)
sum(d12)
avg(y)
avg(d12)
try_sum(i)
try_sum(d38)
sum(dur)
avg(dur)
try_avg(d12)
count(*)
count_if(i > 3)
min(s)
max(arr)
first(s, true)
last(y)
any_value(i)
bool_and(i > 3)
every(i > 0)
bit_xor(i)
bit_or(i)
stddev(y)
skewness(y)
kurtosis(y)
corr(i, y)
covar_samp(y, i)
regr_slope(y, i)
regr_r2(y, i)
""".strip().splitlines()
"""An operator of which one aggregate is not ours runs all of them in Spark's own code."""
FOR_ALL_TYPES = (
    *("first({}, true)", "last({}) FILTER (WHERE b)", "collect_list({})", "collect_set({})"),
    *("max({})", "max_by(s, {})", "min_by({}, s)", "mode({})", "approx_count_distinct({})"),
)
ODD = ("f", "x", "d38", "bin", "ntz", "dur", "arr", "st")
IN_SPARK = {
    "everything": OF_SPARK,
    "odd": [text.format(name) for name in ODD for text in FOR_ALL_TYPES],
    "plain": [text.format(name) for name in COLUMNS if name not in ODD for text in FOR_ALL_TYPES],
}


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    partitions = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
    return session_with({"spark.sql.session.timeZone": "UTC", **partitions})


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_files(spark, tmp_path_factory.mktemp("aggregates"))


@pytest.mark.parametrize("texts", MATRIX.values(), ids=MATRIX.keys())
def test_output_and_state_of_every_batch_are_those_of_spark(
    spark: SparkSession, files: list[Path], tmp_path: Path, texts: list[str]
) -> None:
    spec = compare_batches(spark, files, tmp_path, texts).spec
    assert isinstance(spec, AggregateSpec)
    assert spec.spark is None


@pytest.mark.parametrize("texts", IN_SPARK.values(), ids=IN_SPARK.keys())
def test_aggregates_in_sparks_own_code_store_what_spark_stores(
    spark: SparkSession, files: list[Path], tmp_path: Path, texts: list[str]
) -> None:
    spec = compare_batches(spark, files, tmp_path, [*texts, "mode(i)"]).spec
    assert isinstance(spec, AggregateSpec)
    assert spec.spark is not None


@pytest.mark.parametrize("rows", [1000, 37], ids=["arrow", "python"])
@pytest.mark.parametrize("seed", range(3))
def test_batches_of_any_size_give_the_same(
    spark: SparkSession, files: list[Path], rows: int, seed: int
) -> None:
    texts = some_aggregates()
    whole = spark.createDataFrame(random_table(seed, rows=300), DDL).coalesce(1)
    wanted = [row.asDict(True) for row in grouped(whole, texts).collect()]
    batch, driver = batch_of(whole), Planned(grouped(stream_of(spark, files), texts))
    got: dict[int, dict[str, Any]] = {}
    for start in range(0, batch.num_rows, rows):
        got.update({row["k"]: row for row in driver.turn(batch.slice(start, rows))})
        driver.cut()
        driver.restart()
    assert differences(wanted, list(got.values())) == []


def test_sums_out_of_range_end_as_they_do_in_spark(tmp_path: Path) -> None:
    legacy = session_with({"spark.sql.ansi.enabled": "false"})
    rows = legacy.sql(
        "SELECT k, v, CAST(v AS decimal(38,18)) * 5000000000 AS d "
        "FROM VALUES (1, 9223372036854775807), (1, 1L), (2, 5L) AS t(k, v)"
    ).coalesce(1)
    rows.write.parquet(str(tmp_path / "in"))
    texts = ["sum(v)", "sum(d)"]
    wanted = [row.asDict() for row in grouped(rows, texts).collect()]
    stream = legacy.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    assert differences(wanted, Planned(grouped(stream, texts)).turn(batch_of(rows))) == []
    assert {row["k"]: row["r0"] for row in wanted}[1] == -(2**63)
