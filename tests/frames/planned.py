"""Runs one stateful operator as a query plans it; its rows and state are compared with Spark's."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.frames.aggregate_cases import DDL, EXACT, random_table
from tests.spark.parity import PATIENCE_SECONDS, Rows
from tests.unit.continuous.operators.driving import Driver

from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.catalyst.translation import read_plan
from epochal.continuous.operators.contract import Moment
from epochal.continuous.plan.logical import Node, Stateful, Step, StreamSource
from epochal.state import HDFSBackedStateStoreProvider, StateStoreId
from epochal.state.files.schema_file import FamilySchema, parse_schema_file

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
