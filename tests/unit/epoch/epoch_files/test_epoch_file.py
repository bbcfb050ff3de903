"""The bytes of an epoch file, and what is refused."""

from __future__ import annotations

import pytest

from epochal.epoch.epoch_files.epoch_file import (
    MAGIC,
    Header,
    StoreFileEntry,
    checksum_of,
    decode_epoch,
    encode_epoch,
    file_name,
    parse_file_name,
)
from epochal.errors import MalformedFileError

STORES = (
    StoreFileEntry(0, 3, "default", "8.delta", 5),
    StoreFileEntry(1, 3, "left-keyToNumValues", "8_id.changelog", 0),
    StoreFileEntry(1, 4, "default", "8.zip", 2),
)
HEADER = Header(7, 2, 1, 4, 99, STORES)
DATA = encode_epoch(HEADER, [b"delta", b"", b"PK"])


def test_a_file_contains_the_file_of_each_store() -> None:
    found = decode_epoch(DATA, "here")
    assert (found.header, found.checksum) == (HEADER, checksum_of(DATA))
    assert [(each.key, each.name, data) for each, data in found.items()] == [
        ((0, 3, "default"), "8.delta", b"delta"),
        ((1, 3, "left-keyToNumValues"), "8_id.changelog", b""),
        ((1, 4, "default"), "8.zip", b"PK"),
    ]


def test_names_are_read_as_they_are_written() -> None:
    assert parse_file_name(file_name(7, 1, 2)) == (7, 1, 2)
    for other in ("7-t1", "7-t1-a2.tmp", "x-t1-a2", ".7-t1-a2.crc"):
        assert parse_file_name(other) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an epoch file"),
        (b"something else entirely, and long", "not an epoch file"),
        (MAGIC + b"\0\0\0\3abc", "header cannot be read"),
        (DATA[:-1], "6 bytes of content instead of 7"),
        (DATA + b"more", "11 bytes of content instead of 7"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedFileError, match=reason):
        decode_epoch(data, "here")
