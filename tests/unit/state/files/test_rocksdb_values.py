from __future__ import annotations

import struct

import google_crc32c
import pytest

from epochal.errors import StateFormatError
from epochal.state.files.rocksdb_entries import CHECKSUM_FAILED, ValueForm

KEY = b"the key"


def sized(row: bytes) -> bytes:
    return struct.pack("<i", len(row)) + row


def checked(value: bytes, key: bytes = KEY) -> bytes:
    return struct.pack("<Ii", google_crc32c.value(key + value), len(value)) + value


def test_a_plain_value_is_itself() -> None:
    assert ValueForm().single(KEY, b"row", "f") == b"row"


def test_merged_values_are_joined_by_nothing_or_by_the_delimiter() -> None:
    for delimiter in (b"", b","):
        form = ValueForm(delimiter)
        value = form.merge(form.merge(None, sized(b"one")), sized(b"two, and more"))
        assert form.several(KEY, value, "f") == [b"one", b"two, and more"]


def test_a_checksum_is_verified_and_removed() -> None:
    form = ValueForm(checksummed=True)
    assert form.single(KEY, checked(b"row"), "f") == b"row"
    with pytest.raises(StateFormatError) as raised:
        form.single(b"another key", checked(b"row"), "f")
    assert raised.value.condition == CHECKSUM_FAILED


def test_every_value_of_a_list_has_its_own_checksum() -> None:
    form = ValueForm(b",", checksummed=True)
    value = form.merge(checked(sized(b"one")), checked(sized(b"two")))
    assert form.several(KEY, value, "f") == [b"one", b"two"]
    spoiled = bytearray(value)
    spoiled[-1] ^= 1
    with pytest.raises(StateFormatError) as raised:
        form.several(KEY, bytes(spoiled), "f")
    assert raised.value.condition == CHECKSUM_FAILED


def test_a_deleted_key_carries_its_checksum_in_front() -> None:
    wrapped = struct.pack("<I", google_crc32c.value(KEY)) + KEY
    assert ValueForm(checksummed=True).deleted_key(wrapped, "f") == KEY
    assert ValueForm().deleted_key(KEY, "f") == KEY
    with pytest.raises(StateFormatError):
        ValueForm(checksummed=True).deleted_key(wrapped[:-1], "f")


@pytest.mark.parametrize("value", [b"\x01", b"\x05\x00\x00\x00abc", b"\xff\xff\xff\xffabc"])
def test_a_list_that_does_not_add_up_is_refused(value: bytes) -> None:
    with pytest.raises(StateFormatError):
        ValueForm().several(KEY, value, "f")
