from __future__ import annotations

import json
import math
import struct
from typing import Any

import google_crc32c
import pytest

from epochal.errors import StateFormatError
from epochal.state.files.rocksdb_changelog import (
    INVALID_LINEAGE,
    INVALID_VERSION,
    ChangeRecord,
    LineageItem,
    Operation,
    parse_changelog,
    read_lineage,
)
from epochal.state.files.rocksdb_entries import CHECKSUM_FAILED, ValueWrapper, decode_keys
from epochal.state.files.schema_file import KeyEncoder
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.types import AtomicType, StringType, StructField, StructType
from epochal.state.rows.unsafe_row import encode_row


def schema(*kinds: str) -> StructType:
    return StructType(
        tuple(
            StructField(f"c{n}", StringType() if kind == "string" else AtomicType(kind))
            for n, kind in enumerate(kinds)
        )
    )


def row(values: tuple[Any, ...], *kinds: str) -> bytes:
    return b"\0" + encode_row(values, schema(*kinds))


def split(first: bytes, rest: bytes) -> bytes:
    return struct.pack("<i", len(first)) + first + rest


def decoded(keys: list[bytes], encoder: KeyEncoder, *kinds: str) -> list[tuple[Any, ...]]:
    found: Any = decode_keys(spans_of(keys), encoder, schema(*kinds), "file")
    return [tuple(each.values()) for each in found.to_pylist()]


def ordered(marker: int, body: bytes) -> bytes:
    return bytes([marker]) + body


def test_numbers_of_a_range_key_are_put_back_in_their_columns() -> None:
    first = row(
        (ordered(0, struct.pack(">q", -7)), ordered(1, struct.pack(">i", 42))), "binary", "binary"
    )
    keys = [split(first, row(("rest",), "string"))]
    found = decoded(keys, KeyEncoder("range", ordering=(2, 0)), "integer", "string", "long")
    assert found == [(42, "rest", -7)]


@pytest.mark.parametrize(
    ("kind", "value", "encoded"),
    [
        ("byte", -1, ordered(0, struct.pack(">b", -1))),
        ("short", 300, ordered(1, struct.pack(">h", 300))),
        ("float", 1.5, ordered(1, struct.pack(">f", 1.5))),
        ("float", -1.5, ordered(0, bytes(~b & 255 for b in struct.pack(">f", -1.5)))),
        ("double", -math.inf, ordered(0, bytes(~b & 255 for b in struct.pack(">d", -math.inf)))),
        ("double", 0.25, ordered(1, struct.pack(">d", 0.25))),
        ("long", None, ordered(2, bytes(8))),
    ],
)
def test_every_ordered_type_is_decoded(kind: str, value: Any, encoded: bytes) -> None:
    keys = [split(row((encoded,), "binary"), row((), *()))]
    assert decoded(keys, KeyEncoder("range", ordering=(0,)), kind) == [(value,)]


@pytest.mark.parametrize("leading", [True, False])
def test_a_timestamp_sorts_with_its_sign_flipped(leading: bool) -> None:
    kind = "timestamp-prefix" if leading else "timestamp-postfix"
    keys = []
    for time in (-5, 1_704_067_200_000_000):
        flipped = struct.pack(">Q", (time & (1 << 64) - 1) ^ 1 << 63)
        body = row(("k",), "string")
        keys.append(flipped + body if leading else body + flipped)
    found = decoded(keys, KeyEncoder(kind), "string", "long")
    assert found == [("k", -5), ("k", 1_704_067_200_000_000)]


@pytest.mark.parametrize(
    ("encoder", "key"),
    [
        (KeyEncoder("plain"), b""),
        (KeyEncoder("plain"), b"\x01" + bytes(16)),
        (KeyEncoder("prefix", 1), b"\0\0"),
        (KeyEncoder("prefix", 1), struct.pack("<i", 99) + bytes(8)),
        (KeyEncoder("prefix", 1), struct.pack("<i", -1) + bytes(8)),
        (KeyEncoder("timestamp-postfix"), bytes(7)),
        (KeyEncoder("range", ordering=(0,)), split(row((b"\x03" + bytes(8),), "binary"), b"\0")),
        (KeyEncoder("range", ordering=(0,)), split(row((b"\x01",), "binary"), b"\0")),
        (KeyEncoder("range", ordering=(0,)), split(row((None,), "binary"), b"\0")),
    ],
)
def test_a_key_that_breaks_its_encoding_is_refused(encoder: KeyEncoder, key: bytes) -> None:
    kinds = ("string", "long") if encoder.kind == "timestamp-postfix" else ("long",)
    if encoder.kind == "prefix":
        kinds = ("long", "long")
    with pytest.raises(StateFormatError):
        decoded([key], encoder, *kinds)


KEY = b"the key"


def sized(row: bytes) -> bytes:
    return struct.pack("<i", len(row)) + row


def checked(value: bytes, key: bytes = KEY) -> bytes:
    return struct.pack("<Ii", google_crc32c.value(key + value), len(value)) + value


def test_merged_values_are_joined_by_nothing_or_by_the_delimiter() -> None:
    for delimiter in (b"", b","):
        form = ValueWrapper(delimiter)
        value = form.merge(form.merge(None, sized(b"one")), sized(b"two, and more"))
        assert form.several(KEY, value, "f") == [b"one", b"two, and more"]


def test_a_checksum_is_verified_and_removed() -> None:
    form = ValueWrapper(checksummed=True)
    assert form.single(KEY, checked(b"row"), "f") == b"row"
    with pytest.raises(StateFormatError) as raised:
        form.single(b"another key", checked(b"row"), "f")
    assert raised.value.condition == CHECKSUM_FAILED


def test_every_value_of_a_list_has_its_own_checksum() -> None:
    form = ValueWrapper(b",", checksummed=True)
    value = form.merge(checked(sized(b"one")), checked(sized(b"two")))
    assert form.several(KEY, value, "f") == [b"one", b"two"]
    spoiled = bytearray(value)
    spoiled[-1] ^= 1
    with pytest.raises(StateFormatError) as raised:
        form.several(KEY, bytes(spoiled), "f")
    assert raised.value.condition == CHECKSUM_FAILED


def test_a_deleted_key_carries_its_checksum_in_front() -> None:
    wrapped = struct.pack("<I", google_crc32c.value(KEY)) + KEY
    assert ValueWrapper(checksummed=True).deleted_key(wrapped, "f") == KEY
    assert ValueWrapper().deleted_key(KEY, "f") == KEY
    with pytest.raises(StateFormatError):
        ValueWrapper(checksummed=True).deleted_key(wrapped[:-1], "f")


@pytest.mark.parametrize("value", [b"\x01", b"\x05\x00\x00\x00abc", b"\xff\xff\xff\xffabc"])
def test_a_list_that_does_not_add_up_is_refused(value: bytes) -> None:
    with pytest.raises(StateFormatError):
        ValueWrapper().several(KEY, value, "f")


PUT = ChangeRecord(Operation.PUT, b"key", b"value")
DELETE = ChangeRecord(Operation.DELETE, b"gone", None)
LINEAGE = (LineageItem(3, "fc68"), LineageItem(4, "91ad"))


def utf(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def block(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def plain(*records: ChangeRecord) -> bytes:
    body = b"".join(
        block(r.key) + (b"\xff" * 4 if r.value is None else block(r.value)) for r in records
    )
    return body + b"\xff" * 4


def tagged(*records: ChangeRecord) -> bytes:
    body = b"".join(
        bytes([r.change]) + block(r.key) + (b"\xff" * 4 if r.value is None else block(r.value))
        for r in records
    )
    return body + b"\x00"


def lineage() -> bytes:
    items = [{"version": i.version, "checkpointUniqueId": i.unique_id} for i in LINEAGE]
    return utf(json.dumps(items))


def test_the_lineage_can_be_read_alone() -> None:
    assert read_lineage(utf("v4") + lineage() + b"broken", "f") == LINEAGE
    assert read_lineage(plain(PUT), "f") == ()


def test_a_first_record_that_looks_like_a_version_without_a_number_is_a_record() -> None:
    # A key of 0x00027629 bytes: its length reads as the string "v)".
    key = b"k" * 0x00027629
    record = ChangeRecord(Operation.PUT, key, b"v")
    assert parse_changelog(plain(record), "f").records == (record,)


def test_a_version_of_thousands_of_digits_is_not_a_version() -> None:
    with pytest.raises(StateFormatError):
        parse_changelog(utf("v" + "9" * 5000), "f")


def test_a_newer_layout_is_refused_by_its_number() -> None:
    with pytest.raises(StateFormatError, match="version 5") as raised:
        parse_changelog(utf("v5") + tagged(PUT), "state/0/0/7.changelog")
    assert raised.value.condition == INVALID_VERSION
    assert "state/0/0/7.changelog" in str(raised.value)


def test_a_lineage_that_is_not_json_is_refused() -> None:
    with pytest.raises(StateFormatError) as raised:
        parse_changelog(utf("v3") + utf("[{") + plain(), "f")
    assert raised.value.condition == INVALID_LINEAGE


@pytest.mark.parametrize("layout", [1, 2, 3, 4])
def test_a_file_cut_anywhere_is_refused(layout: int) -> None:
    head = {1: b"", 2: utf("v2"), 3: utf("v3") + lineage(), 4: utf("v4") + lineage()}[layout]
    whole = head + (tagged(PUT, DELETE) if layout in (2, 4) else plain(PUT, DELETE))
    for size in range(len(head) + 1, len(whole)):
        with pytest.raises(StateFormatError, match="f, byte"):
            parse_changelog(whole[:size], "f")


def test_an_unknown_record_type_is_refused_at_its_byte() -> None:
    with pytest.raises(StateFormatError, match="byte 4: record type cannot be 0x07"):
        parse_changelog(utf("v2") + b"\x07", "f")
