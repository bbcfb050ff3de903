"""Spark's hash of keys. `murmur_values.json` holds what `hash()` of Spark 4.3.0 gave."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from tests.unit.state.arrow_values import to_arrow
from tests.unit.state.random_rows import Table, struct_of, tables

from epochal.errors import StateSchemaError
from epochal.state.rows.murmur3 import hash_columns, partition_ids
from epochal.state.rows.types import AtomicType, Kind, Layout, StringType, StructType, parse_schema
from epochal.state.rows.unsafe_row import CalendarInterval, TimestampNanos

RECORDED = json.loads((Path(__file__).parent / "murmur_values.json").read_text())


def schema_of(*types: Any) -> StructType:
    fields = [{"name": f"c{i}", "type": each} for i, each in enumerate(types)]
    return parse_schema(json.dumps({"type": "struct", "fields": fields}))


def value_of(recorded: Any, layout: Layout) -> Any:
    if recorded is None:
        return None
    match layout.kind:
        case Kind.FLOAT | Kind.DOUBLE:
            return float(recorded)
        case Kind.BINARY:
            return bytes.fromhex(recorded)
        case Kind.SMALL_DECIMAL | Kind.BIG_DECIMAL:
            return Decimal(recorded)
        case Kind.INTERVAL:
            return CalendarInterval(*recorded)
        case Kind.NANOS:
            return TimestampNanos(*recorded)
        case Kind.ARRAY:
            return [value_of(item, layout.children[0]) for item in recorded]
        case Kind.MAP:
            key, value = layout.children
            return [(value_of(k, key), value_of(v, value)) for k, v in recorded]
        case Kind.STRUCT:
            pairs = zip(recorded, layout.children, strict=True)
            return tuple(value_of(item, child) for item, child in pairs)
    return recorded


def hashes(rows: list[tuple[Any, ...]], schema: StructType) -> list[int]:
    column = to_arrow(rows, schema)
    return [int(value) for value in hash_columns(column.flatten(), schema)]


@pytest.mark.parametrize("case", RECORDED, ids=[json.dumps(case["type"])[:50] for case in RECORDED])
def test_hashes_as_spark_did(case: dict[str, Any]) -> None:
    if case["type"] == "row":
        schema = schema_of(*case["ddl"])
        rows = [tuple(row) for row in case["values"]]
    else:
        schema = schema_of(case["type"])
        child = schema.layout.children[0]
        rows = [(value_of(value, child),) for value in case["values"]]
    assert hashes(rows, schema) == case["hashes"]


def has_variant(layout: Layout) -> bool:
    return layout.kind is Kind.VARIANT or any(has_variant(child) for child in layout.children)


@given(tables(max_rows=20))
def test_a_row_hashes_alike_alone_and_among_others(table: Table) -> None:
    schema, rows = table
    if has_variant(schema.layout) or not schema.fields:
        return
    assert hashes(rows, schema) == [hashes([row], schema)[0] for row in rows]


def test_a_null_leaves_the_hash_of_the_columns_before_it() -> None:
    both = struct_of([AtomicType("long"), StringType()])
    one = struct_of([AtomicType("long")])
    assert hashes([(9, None)], both) == hashes([(9,)], one)


def test_partitions_are_never_negative() -> None:
    schema = struct_of([AtomicType("integer")])
    column = pa.array(range(-500, 500), pa.int32())
    hashed = hash_columns([column], schema)
    placed = partition_ids([column], schema, 7)
    assert (hashed < 0).any()
    assert placed.tolist() == [int(value) % 7 for value in hashed]
    assert set(placed.tolist()) == set(range(7))


def test_hashes_a_slice_of_a_column_as_those_rows() -> None:
    schema = struct_of([StringType(), AtomicType("boolean")])
    rows = [(f"key {i}", i % 3 == 0) for i in range(30)]
    columns = [column.slice(7, 9) for column in to_arrow(rows, schema).flatten()]
    expected = np.array(hashes(rows[7:16], schema), np.int32)
    assert hash_columns(columns, schema).tolist() == expected.tolist()


def test_refuses_what_spark_cannot_hash() -> None:
    schema = struct_of([AtomicType("variant")])
    with pytest.raises(StateSchemaError, match="no hash for a variant"):
        hashes([(None,)], schema)
