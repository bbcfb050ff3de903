"""Building and parsing the names inside a checkpoint."""

from __future__ import annotations

import pytest

from epochal.checkpoint.layout import crc_target, is_temp_file, parse_partition, parse_state_file


@pytest.mark.parametrize(
    "name",
    [
        "abc.delta",
        "1.delta.tmp",
        ".1.delta",
        "1.delta.crc.crc",
        ".1.delta.0f.tmp",
        "1",
        "-1.delta",
        "1.",
        "_metadata",
        "1.5.delta",
        "1_.zip",
        "٣.delta",
        "1.delta\n",
        "9" * 30 + ".delta",
    ],
)
def test_other_names_are_no_state_files(name: str) -> None:
    assert parse_state_file(name) is None


def test_partitions_are_numbers_and_nothing_else() -> None:
    assert parse_partition("17") == 17
    assert [parse_partition(name) for name in ("_metadata", "-1", "1a", "", "9" * 12)] == [None] * 5


def test_temporary_files_and_hidden_checksums_are_told_apart() -> None:
    assert is_temp_file(".3.4f0c.tmp")
    assert is_temp_file(".3.4f0c.TID12.tmp")
    assert is_temp_file("..3.4f0c.tmp.crc")
    assert not is_temp_file(".3.crc")
    assert not is_temp_file("3.tmp")
    assert crc_target(".3.crc") == "3"
    assert crc_target(".1.delta.crc.crc") == "1.delta.crc"
    assert [crc_target(name) for name in ("3", "3.crc", ".3", ".crc")] == [None] * 4
