"""Which rows go to which task, however few or many there are and whatever their columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from epochal.continuous.tasks.key_split import KeySplit
from epochal.state.rows.arrow_types import spark_schema
from epochal.state.rows.murmur3 import partition_ids

PARTITIONS, TASKS = 5, 2
COLUMNS: Any = [
    pa.field("key", pa.int64()),
    pa.field("small", pa.int16()),
    pa.field("part", pa.float64()),
    pa.field("day", pa.date32()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
]
FIXED = pa.schema(COLUMNS)
MIXED = FIXED.append(pa.field("text", pa.string())).append(pa.field("yes", pa.bool_()))


def rows(schema: pa.Schema, count: int, *, nulls: bool) -> pa.RecordBatch:
    """Rows out of the middle of a batch, so that columns have an offset."""
    rng = np.random.default_rng(count)
    columns: dict[str, Any] = {}
    for field in schema:
        numbers = rng.integers(0, 40, count + 2).tolist()
        missing = rng.random(count + 2) < (0.3 if nulls else 0)
        given = [None if gone else n for n, gone in zip(numbers, missing, strict=True)]
        if field.type == pa.string():
            columns[field.name] = pa.array([None if n is None else f"text {n}" for n in given])
        elif field.type == pa.bool_():
            columns[field.name] = pa.array([None if n is None else n % 2 == 0 for n in given])
        else:
            columns[field.name] = (
                pa.array(given, pa.int64())
                .cast(pa.int32())
                .cast(pa.int32() if field.type == pa.date32() else pa.int64())
                .cast(field.type)
            )
    return pa.RecordBatch.from_pydict(columns, schema=schema).slice(1, count)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 17, 25, 128, 129, 1_000])
@pytest.mark.parametrize("nulls", [False, True], ids=["whole", "with nulls"])
@pytest.mark.parametrize("schema", [FIXED, MIXED], ids=["fixed width", "mixed"])
def test_every_row_goes_where_spark_would_have_it_in_the_order_it_came(
    schema: pa.Schema, nulls: bool, count: int
) -> None:
    split = KeySplit(schema, ["key"], PARTITIONS, TASKS)
    key = spark_schema(pa.schema([schema.field("key")]))
    for _ in range(2):  # the second time keys are known
        batch = rows(schema, count, nulls=nulls)
        ids = partition_ids([batch.column("key")], key, PARTITIONS).tolist()
        expected = {
            partition: [
                row for row, at in zip(batch.to_pylist(), ids, strict=True) if at == partition
            ]
            for partition in sorted(set(ids))
        }
        found = {}
        for task, part, runs in split.split(batch):
            part.validate(full=True)
            start = 0
            for partition, length in runs:
                assert partition % TASKS == task
                found[partition] = part.slice(start, length).to_pylist()
                start += length
            assert start == part.num_rows
        assert found == expected


def test_a_row_of_fixed_width_has_a_size_and_another_one_is_measured() -> None:
    fixed, mixed = (KeySplit(schema, ["key"], PARTITIONS, TASKS) for schema in (FIXED, MIXED))
    assert fixed.size(rows(FIXED, 10, nulls=False)) == 8 + 2 + 8 + 4 + 8
    batch = rows(MIXED, 10_000, nulls=False)
    assert mixed.size(batch.slice(5, 10)) == batch.slice(5, 10).nbytes / 10
    few = rows(MIXED, 10, nulls=False)
    assert few.nbytes / 10 <= mixed.size(few) <= (1 << 14) / 10


def test_few_rows_may_have_structs_as_keys_with_a_null_first() -> None:
    place = pa.struct([pa.field("city", pa.string())])
    schema = pa.schema([pa.field("place", place)])
    batch = pa.RecordBatch.from_pylist(
        [{"place": None}, {"place": {"city": "Ulm"}}, {"place": {"city": None}}], schema
    )
    split = KeySplit(schema, ["place"], PARTITIONS, TASKS)
    ids = partition_ids([batch.column(0)], spark_schema(schema), PARTITIONS)
    for _ in range(2):
        found = split.split(batch)
        assert sorted(p for _, _, runs in found for p, n in runs for _ in range(n)) == sorted(ids)
