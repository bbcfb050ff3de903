"""Runs one stateful operator as a query plans it; its rows and state are compared with Spark's."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.parity import PATIENCE_SECONDS, Rows
from tests.unit.continuous.operators.driving import Driver

from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.catalyst.translation import read_plan
from epochal.continuous.operators.contract import Moment
from epochal.continuous.plan.logical import Node, Stateful, Step, StreamSource
from epochal.state import HDFSBackedStateStoreProvider, StateStoreId
from epochal.state.files.schema_file import FamilySchema, parse_schema_file

NAN, INF = math.nan, math.inf
EXACT = Context(prec=50)

COLUMNS: dict[str, pa.DataType] = {
    "tiny": pa.int8(),
    "small": pa.int16(),
    "i": pa.int32(),
    "l": pa.int64(),
    "f": pa.float32(),
    "x": pa.float64(),
    "y": pa.float64(),
    "d12": pa.decimal128(12, 2),
    "d20": pa.decimal128(20, 5),
    "d38": pa.decimal128(38, 10),
    "s": pa.string(),
    "bin": pa.binary(),
    "b": pa.bool_(),
    "day": pa.date32(),
    "ts": pa.timestamp("us", tz="UTC"),
    "ntz": pa.timestamp("us"),
    "dur": pa.duration("us"),
    "arr": pa.list_(pa.field("element", pa.float64())),
    "st": pa.struct([pa.field("a", pa.int32()), pa.field("b", pa.float64())]),
}
DDL = (
    "k int, tiny tinyint, small smallint, i int, l bigint, f float, x double, y double, "
    "d12 decimal(12,2), d20 decimal(20,5), d38 decimal(38,10), s string, bin binary, b boolean, "
    "day date, ts timestamp, ntz timestamp_ntz, dur interval day to second, arr array<double>, "
    "st struct<a:int,b:double>"
)
NUMBERS = ("tiny", "small", "i", "l", "f", "x", "d12", "d20", "d38")
ORDERED = (*NUMBERS, "s", "bin", "b", "day", "ts", "ntz")
ONLY_B = "FILTER (WHERE b)"


def some_aggregates() -> list[str]:
    """One aggregate of each function."""
    found: dict[str, list[str]] = {}
    for text in all_aggregates():
        found.setdefault(text.partition("(")[0], []).append(text)
    rng = random.Random(4)
    return [rng.choice(texts) for texts in found.values()]


def all_aggregates() -> Iterator[str]:
    """Every aggregate of our own, of every type, some with filters."""
    yield from ("count(*)", f"count(*) {ONLY_B}", "count(i, s)")
    yield "count(i, s) FILTER (WHERE x > 0)"
    for name in COLUMNS:
        yield f"count({name})"
        for function in ("first", "last"):
            for ignores in ("false", "true"):
                yield f"{function}({name}, {ignores})"
                if name in ("i", "x", "arr"):
                    yield f"{function}({name}, {ignores}) {ONLY_B}"
    for only in ("", f" {ONLY_B}"):
        for name in ORDERED:
            yield from (f"min({name}){only}", f"max({name}){only}")
        for name in NUMBERS:
            if name not in ("l", "d38"):
                yield f"sum({name}){only}"
            if name != "d38":
                yield f"avg({name}){only}"
    yield "sum(l) FILTER (WHERE l BETWEEN -1000 AND 1000)"
    yield from ("try_sum(d12)", "try_avg(d12)", "try_avg(x)")


def random_table(seed: int, rows: int) -> pa.Table:
    """Rows of some groups: with nulls, NaN, zeros of both signs and extremes.

    Group 0 has nulls only, group 1 a single row.
    """
    rng = random.Random(seed)
    schema = pa.schema([("k", pa.int32()), *COLUMNS.items()])

    def row(number: int) -> list[Any]:
        group = 1 if number == 3 else rng.choice((0, 2, 3, 4, 5))
        cells = [random_value(rng, name) for name in COLUMNS]
        nulls = 1.0 if group == 0 else 0.0 if group in (1, 2) else 0.3
        return [group, *(None if rng.random() < nulls else each for each in cells)]

    found = [row(number) for number in range(rows)]
    columns = zip(*found, strict=True)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def random_value(rng: random.Random, name: str) -> Any:
    small = rng.randrange(-40, 40)
    doubles = [small / 8, rng.gauss(0, 3), NAN, INF, -INF, 0.0, -0.0, 1e300]
    match name:
        case "tiny":
            return rng.choice([small, -128, 127])
        case "small":
            return rng.choice([small, -32768, 32767])
        case "i":
            return rng.choice([small, -(2**31), 2**31 - 1])
        case "l":
            return rng.choice([small, -(2**63), 2**63 - 1])
        case "f":
            return rng.choice([small / 4, NAN, INF, 0.0, -0.0])
        case "x":
            return rng.choice(doubles)
        case "y":
            return rng.choice(doubles[:2])
        case "d12":
            return Decimal(rng.choice([small, 10**9 - 1])).scaleb(-2, EXACT)
        case "d20":
            return Decimal(rng.choice([small, 10**20 - 1, 1 - 10**20])).scaleb(-5, EXACT)
        case "d38":
            return Decimal(rng.choice([small, 10**38 - 1])).scaleb(-10, EXACT)
        case "s":
            return rng.choice(["", "a", "ab", "ü", "\U0001f600", "\ue000", "x" * rng.randrange(99)])
        case "bin":
            return rng.choice([b"", b"\x00", b"\xff\x80", b"ab"])
        case "b":
            return rng.random() < 0.5
        case "day":
            return date(1970, 1, 1) + timedelta(days=small * 100)
        case "ts":
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=small * 10**9 + 1)
        case "ntz":
            return datetime(1970, 1, 1) + timedelta(microseconds=small * 10**9 + 7)  # noqa: DTZ001
        case "dur":
            return timedelta(microseconds=small * 10**7 + 3)
        case "arr":
            return [rng.choice([None, *doubles]) for _ in range(rng.randrange(3))]
        case "st":
            return {"a": rng.choice([None, small]), "b": rng.choice([None, *doubles])}
    raise AssertionError(name)


PARTITIONS = 2
Stored = dict[tuple[int, bytes], bytes]


class Planned(Driver):
    """Runs a whole plan with one stateful operator."""

    def __init__(self, frame: DataFrame, mode: str = "update") -> None:
        tree = read_plan(frame, output_mode=mode).tree
        self.after: list[Step] = []
        while isinstance(tree, Step):
            self.after.insert(0, tree)
            tree = tree.child
        assert isinstance(tree, Stateful)
        (self.before,) = tree.children
        super().__init__(tree.spec, PARTITIONS)

    def turn(self, batch: pa.RecordBatch | None, *rest: Any, **times: Any) -> Rows:
        if batch is not None:
            found = run(self.before, batch)
            batch = found[0] if found else None
        rows = super().turn(batch, *rest, **times)
        batches = [pa.RecordBatch.from_pylist(rows, schema=self.spec.output_schema)]
        for step in self.after:
            operator = step.operator.open()
            batches = [new for b in batches for new in operator.process(b, Moment(0, -1, 0, -1))]
        return [row for each in batches for row in each.to_pylist()]


def run(node: Node, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The rows of a tree without state over one batch of its source."""
    match node:
        case StreamSource():
            return [batch]
        case Step(child=child, operator=spec):
            operator, moment = spec.open(), Moment(0, -1, 0, -1)
            return [made for each in run(child, batch) for made in operator.process(each, moment)]
    raise AssertionError(node)


def write_files(spark: SparkSession, place: Path) -> list[Path]:
    """Two files of random rows, each in one row group, so that Spark keeps their order."""
    (place / "input").mkdir()
    found = []
    for number in range(2):
        rows = spark.createDataFrame(random_table(seed=5 + number, rows=200), DDL).coalesce(1)
        rows.write.parquet(str(place / f"written{number}"))
        (part,) = (place / f"written{number}").glob("part-*.parquet")
        found.append(part.rename(place / "input" / f"{number}.parquet"))
        os.utime(found[-1], (1_700_000_000 + number, 1_700_000_000 + number))
    return found


def stream_of(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    reader = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(files[0].parent))


def aggregated(texts: Sequence[str]) -> list[Column]:
    """Aggregates as columns r0, r1 and so on."""
    return [column_of(text).alias(f"r{number}") for number, text in enumerate(texts)]


def column_of(text: str) -> Column:
    """An aggregate. What is no function of SQL, or takes a result of one, is written out."""
    if text.startswith("product"):
        return F.product("y")
    if text.startswith("bitmap_or_agg"):
        return F.bitmap_or_agg(F.to_binary(F.lit("10"), F.lit("hex")))
    return F.expr(text)


def grouped(frame: DataFrame, texts: Sequence[str]) -> DataFrame:
    return frame.groupBy("k").agg(*aggregated(texts))


def batch_of(frame: DataFrame) -> pa.RecordBatch:
    table = frame.toArrow().cast(arrow_schema(frame.schema))
    batch: pa.RecordBatch
    (batch,) = table.combine_chunks().to_batches()
    return batch


def compare_batches(
    spark: SparkSession, files: Sequence[Path], checkpoint: Path, texts: Sequence[str]
) -> Planned:
    """Run both engines over the files, one per batch; rows and state must be equal after each.

    The operator goes on from the state that Spark wrote.
    """
    frame = grouped(stream_of(spark, files), texts)
    outputs = run_in_spark(frame, checkpoint)
    driver = Planned(frame)
    (family,) = parse_schema_file((checkpoint / "state/0/0/_metadata/schema").read_bytes())
    (store,) = driver.spec.stores
    assert shapes(store.key) == shapes(family.key)
    assert shapes(store.value) == shapes(family.value)
    for number, path in enumerate(files):
        batch = batch_of(spark.read.schema(DDL).parquet(str(path)).coalesce(1))
        got = driver.turn(batch, watermark_ms=-1)
        driver.cut()
        assert differences(outputs[number], got) == []
        theirs = stored_by_spark(checkpoint, family, number + 1)
        assert stored(driver) == theirs
        for (partition, key), row in theirs.items():
            driver.stores[partition, "default"][key] = row
        driver.restart()
    return driver


def run_in_spark(frame: DataFrame, checkpoint: Path) -> list[Rows]:
    outputs: list[Rows] = []

    def keep(batch: DataFrame, number: int) -> None:
        del number
        outputs.append([row.asDict(True) for row in batch.collect()])

    writer = frame.writeStream.outputMode("update").foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_SECONDS * 3)
    assert query.exception() is None
    return outputs


def shapes(schema: Any) -> list[Any]:
    """Names and types. The metadata of Spark's fields tells of watermarks and windows."""
    return [(each.name, each.data_type, each.nullable) for each in schema.fields]


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


def stored(driver: Driver) -> Stored:
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


def differences(wanted: Rows, got: Rows) -> list[Any]:
    """The results that differ, in rows that are found by their groups."""
    theirs, mine = ({row["k"]: row for row in rows} for rows in (wanted, got))
    if theirs.keys() != mine.keys():
        return [theirs.keys(), mine.keys()]
    return [
        (key, name, value, mine[key][name])
        for key, row in theirs.items()
        for name, value in row.items()
        if not same(plain(value), plain(mine[key][name]))
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
