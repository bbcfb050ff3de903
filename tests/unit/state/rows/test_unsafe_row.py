"""UnsafeRow bytes, one row at a time, and Avro bodies against fastavro with Spark's conversion."""

from __future__ import annotations

import contextlib
import io
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.state.random_rows import Table, struct_of, tables

from epochal.errors import StateFormatError, StateValueError
from epochal.state.files.rocksdb_avro import AvroForm, decode_avro, encode_avro, fixed_size, resolve
from epochal.state.files.schema_file import KeyEncoder
from epochal.state.rows.ddl import parse_ddl
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


_PLAIN = {
    "boolean": "boolean", "byte": "int", "short": "int", "integer": "int", "long": "long",
    "float": "float", "double": "double", "binary": "bytes", "date": "int", "timestamp": "long",
    "timestamp_ntz": "long", "timestamp_ntz(9)": "long",
}  # fmt: skip


def avro_schema(kind: DataType, name: str = "topLevelRecord", depth: int = 0) -> Any:
    """What `SchemaConverters.toAvroTypeWithDefaults` makes of a type."""
    match kind:
        case StructType():
            fields = []
            for each in kind.fields:
                inner = avro_schema(each.data_type, each.name, depth + 1)
                is_union = isinstance(inner, list) or inner == "null"
                fields.append({"name": each.name, "type": inner if is_union else ["null", inner]})
            record = {"type": "record", "name": f"{name}{depth}", "fields": fields}
            return ["null", record] if depth else record
        case ArrayType(element=element):
            return ["null", {"type": "array", "items": avro_schema(element, name, depth + 1)}]
        case MapType(value=value):
            return ["null", {"type": "map", "values": avro_schema(value, name, depth + 1)}]
        case StringType():
            return "string"
        case DecimalType(precision=precision):
            return {"type": "fixed", "name": f"{name}_fixed", "size": fixed_size(precision)}
        case AtomicType(name="void"):
            return "null"
        case AtomicType(name=atom):
            return _PLAIN[atom]
    raise AssertionError(kind)


def body_of(record: dict[str, Any], schema: StructType) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro_schema(schema)), record)
    return out.getvalue()


EVERY = parse_ddl(
    "a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h string, i binary, "
    "j date, k timestamp, l timestamp_ntz, m decimal(12,2), n decimal(30,3), o void, "
    "p array<int>, q array<array<string>>, r map<string,bigint>, s struct<x:int,y:array<date>>, "
    "t map<string,struct<z:double>>"
)
RECORD: dict[str, Any] = {
    "a": True, "b": -7, "c": -300, "d": 1 << 30, "e": -(1 << 63), "f": 1.5, "g": -2.25, "h": "żó",
    "i": b"\x00\xff", "j": 19000, "k": -1, "l": 1_700_000_000_000_000,
    "m": (-12345).to_bytes(6, "big", signed=True), "n": (10**29).to_bytes(13, "big"), "o": None,
    "p": [1, 2, 3], "q": [["x"], None, []], "r": {"one": 1},
    "s": {"x": None, "y": [1]}, "t": {"k": {"z": 0.5}},
}  # fmt: skip
VALUES = (
    True, -7, -300, 1 << 30, -(1 << 63), 1.5, -2.25, "żó", b"\x00\xff", 19000, -1,
    1_700_000_000_000_000, Decimal("-123.45"), Decimal(10**29).scaleb(-3), None, [1, 2, 3],
    [["x"], None, []], [("one", 1)], (None, [1]), [("k", (0.5,))],
)  # fmt: skip


def test_every_type_is_read_as_an_independent_writer_wrote_it() -> None:
    assert decode_avro(body_of(RECORD, EVERY), EVERY) == VALUES
    nothing = dict.fromkeys(RECORD)
    assert decode_avro(body_of(nothing, EVERY), EVERY) == (None,) * len(VALUES)


def test_every_type_is_written_as_an_independent_writer_writes_it() -> None:
    assert encode_avro(VALUES, EVERY) == body_of(RECORD, EVERY)
    nothing = dict.fromkeys(RECORD)
    assert encode_avro((None,) * len(VALUES), EVERY) == body_of(nothing, EVERY)
    with pytest.raises(StateValueError, match="cannot store a null"):
        encode_avro(([1, None],), parse_ddl("p array<int>"))
    with pytest.raises(StateValueError, match="too wide"):
        encode_avro((Decimal(1000),), parse_ddl("m decimal(3,1)"))


def test_nanoseconds_are_split_into_micros_and_the_rest() -> None:
    schema = StructType((parse_ddl("t bigint").fields[0],))
    body = body_of({"t": -1}, schema)
    nanos = StructType((type(schema.fields[0])("t", AtomicType("timestamp_ntz(9)")),))
    assert decode_avro(body, nanos) == (TimestampNanos(-1, 999),)
    assert encode_avro((TimestampNanos(-1, 999),), nanos) == body


@pytest.mark.parametrize("precision", range(1, 39))
def test_a_decimal_has_room_for_its_largest_number_and_no_byte_more(precision: int) -> None:
    size, largest = fixed_size(precision), 10**precision - 1
    largest.to_bytes(size, "big", signed=True)
    if size > 1:
        with pytest.raises(OverflowError):
            (10**precision).to_bytes(size - 1, "big", signed=True)


@given(st.data())
def test_damaged_bodies_raise_state_format_error_and_nothing_else(data: st.DataObject) -> None:
    body = bytearray(body_of(RECORD, EVERY))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    with contextlib.suppress(StateFormatError):
        decode_avro(bytes(body[:cut]), EVERY)


OLD = parse_ddl("n int, gone string, s struct<x:int>, l array<int>")
NEW = parse_ddl("s struct<y:string,x:bigint>, n double, l array<bigint>, fresh string")


def test_an_older_schema_is_resolved_by_name() -> None:
    assert resolve((7, "x", (1,), [2]), OLD, NEW) == ((None, 1), 7.0, [2], None)
    assert resolve((7, None, None, None), OLD, NEW) == (None, 7.0, None, None)


def stored(schema_id: int, record: dict[str, Any], schema: StructType) -> bytes:
    return b"\0" + struct.pack("<h", schema_id) + body_of(record, schema)


def test_a_value_is_read_with_the_schema_that_its_id_names() -> None:
    form = AvroForm(parse_ddl("k string"), NEW, KeyEncoder("plain"), {0: OLD, 1: NEW})
    old = stored(0, {"n": 7, "gone": "x", "s": {"x": 1}, "l": [2]}, OLD)
    new = stored(1, {"s": None, "n": 0.5, "l": None, "fresh": "f"}, NEW)
    assert decode_row(form.plain_value(old, "f")[1:], NEW) == ((None, 1), 7.0, [2], None)
    assert decode_row(form.plain_value(new, "f")[1:], NEW) == (None, 0.5, None, "f")
    with pytest.raises(StateFormatError, match=r"schema 5; the schema files have \[0, 1\]"):
        form.plain_value(stored(5, {"n": 1, "gone": None, "s": None, "l": None}, OLD), "f")


def test_a_body_that_does_not_fit_the_row_is_refused() -> None:
    schema = parse_ddl("n tinyint")
    form = AvroForm(schema, schema, KeyEncoder("plain"), {0: schema})
    with pytest.raises(StateFormatError, match="does not fit its schema"):
        form.plain_value(stored(0, {"n": 300}, schema), "f")
