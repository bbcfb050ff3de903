"""Rows to and from Arrow columns: equal to one row at a time, for every type and any damage."""

from __future__ import annotations

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
from epochal.state.rows.arrow_types import arrow_type
from epochal.state.rows.byte_spans import Spans, spans_of
from epochal.state.rows.column_decoder import decode_rows, validate_rows
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.rows.types import ArrayType, AtomicType, DecimalType, MapType, StringType
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
