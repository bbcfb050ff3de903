"""State schema files, byte for byte."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.state.random_rows import Table, struct_of, tables

from epochal.errors import StateSchemaError, UnsupportedVersionError
from epochal.state.files.schema_file import (
    FamilySchema,
    KeyEncoder,
    encode_schema_file,
    parse_schema_file,
)
from epochal.state.rows.types import AtomicType, StringType, StructField, StructType, schema_json

KEY = struct_of([StringType()])
VALUE = struct_of([AtomicType("long")])
FAMILY = FamilySchema("default", KEY, VALUE)


def utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def test_a_file_of_a_preview_of_spark_4_is_named_as_such() -> None:
    one = struct.pack(">i", 1)
    family = (
        utf("total") + one + utf(schema_json(KEY)) + one + utf(schema_json(VALUE))
        + one + utf('{"keyStateEncoderType":"NoPrefixKeyStateEncoderSpec"}') + one + utf("{    }")
    )  # fmt: skip
    with pytest.raises(StateSchemaError, match=r"previews of Spark 4\.0\.0"):
        parse_schema_file(utf("v3") + one + family)
    with pytest.raises(StateSchemaError, match=r"chunks"):
        parse_schema_file(utf("v3") + one + family[:-1])


def test_writes_modified_utf_8() -> None:
    key = StructType((StructField("a\x00é🙂", AtomicType("long")),))
    data = encode_schema_file([FamilySchema("default", key, VALUE)])
    assert b"\\u0000\xc3\xa9\xed\xa0\xbd\xed\xb9\x82" in data
    assert parse_schema_file(data)[0].key == key
    named = encode_schema_file([FamilySchema("a\x00b", KEY, VALUE)], version=3)
    assert b"\x00\x04a\xc0\x80b" in named
    assert parse_schema_file(named)[0].name == "a\x00b"


def test_splits_long_schemas_into_chunks() -> None:
    key = StructType((StructField("x" * 70_000, AtomicType("long")),))
    data = encode_schema_file([FamilySchema("default", key, VALUE)])
    assert data[4:10] == struct.pack(">iH", 2, 65535)
    assert parse_schema_file(data)[0].key == key


def test_joins_a_character_that_two_chunks_share() -> None:
    key = StructType((StructField("🙂", AtomicType("long")),))
    before, after = schema_json(key).split("🙂")
    halves = [before.encode() + b"\xed\xa0\xbd", b"\xed\xb9\x82" + after.encode()]
    chunks = b"".join(struct.pack(">H", len(half)) + half for half in halves)
    value = struct.pack(">i", 1) + utf(schema_json(VALUE))
    assert parse_schema_file(utf("v2") + struct.pack(">i", 2) + chunks + value)[0].key == key


def test_refuses_a_schema_that_java_could_not_write() -> None:
    key = StructType((StructField("é" * 40_000, AtomicType("long")),))
    with pytest.raises(StateSchemaError, match="ends at 65535"):
        encode_schema_file([FamilySchema("default", key, VALUE)])


@given(tables(max_rows=1), tables(max_rows=1))
@settings(max_examples=50)
def test_gives_back_any_schemas(key: Table, value: Table) -> None:
    family = FamilySchema("default", key[0], value[0])
    assert parse_schema_file(encode_schema_file([family])) == [family]


@given(st.data())
@settings(max_examples=300)
def test_damage_raises_nothing_but_a_schema_error(data: st.DataObject) -> None:
    encoder = KeyEncoder("prefix", 1)
    families = [FamilySchema("a", KEY, VALUE, encoder=encoder), FamilySchema("b", KEY, VALUE)]
    raw = bytearray(encode_schema_file(families, version=3))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw)[: data.draw(st.integers(0, len(raw)))]
    with contextlib.suppress(StateSchemaError, UnsupportedVersionError):
        parse_schema_file(cut)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "ends 2 bytes early"),
        (utf("x2"), "version line is 'x2'"),
        (utf("v0"), "version line"),
        (utf("v" + "9" * 5000), "version line"),
        (encode_schema_file([FAMILY])[:-1], "ends 1 byte early"),
        (encode_schema_file([FAMILY]) + b"x", "1 bytes follow its end"),
        (utf("v2") + struct.pack(">i", -1), "claims -1 chunks"),
        (struct.pack(">H", 4) + "🙂".encode(), "plain UTF-8"),
        (struct.pack(">H", 1) + b"\xff", "not modified UTF-8"),
    ],
)
def test_says_where_a_schema_file_breaks(data: bytes, reason: str) -> None:
    with pytest.raises(StateSchemaError, match=reason) as caught:
        parse_schema_file(data, source="_metadata/schema")
    assert caught.value.source.startswith("_metadata/schema, byte")


def test_refuses_a_version_newer_than_known() -> None:
    with pytest.raises(UnsupportedVersionError, match="v4"):
        parse_schema_file(utf("v4"), source="_metadata/schema")
