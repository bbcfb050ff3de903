"""The visible checksum files of Spark 4.1: read, compared, and held against what is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.state.stores import checksum_file, content_at, provider, put, update_to

from epochal.errors import StateFormatError
from epochal.state.store.store_files import (
    FileChecksum,
    checksum_of,
    parse_checksum_file,
    verify_checksum,
)

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
