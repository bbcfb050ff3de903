"""Many rows encoded or decoded at once are equal to one row at a time."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.state.random_rows import Table, tables

from epochal.errors import StateFormatError
from epochal.state.files.rocksdb_entries import ValueWrapper
from epochal.state.files.rocksdb_family import Family, FamilyRows, family_prefix
from epochal.state.files.schema_file import FamilySchema
from epochal.state.rows import row_codec
from epochal.state.rows.ddl import parse_ddl
from epochal.state.rows.row_codec import decode_tuples, encode_tuples
from epochal.state.rows.types import AtomicType, StringType, StructField, StructType
from epochal.state.rows.unsafe_row import decode_row, encode_row

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
    form = ValueWrapper(checksummed=checksummed)

    def changes(some: list[tuple[Any, Any]], removes: list[Any]) -> list[Any]:
        return list(family.changes(some, removes, lambda _: family_prefix(7), lambda _: None, form))

    expected = changes([], [keys[1][0]])
    for key, value in puts:
        at = family_prefix(7) + family.rows.encode_key(key)
        expected.append((at, family.rows.encode_value(at, value, form)))
    assert changes(puts, [keys[1][0]]) == expected


PLAIN = "a long, b int, c short, d byte, e boolean, f double, g float, h string, i binary"
TIMES = "t timestamp, n timestamp_ntz, d date, w struct<start: timestamp, end: timestamp>"


def one_by_one(
    rows: list[tuple[bytes, bytes]], keys: StructType, values: StructType
) -> list[tuple[object, object]]:
    return [(decode_row(key, keys), decode_row(value, values)) for key, value in rows]


@given(tables(max_rows=6), tables(max_rows=6), st.integers(1, 200))
@settings(max_examples=60)
def test_rows_of_every_type_decode_as_one_at_a_time(keys: Table, values: Table, count: int) -> None:
    (key_schema, key_rows), (value_schema, value_rows) = keys, values
    if not key_rows or not value_rows:
        return
    rows = [
        (
            encode_row(key_rows[n % len(key_rows)], key_schema),
            encode_row(value_rows[n % len(value_rows)], value_schema),
        )
        for n in range(count)
    ]
    found = list(decode_tuples(rows, key_schema, value_schema))
    assert repr(found) == repr(one_by_one(rows, key_schema, value_schema))  # NaN equals nothing


@pytest.mark.parametrize("count", [0, 1, 63, 64, 99, 100, 101, 250])
def test_plain_columns_nulls_and_windows_decode_as_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(row_codec, "_ROWS_AT_ONCE", 100)
    keys, values = parse_ddl(TIMES), parse_ddl(PLAIN)
    rng = Random(count)
    rows = []
    for n in range(count):
        key = (n, -n, n % 1000, None if n % 7 == 0 else (n, n + 1 if n % 3 else None))
        value = (n, n, n % 100, -n % 100, n % 2 == 0, n / 3, n / 4, f"é{n}", b"\0" * (n % 5))
        holes = tuple(None if rng.random() < 0.1 else each for each in value)
        rows.append((encode_row(key, keys), encode_row(holes, values)))
    assert list(decode_tuples(iter(rows), keys, values)) == one_by_one(rows, keys, values)


def test_a_damaged_row_among_many_is_refused_as_it_is_alone() -> None:
    keys, values = parse_ddl("a long"), parse_ddl("b string")
    good = [(encode_row((n,), keys), encode_row((f"text {n}",), values)) for n in range(100)]
    damaged = bytearray(good[70][1])
    damaged[16] = 0xFF
    rows = [*good[:70], (good[70][0], bytes(damaged)), *good[71:]]
    with pytest.raises(StateFormatError) as alone:
        decode_row(bytes(damaged), values)
    with pytest.raises(StateFormatError) as among:
        list(decode_tuples(rows, keys, values))
    assert "0xff does not belong to UTF-8 text" in str(alone.value)
    assert "0xff does not belong to UTF-8 text" in str(among.value)
