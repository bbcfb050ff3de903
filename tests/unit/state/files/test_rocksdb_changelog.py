from __future__ import annotations

import json

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
