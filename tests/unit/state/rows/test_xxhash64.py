"""Spark's `xxhash64`. `xxhash_values.json` holds what Spark 4.3.0 gave."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.state.arrow_values import to_arrow
from tests.unit.state.random_rows import struct_of
from tests.unit.state.rows.test_murmur3 import schema_of, value_of

from epochal.state.rows.types import AtomicType, StringType, StructType
from epochal.state.rows.xxhash64 import xxhash64_columns

RECORDED = json.loads((Path(__file__).parent / "xxhash_values.json").read_text())


def hashes(rows: list[tuple[Any, ...]], schema: StructType) -> list[int]:
    column = to_arrow(rows, schema)
    return [int(value) for value in xxhash64_columns(column.flatten(), schema)]


@pytest.mark.parametrize("case", RECORDED, ids=[json.dumps(case["type"])[:50] for case in RECORDED])
def test_hashes_as_spark_did(case: dict[str, Any]) -> None:
    schema = schema_of(case["type"])
    child = schema.layout.children[0]
    rows = [(value_of(value, child),) for value in case["values"]]
    assert hashes(rows, schema) == case["hashes"]


def test_strings_of_every_length_hash_alike_together_and_alone() -> None:
    rng = Random(3)
    schema = struct_of([StringType()])
    rows = [("x" * rng.randrange(600) + "é" * rng.randrange(3),) for _ in range(80)]
    assert hashes(rows, schema) == [hashes([row], schema)[0] for row in rows]


def test_a_null_leaves_the_hash_of_the_columns_before_it() -> None:
    both = struct_of([AtomicType("long"), StringType()])
    one = struct_of([AtomicType("long")])
    assert hashes([(9, None)], both) == hashes([(9,)], one)
