"""Avro bodies against fastavro, which writes what Spark's schema conversion prescribes."""

from __future__ import annotations

import contextlib
import io
import struct
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from epochal.state.rows.unsafe_row import TimestampNanos, decode_row

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
