from __future__ import annotations

import math
import struct
from typing import Any

import google_crc32c
import pytest

from epochal.errors import StateFormatError
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
