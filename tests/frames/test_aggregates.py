"""Aggregates give what Spark's give, keep the state that Spark keeps, and go on from Spark's."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from tests.frames.aggregate_cases import DDL, EXACT, Case, all_cases, random_table, sample_cases
from tests.spark.parity import PATIENCE_SECONDS
from tests.spark.sessions import session_with
from tests.unit.continuous.operators.driving import Driver

from epochal.continuous.operators.aggregation.aggregate import AggregateSpec
from epochal.continuous.operators.aggregation.functions import AggregateCall, Mode
from epochal.state import HDFSBackedStateStoreProvider, StateStoreId
from epochal.state.files.schema_file import FamilySchema, parse_schema_file
from epochal.state.rows.types import schema_json

pytestmark = pytest.mark.timeout(600)

PARTITIONS = 2
CHUNK = 60
EVERYTHING = list({case.text: case for case in all_cases()}.values())
MATRIX = {
    "sample": sample_cases(),
    **{str(at // CHUNK): EVERYTHING[at : at + CHUNK] for at in range(0, len(EVERYTHING), CHUNK)},
}

Stored = dict[tuple[int, bytes], bytes]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    partitions = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
    return session_with({"spark.sql.session.timeZone": "UTC", **partitions})


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two files of random rows, each in one row group, so that Spark keeps their order."""
    place = tmp_path_factory.mktemp("aggregates")
    (place / "input").mkdir()
    found = []
    for number in range(2):
        rows = spark.createDataFrame(random_table(seed=5 + number, rows=200), DDL).coalesce(1)
        rows.write.parquet(str(place / f"written{number}"))
        (part,) = (place / f"written{number}").glob("part-*.parquet")
        found.append(part.rename(place / "input" / f"{number}.parquet"))
        os.utime(found[-1], (1_700_000_000 + number, 1_700_000_000 + number))
    return found


@pytest.mark.parametrize("cases", MATRIX.values(), ids=MATRIX.keys())
def test_output_and_state_of_every_batch_are_those_of_spark(
    spark: SparkSession, files: list[Path], tmp_path: Path, cases: list[Case]
) -> None:
    outputs = run_in_spark(spark, files, tmp_path, cases)
    batches = [arguments_of(spark.read.parquet(str(path)), cases) for path in files]
    spec = spec_of(spark, cases, batches[0].schema, files[0])
    (family,) = parse_schema_file((tmp_path / "state/0/0/_metadata/schema").read_bytes())
    (store,) = spec.stores
    assert schema_json(store.key) == schema_json(family.key)
    assert schema_json(store.value) == schema_json(family.value)

    driver = Driver(spec, PARTITIONS)
    for number, batch in enumerate(batches):
        got = driver.turn(batch, watermark_ms=-1)
        driver.cut()
        assert differences(cases, outputs[number], got) == []
        theirs = stored_by_spark(tmp_path, family, number + 1)
        assert ours(driver) == theirs
        if number == 0:
            # The second batch must give the same from the state that Spark wrote.
            for (partition, key), row in theirs.items():
                driver.stores[partition, "default"][key] = row
            driver.restart()


@pytest.mark.parametrize("rows", [1000, 37], ids=["arrow", "python"])
@pytest.mark.parametrize("seed", range(3))
def test_batches_of_any_size_give_the_same(
    spark: SparkSession, files: list[Path], rows: int, seed: int
) -> None:
    cases = sample_cases()
    whole = spark.createDataFrame(random_table(seed, rows=300), DDL).coalesce(1)
    wanted = [row.asDict(True) for row in grouped(whole, cases).collect()]
    batch = arguments_of(whole, cases)
    driver = Driver(spec_of(spark, cases, batch.schema, files[0]))
    got: dict[int, dict[str, Any]] = {}
    for start in range(0, batch.num_rows, rows):
        found = driver.turn(batch.slice(start, rows))
        got.update({row["k"]: row for row in found})
        driver.cut()
        driver.restart()
    assert differences(cases, wanted, list(got.values())) == []


def test_sums_out_of_range_end_as_they_do_in_spark(spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT k, v, CAST(v AS decimal(38,18)) * 5000000000 AS d "
        "FROM VALUES (1, 9223372036854775807), (1, 1L), (2, 5L) AS t(k, v)"
    )
    spark.conf.set("spark.sql.ansi.enabled", "false")
    wanted = grouped(frame, [Case("sum(v)", "Sum", ("v",)), Case("sum(d)", "Sum", ("d",))])
    theirs = {row["k"]: (row["r0"], row["r1"]) for row in wanted.collect()}
    spark.conf.unset("spark.sql.ansi.enabled")
    batch = frame.toArrow().combine_chunks().to_batches()[0]
    calls = [
        AggregateCall("Sum", ("v",), "r0", pa.int64(), mode="legacy"),
        AggregateCall("Sum", ("d",), "r1", wanted_type(wanted, "r1"), mode="legacy"),
    ]
    driver = Driver(AggregateSpec(("k",), tuple(calls), batch.schema, "update"))
    assert {row["k"]: (row["r0"], row["r1"]) for row in driver.turn(batch)} == theirs
    assert theirs[1][0] == -(2**63)


def run_in_spark(
    spark: SparkSession, files: list[Path], checkpoint: Path, cases: Sequence[Case]
) -> list[list[dict[str, Any]]]:
    outputs: list[list[dict[str, Any]]] = []

    def keep(frame: DataFrame, number: int) -> None:
        outputs.append([row.asDict(True) for row in frame.collect()])

    reader = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
    frame = grouped(reader.parquet(str(files[0].parent)), cases)
    writer = frame.writeStream.outputMode("update").foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_SECONDS * 3)
    assert query.exception() is None
    return outputs


def grouped(frame: DataFrame, cases: Sequence[Case]) -> DataFrame:
    results = [F.expr(case.text).alias(f"r{number}") for number, case in enumerate(cases)]
    return frame.groupBy("k").agg(*results)


def arguments_of(frame: DataFrame, cases: Sequence[Case]) -> pa.RecordBatch:
    """What Spark computes before it aggregates: the key, arguments and filters."""
    columns = ["k"]
    for number, case in enumerate(cases):
        columns += [f"{text} AS a{number}_{place}" for place, text in enumerate(case.arguments)]
        if case.filter is not None:
            columns.append(f"({case.filter}) AS f{number}")
    (batch,) = frame.coalesce(1).selectExpr(*columns).toArrow().combine_chunks().to_batches()
    schema = pa.schema([field.with_nullable(True) for field in batch.schema])
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def spec_of(
    spark: SparkSession, cases: Sequence[Case], schema: pa.Schema, file: Path
) -> AggregateSpec:
    results = to_arrow_schema(
        grouped(spark.read.schema(DDL).parquet(str(file)), cases).schema, timezone="UTC"
    )
    calls = []
    for number, case in enumerate(cases):
        calls.append(
            AggregateCall(
                case.function,
                tuple(f"a{number}_{place}" for place in range(len(case.arguments))),
                f"r{number}",
                results.field(f"r{number}").type,
                None if case.filter is None else f"f{number}",
                cast(Mode, case.mode),
                case.extra,
            )
        )
    return AggregateSpec(("k",), tuple(calls), schema, "update", per_epoch=True)


def wanted_type(frame: DataFrame, name: str) -> pa.DataType:
    found: pa.DataType = to_arrow_schema(frame.schema, timezone="UTC").field(name).type
    return found


def stored_by_spark(checkpoint: Path, family: FamilySchema, version: int) -> Stored:
    found: Stored = {}
    for partition in range(PARTITIONS):
        if not (checkpoint / f"state/0/{partition}").exists():
            continue  # without a key there is one partition
        provider = HDFSBackedStateStoreProvider(
            StateStoreId(str(checkpoint / "state"), 0, partition), family.key, family.value
        )
        with provider.get_read_store(version) as store:
            found.update({(partition, key): one_nan(row) for key, row in store.items_raw()})
        provider.close()
    return found


def ours(driver: Driver) -> Stored:
    return {
        (partition, key): one_nan(row)
        for (partition, _), rows in driver.stores.items()
        for key, row in rows.items()
    }


def one_nan(row: bytes) -> bytes:
    """The row with one kind of NaN: the sign of a NaN depends on the processor's instructions."""
    words = np.frombuffer(row, "<u8").copy()
    words[words == 0xFFF8000000000000] = 0x7FF8000000000000
    return words.tobytes()


def differences(
    cases: Sequence[Case], wanted: Sequence[dict[str, Any]], got: Sequence[dict[str, Any]]
) -> list[Any]:
    theirs, mine = ({row["k"]: row for row in rows} for rows in (wanted, got))
    if theirs.keys() != mine.keys():
        return [theirs.keys(), mine.keys()]
    return [
        (case.text, key, row[f"r{number}"], mine[key][f"r{number}"])
        for key, row in theirs.items()
        for number, case in enumerate(cases)
        if not same(plain(row[f"r{number}"]), plain(mine[key][f"r{number}"]))
    ]


def plain(value: Any) -> Any:
    """A value in a form that Spark's rows and Arrow's share."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, Decimal):
        return value.normalize(EXACT)  # equal numbers may have more or fewer zeros at their end
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


def same(a: Any, b: Any) -> bool:
    """Equal, with the same kind of zero, or NaN both. Sums may differ in their last bits."""
    if isinstance(a, float) and isinstance(b, float):
        if a == 0 == b:
            return math.copysign(1, a) == math.copysign(1, b)
        return math.isclose(a, b, rel_tol=1e-12) or (a != a and b != b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) and type(a) is type(b)


@pytest.fixture(autouse=True)
def _ansi(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset("spark.sql.ansi.enabled")
