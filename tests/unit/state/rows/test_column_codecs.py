"""Rows to and from Arrow columns, and many at once: equal to one row at a time, for every type."""

from __future__ import annotations

import random
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.state.arrow_values import from_arrow, to_arrow
from tests.unit.state.random_rows import Table, present, random_table, struct_of, tables

from epochal.errors import StateFormatError, StateValueError
from epochal.state.files.rocksdb_entries import ValueWrapper
from epochal.state.files.rocksdb_family import Family, FamilyRows, family_prefix
from epochal.state.files.schema_file import FamilySchema
from epochal.state.rows import row_codec
from epochal.state.rows.arrow_types import arrow_type
from epochal.state.rows.byte_spans import Spans, as_spans, spans_of
from epochal.state.rows.column_decoder import decode_rows, validate_rows
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.rows.ddl import parse_ddl
from epochal.state.rows.row_codec import decode_tuples, encode_tuples
from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from epochal.state.rows.unsafe_row import decode_row, encode_row

STRING, LONG = StringType(), AtomicType("long")


def as_in_a_file(rows: list[bytes], lead: int) -> Spans:
    """Rows apart from each other, the first at `lead`, as keys and values of a file are."""
    data = b"\xee" * lead + b"".join(row + b"\xee" * 8 for row in rows)
    lengths = np.array([len(row) for row in rows], np.int64)
    starts = lead + np.cumsum(lengths + 8) - lengths - 8
    return Spans(np.frombuffer(data, np.uint8), starts, lengths)


@given(tables(max_rows=9), st.sampled_from([0, 4, 8, 1]))
@settings(max_examples=300)
def test_decodes_as_row_by_row_wherever_rows_start(table: Table, lead: int) -> None:
    schema, rows = table
    raw = [encode_row(row, schema) for row in rows]
    decoded = decode_rows(as_in_a_file(raw, lead), schema)
    decoded.validate(full=True)
    assert decoded.type == arrow_type(schema)
    assert from_arrow(decoded, schema.layout) == rows


@given(tables(max_rows=9))
@settings(max_examples=300)
def test_encodes_as_row_by_row(table: Table) -> None:
    schema, rows = table
    encoded = encode_rows(to_arrow(rows, schema), schema)
    assert list(encoded) == [encode_row(row, schema) for row in rows]


@given(tables(max_rows=12), st.integers(0, 4), st.integers(0, 4))
def test_encodes_a_slice_of_a_column_as_those_rows(table: Table, skip: int, drop: int) -> None:
    schema, rows = table
    whole = to_arrow(rows, schema)
    kept = rows[skip : max(len(rows) - drop, skip)]
    encoded = encode_rows(whole.slice(skip, len(kept)), schema)
    assert list(encoded) == [encode_row(row, schema) for row in kept]


@given(tables(max_rows=4), st.integers(0, 1 << 32))
@settings(max_examples=500)
def test_refuses_exactly_what_row_by_row_refuses(table: Table, seed: int) -> None:
    schema, rows = table
    rng = Random(seed)
    raw = [bytearray(encode_row(row, schema)) for row in rows]
    for row in raw:
        for _ in range(rng.choice([0, 0, 1, 2]) if row else 0):
            row[rng.randrange(len(row))] = rng.choice([0, 1, 8, 24, 128, 255, rng.randrange(256)])
        if rng.random() < 0.1:
            del row[rng.randrange(len(row) + 1) :]
    spans = as_in_a_file([bytes(row) for row in raw], 4)
    try:
        expected: Any = [decode_row(bytes(row), schema) for row in raw]
    except StateFormatError:
        with pytest.raises(StateFormatError):
            decode_rows(spans, schema)
        return
    decoded = from_arrow(decode_rows(spans, schema), schema.layout)
    assert repr(decoded) == repr(expected)  # repr: a flipped bit may have made a NaN


def test_gives_back_every_type_in_bulk() -> None:
    rng = Random(7)
    for _ in range(20):
        schema, _ = random_table(rng, 1)
        rows = [present(rng, schema.layout) for _ in range(100)]
        encoded = encode_rows(to_arrow(rows, schema), schema)
        assert list(encoded) == [encode_row(row, schema) for row in rows]
        assert from_arrow(decode_rows(encoded, schema), schema.layout) == rows


def test_names_the_place_of_the_first_bad_row_in_the_buffer() -> None:
    schema = struct_of([LONG, STRING])
    rows = [encode_row((i, "abc"), schema) for i in range(50)]
    spans = as_in_a_file(rows, 4)
    data = bytearray(spans.buffer.tobytes())
    padding_of_30 = int(spans.starts[30]) + 24 + 5
    for at in (padding_of_30, int(spans.starts[41]) + 24 + 5):
        data[at] = 1
    damaged = Spans(np.frombuffer(bytes(data), np.uint8), spans.starts, spans.lengths)
    with pytest.raises(StateFormatError, match=r"row\.c1") as caught:
        validate_rows(damaged, schema, source="3.delta")
    start_of_padding = padding_of_30 - 2
    assert (caught.value.source, caught.value.offset) == ("3.delta", start_of_padding)


@pytest.mark.parametrize("damaged", [0, 2, 3, 9])
def test_a_damaged_row_is_found_in_whichever_part_it_lies(
    damaged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = struct_of([LONG])
    rows = [encode_row((n,), schema) for n in range(10)]
    rows[damaged] = b"\x02" + rows[damaged][1:]  # a null bit of a column that is not there
    monkeypatch.setattr("epochal.state.rows.column_decoder.ROWS_AT_ONCE", 3)
    with pytest.raises(StateFormatError) as caught:
        validate_rows(spans_of(rows), schema)
    assert caught.value.offset == 16 * damaged


def test_counts_rows_that_have_no_fields() -> None:
    schema = struct_of([])
    assert len(decode_rows(spans_of([b"", b"", b""]), schema)) == 3
    three = pa.array([{}, {}, {}], pa.struct([]))
    assert isinstance(three, pa.StructArray)
    assert list(encode_rows(three, schema)) == [b"", b"", b""]


def test_elements_on_one_payload_are_refused_before_they_are_followed() -> None:
    inner = ArrayType(ArrayType(ArrayType(AtomicType("byte"))))
    schema = struct_of([inner])
    raw = bytearray(encode_row(([[[1] * 64] * 2] * 2,), schema))
    assert from_arrow(decode_rows(spans_of([bytes(raw)]), schema), schema.layout)
    # An outer array of as many elements as fit, all on the same inner one.
    count = 200
    header = bytearray(8 + 32 + 8 * count)
    header[:8] = count.to_bytes(8, "little")
    inner_bytes = encode_row(
        ([[1] * 64] * 2,), struct_of([ArrayType(ArrayType(AtomicType("byte")))])
    )[16:]
    for index in range(count):
        word = len(header) << 32 | len(inner_bytes)
        header[40 + 8 * index : 48 + 8 * index] = word.to_bytes(8, "little")
    payload = bytes(header) + inner_bytes
    row = bytes(8) + (16 << 32 | len(payload)).to_bytes(8, "little") + payload
    with pytest.raises(StateFormatError, match="lies outside its place"):
        decode_rows(spans_of([row]), schema)


def test_fields_on_one_payload_are_refused() -> None:
    schema = struct_of([STRING, STRING])
    row = bytearray(encode_row(("abcdefgh", ""), schema))
    row[16:24] = row[8:16]
    for refuse in (decode_row, lambda raw, schema: decode_rows(spans_of([raw]), schema)):
        with pytest.raises(StateFormatError, match=r"row\.c1.*lies outside its place"):
            refuse(bytes(row), schema)


def test_a_map_with_more_keys_than_values_is_refused() -> None:
    schema = struct_of([MapType(LONG, LONG)])
    row = bytearray(encode_row(([(1, 10)],), schema))
    row[16 + 8 + 24 : 16 + 8 + 32] = bytes(8)  # how many values there are
    for refuse in (decode_row, lambda raw, schema: decode_rows(spans_of([raw]), schema)):
        with pytest.raises(StateFormatError, match="a map of 1 keys, none null, has 0 values"):
            refuse(bytes(row), schema)


def test_converts_columns_that_arrow_can_convert() -> None:
    schema = struct_of([LONG, STRING, DecimalType(10, 2), AtomicType("timestamp")])
    batch = pa.record_batch(
        [
            pa.array([1, 2], pa.int16()),
            pa.array(["a", "b"]).dictionary_encode(),
            pa.array([1, None], pa.int32()).cast(pa.decimal128(10, 0)),
            pa.array([1000, 2000], pa.timestamp("ms", tz="Europe/Paris")),
        ],
        names=["p", "q", "r", "s"],
    )
    rows = [decode_row(raw, schema) for raw in encode_rows(batch, schema)]
    assert [(a, b, c and str(c), d) for a, b, c, d in rows] == [
        (1, "a", "1.00", 1_000_000),
        (2, "b", None, 2_000_000),
    ]


@pytest.mark.parametrize(
    ("column", "data_type"),
    [
        (pa.array([300]), AtomicType("byte")),
        (pa.array(["x"]), LONG),
        (pa.array([1], pa.timestamp("ns")), AtomicType("timestamp_ntz")),
        (pa.array([1.5]), LONG),
    ],
)
def test_refuses_columns_that_would_lose_something(column: Any, data_type: AtomicType) -> None:
    batch = pa.record_batch([column], names=["c"])
    with pytest.raises(StateValueError, match=r"row\.c0"):
        encode_rows(batch, struct_of([data_type]))


def test_refuses_an_interval_of_which_a_part_is_null() -> None:
    schema = struct_of([AtomicType("interval")])
    parts = pa.array(
        [{"months": None, "days": 1, "microseconds": 2}], arrow_type(AtomicType("interval"))
    )
    with pytest.raises(StateValueError, match="months is null"):
        encode_rows(pa.record_batch([parts], names=["c0"]), schema)


def test_refuses_the_wrong_number_of_columns() -> None:
    batch = pa.record_batch([pa.array([1])], names=["c"])
    with pytest.raises(StateValueError, match="2 columns are needed, not 1"):
        encode_rows(batch, struct_of([LONG, LONG]))


def test_reads_times_as_nanoseconds_of_the_day() -> None:
    schema = struct_of([AtomicType("time(6)")])
    decoded = decode_rows(spans_of([encode_row((3_600_000_000_000,), schema)]), schema)
    assert decoded.type == pa.struct([("c0", pa.time64("ns"))])
    assert str(decoded.field(0)[0]) == "01:00:00"


LENGTHS = {
    "one length": [24],
    "only empty ones": [0],
    "a few lengths": [8, 16, 40],
    "a few lengths and empty ones": [0, 16, 24],
    "one length and empty ones": [0, 24],
    "many lengths": list(range(64)),
    "long ones": [8, 5000],
}


def shuffled(kind: str, count: int) -> tuple[Spans, list[bytes]]:
    """Spans in no order and partly repeated, over a buffer with gaps, and what they stand for."""
    rng = random.Random(kind)
    pieces = [rng.randbytes(rng.choice(LENGTHS[kind])) for _ in range(count)]
    gapped = spans_of([part for piece in pieces for part in (piece, b"\x01\x02\x03")])
    order = [rng.randrange(count) for _ in range(count)]
    return gapped.take(np.array(order) * 2), [pieces[index] for index in order]


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("count", [1, 2, 300, 9000])
def test_lists_and_arrow_arrays_hold_exactly_the_bytes_of_each_span(kind: str, count: int) -> None:
    spans, expected = shuffled(kind, count)
    assert spans.to_list() == expected
    assert {type(item) for item in spans.to_list()} == {bytes}
    array = spans.to_arrow()
    array.validate(full=True)
    assert array.to_pylist() == expected
    assert as_spans(array).to_list() == expected


def test_no_spans_are_an_empty_list_and_an_empty_array() -> None:
    spans = spans_of([])
    assert spans.to_list() == []
    assert spans.to_arrow().to_pylist() == []
    assert spans.to_arrow().type == pa.binary()


def test_a_slice_holds_the_spans_of_its_range() -> None:
    spans, expected = shuffled("many lengths", 100)
    assert spans.slice(10, 40).to_list() == expected[10:40]
    assert spans.slice(90, 200).to_list() == expected[90:]


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
