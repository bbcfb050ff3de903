"""UnsafeRow bytes, one row at a time."""

from __future__ import annotations

import contextlib
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.state.random_rows import Table, struct_of, tables

from epochal.errors import StateFormatError, StateValueError
from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructType,
)
from epochal.state.rows.unsafe_row import (
    CalendarInterval,
    TimestampNanos,
    decode_row,
    encode_row,
    validate_row,
)

STRING = StringType()


def atoms(*names: str) -> StructType:
    return struct_of([AtomicType(name) for name in names])


@given(tables())
def test_gives_back_what_was_encoded(table: Table) -> None:
    schema, rows = table
    for row in rows:
        assert decode_row(encode_row(row, schema), schema) == row


@given(tables(max_rows=1), st.data())
@settings(max_examples=300)
def test_any_damage_is_refused_or_still_a_row(table: Table, data: st.DataObject) -> None:
    schema, rows = table
    raw = bytearray(encode_row(rows[0], schema))
    if raw:
        for _ in range(data.draw(st.integers(1, 4))):
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at] = data.draw(st.sampled_from([0, 1, 7, 8, 16, 127, 128, 255]))
    damaged = bytes(raw)[: data.draw(st.integers(0, len(raw)))]
    try:
        values = decode_row(damaged, schema)
    except StateFormatError:
        return
    # Accepted bytes hold values of the schema: they can be written again.
    encode_row(values, schema)


@given(tables(max_rows=1), st.binary(max_size=120))
@settings(max_examples=200)
def test_garbage_raises_nothing_but_a_format_error(table: Table, garbage: bytes) -> None:
    schema, _ = table
    with contextlib.suppress(StateFormatError):
        decode_row(garbage, schema)


def test_marks_nulls_beyond_the_first_word_of_the_bitset() -> None:
    schema = atoms(*["long"] * 70)
    row = encode_row([None if i in (0, 65) else i for i in range(70)], schema)
    assert row[:16].hex() == "0100000000000000" + "0200000000000000"
    assert decode_row(row, schema)[64:67] == (64, None, 66)


LONG_STRING = struct_of([AtomicType("long"), STRING])
GOOD = encode_row((5, "hello"), LONG_STRING)


def with_bytes(at: int, replacement: str) -> bytes:
    raw = bytes.fromhex(replacement)
    return GOOD[:at] + raw + GOOD[at + len(raw) :]


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (GOOD[:-8], "lies outside its place"),
        (GOOD[:-1], "cannot hold a struct"),
        (GOOD[:16], "cannot hold a struct"),
        (with_bytes(0, "04"), "null bit is set beyond"),
        (with_bytes(0, "01"), "where zeros belong"),
        (with_bytes(0, "02"), "where zeros belong"),
        (with_bytes(16, "ff"), "lies outside its place"),
        (with_bytes(16, "ffffffff"), "of -1 bytes"),
        (with_bytes(20, "1c"), "lies outside its place"),
        (with_bytes(20, "10"), "lies outside its place"),
        (with_bytes(29, "01"), "padding"),
        (with_bytes(24, "ff"), "UTF-8"),
    ],
)
def test_names_what_is_out_of_place(damaged: bytes, reason: str) -> None:
    with pytest.raises(StateFormatError, match=reason) as caught:
        validate_row(damaged, LONG_STRING, source="7.delta")
    assert caught.value.source == "7.delta"


@pytest.mark.parametrize(
    ("raw", "types", "reason"),
    [
        ("00" * 8 + "02" + "00" * 7, ["boolean"], "not a boolean"),
        ("00" * 8 + "ff" * 8, ["integer"], "unused part"),
        ("00" * 8 + "01" + "00" * 7, ["void"], "null value"),
    ],
)
def test_refuses_words_no_writer_makes(raw: str, types: list[str], reason: str) -> None:
    with pytest.raises(StateFormatError, match=reason):
        validate_row(bytes.fromhex(raw), atoms(*types))


def test_refuses_a_decimal_with_more_digits_than_declared() -> None:
    small, big = struct_of([DecimalType(3, 1)]), struct_of([DecimalType(20, 0)])
    for schema, wide in ((small, DecimalType(4, 1)), (big, DecimalType(21, 0))):
        value = Decimal(10) ** (3 if schema is small else 20)
        raw = encode_row((value if schema is big else value / 10,), struct_of([wide]))
        with pytest.raises(StateFormatError, match="digits declared"):
            validate_row(raw, schema)


def test_refuses_an_array_whose_elements_share_their_bytes() -> None:
    schema = struct_of([ArrayType(STRING)])
    raw = bytearray(encode_row((["abcdefgh", "ijklmnop"],), schema))
    raw[16 + 24 : 16 + 32] = raw[16 + 16 : 16 + 24]
    validate_row(bytes(raw), schema)  # two elements on one payload fit in the room for two
    three = bytearray(encode_row((["abcdefgh", "", ""],), schema))
    for slot in (1, 2):
        three[32 + 8 * slot : 40 + 8 * slot] = three[32:40]
    with pytest.raises(StateFormatError, match="lies outside its place"):
        validate_row(bytes(three), schema)


def test_refuses_an_array_that_claims_more_elements_than_bytes() -> None:
    schema = struct_of([ArrayType(AtomicType("boolean"))])
    raw = bytearray(encode_row(([True],), schema))
    raw[16:24] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(StateFormatError, match="cannot hold 1099511627776 elements"):
        validate_row(bytes(raw), schema)


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        (128, AtomicType("byte")),
        (1 << 63, AtomicType("long")),
        ("1", AtomicType("long")),
        (1e39, AtomicType("float")),
        (1, AtomicType("boolean")),
        (b"x", STRING),
        ("\ud800", STRING),
        ("x", AtomicType("binary")),
        (Decimal("1.001"), DecimalType(10, 2)),
        (Decimal("1E+40"), DecimalType(38, 0)),
        (Decimal("NaN"), DecimalType(10, 2)),
        (1.5, DecimalType(10, 2)),
        ((1,), AtomicType("interval")),
        (CalendarInterval(1 << 31, 0, 0), AtomicType("interval")),
        (TimestampNanos(0, 1000), AtomicType("timestamp_ltz(9)")),
        (b"x", AtomicType("variant")),
        ("ab", ArrayType(STRING)),
        ([(None, 1)], MapType(STRING, AtomicType("long"))),
        ([1], MapType(STRING, AtomicType("long"))),
        ((1, 2), struct_of([STRING])),
    ],
)
def test_says_which_field_a_value_does_not_fit(value: object, data_type: DataType) -> None:
    with pytest.raises(StateValueError, match=r"row\.c0"):
        encode_row((value,), struct_of([data_type]))
