"""Many rows encoded by columns have the bytes of rows encoded one by one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.state.files.rocksdb_family import Family, FamilyRows, family_prefix
from epochal.state.files.rocksdb_entries import ValueForm
from epochal.state.files.schema_file import FamilySchema
from epochal.state.rows.row_codec import encode_tuples
from epochal.state.rows.types import AtomicType, StringType, StructField, StructType
from epochal.state.rows.unsafe_row import encode_row

MANY = 64


def ints(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


VALUES: dict[Any, st.SearchStrategy[Any]] = {
    AtomicType("long"): ints(64),
    AtomicType("timestamp"): ints(64),
    AtomicType("integer"): ints(32),
    AtomicType("date"): ints(32),
    AtomicType("short"): ints(16),
    AtomicType("byte"): ints(8),
    AtomicType("boolean"): st.booleans(),
    AtomicType("double"): st.floats(),
    AtomicType("float"): st.floats(width=32),
    AtomicType("binary"): st.binary(max_size=20),
    StringType(): st.text(max_size=12),
    StructType((StructField("inner", AtomicType("long")),)): st.tuples(ints(64)),
}


@st.composite
def schema_and_rows(draw: st.DrawFn) -> tuple[StructType, list[tuple[Any, ...]]]:
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    schema = StructType(tuple(StructField(f"c{at}", kind) for at, kind in enumerate(kinds)))
    row = st.tuples(*(st.none() | VALUES[kind] for kind in kinds))
    few = draw(st.lists(row, min_size=1, max_size=12))
    return schema, few * (MANY // len(few) + 1)


@settings(max_examples=150)
@given(schema_and_rows())
def test_many_rows_have_the_bytes_of_rows_encoded_one_by_one(
    given_rows: tuple[StructType, list[tuple[Any, ...]]],
) -> None:
    schema, rows = given_rows
    assert len(rows) >= MANY
    assert encode_tuples(rows, schema) == [encode_row(row, schema) for row in rows]


@pytest.mark.parametrize("checksummed", [False, True])
@settings(max_examples=40)
@given(schema_and_rows(), schema_and_rows())
def test_many_rows_of_a_family_change_what_each_of_them_would(
    checksummed: bool,
    keys: tuple[StructType, list[tuple[Any, ...]]],
    values: tuple[StructType, list[tuple[Any, ...]]],
) -> None:
    family = Family(FamilyRows(FamilySchema("count", keys[0], values[0])))
    puts = list(zip(keys[1][:MANY], values[1][:MANY], strict=True))
    form = ValueForm(checksummed=checksummed)

    def changes(some: list[tuple[Any, Any]], removes: list[Any]) -> list[Any]:
        return list(family.changes(some, removes, lambda _: family_prefix(7), lambda _: None, form))

    expected = changes([], [keys[1][0]])
    for key, value in puts:
        at = family_prefix(7) + family.rows.encode_key(key)
        expected.append((at, family.rows.encode_value(at, value, form)))
    assert changes(puts, [keys[1][0]]) == expected
