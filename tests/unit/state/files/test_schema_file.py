"""State schema files and visible checksum files, byte for byte."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.state.random_rows import Table, struct_of, tables
from tests.unit.state.stores import checksum_file, content_at, provider, put, update_to

from epochal.errors import StateFormatError, StateSchemaError, UnsupportedVersionError
from epochal.state.files.schema_file import (
    FamilySchema,
    KeyEncoder,
    encode_schema_file,
    parse_schema_file,
)
from epochal.state.rows.types import AtomicType, StringType, StructField, StructType, schema_json
from epochal.state.store.store_files import (
    FileChecksum,
    checksum_of,
    parse_checksum_file,
    verify_checksum,
)

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


RECORDED = (
    b'{"algorithm":"CRC32C","value":-263549749,"mainFileSize":176,"timestampMs":1794772438758,'
    b'"creator":{"executorId":"driver","taskInfo":"Task= 0.0, Stage= 321.0"}}'
)


def test_reads_a_checksum_file_of_spark() -> None:
    assert parse_checksum_file(RECORDED) == FileChecksum(-263549749, 176)


@pytest.mark.parametrize("data", [b"12345678", b"123456788", b""])
def test_notices_a_file_that_is_not_the_one_described(data: bytes) -> None:
    content = checksum_file(b"123456789")
    verify_checksum(b"123456789", content)
    with pytest.raises(StateFormatError, match=r"7\.delta.*9 bytes") as caught:
        verify_checksum(data, content, source="7.delta")
    assert caught.value.condition == "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"


@pytest.mark.parametrize("content", [b"", b"{}", b"nonsense", b'{"algorithm":"MD5"}', b"\xff"])
def test_refuses_what_is_not_a_checksum_file(content: bytes) -> None:
    with pytest.raises(StateFormatError, match="not a CRC32C checksum"):
        parse_checksum_file(content)


def test_checksums_are_signed_as_in_java() -> None:
    assert checksum_of(b"123456789") == FileChecksum(0xE3069283 - (1 << 32), 9)


@pytest.mark.parametrize("name", ["1.delta", "3.delta", "2.snapshot"])
def test_a_file_that_its_checksum_file_does_not_describe_is_named(
    tmp_path: Path, name: str
) -> None:
    states = provider(tmp_path, min_deltas=1)
    update_to(states, 0, 2)
    if name == "2.snapshot":
        states.do_maintenance()
    update_to(states, 2, 3)
    path = tmp_path / name
    (tmp_path / f"{name}.crc").write_bytes(checksum_file(path.read_bytes()))
    assert content_at(provider(tmp_path), 3) == {("a", 0): 3}
    (tmp_path / f"{name}.crc").write_bytes(checksum_file(path.read_bytes() + b"?"))
    with pytest.raises(StateFormatError, match=name) as caught:
        provider(tmp_path).get_store(3)
    assert caught.value.condition == "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"


def test_a_committed_file_has_no_checksum_file_of_an_earlier_attempt(tmp_path: Path) -> None:
    put(provider(tmp_path), 0, ("a", 0, 1))
    (tmp_path / "1.delta.crc").write_bytes(checksum_file((tmp_path / "1.delta").read_bytes()))
    put(provider(tmp_path), 0, ("b", 0, 2))
    assert content_at(provider(tmp_path), 1) == {("b", 0): 2}
