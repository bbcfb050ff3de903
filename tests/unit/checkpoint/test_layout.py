"""Building and parsing the names inside a checkpoint."""

from __future__ import annotations

import pytest

from epochal.checkpoint.layout import (
    StateFile,
    StateFileKind,
    crc_target,
    is_temp_file,
    operator_metadata_log_path,
    operator_metadata_path,
    parse_partition,
    parse_state_file,
    source_log_path,
    state_schema_log_path,
    state_schema_path,
    state_store_path,
)

UUID = "91ad3a3e-0d4c-4a57-9c3e-6e3f1b7d3c11"


def test_paths_are_where_spark_puts_them() -> None:
    assert state_store_path(0, 3) == "state/0/3"
    assert state_store_path(1, 0, "left-keyToNumValues") == "state/1/0/left-keyToNumValues"
    assert state_schema_path(0) == "state/0/0/_metadata/schema"
    assert state_schema_path(0, "s") == "state/0/0/s/_metadata/schema"
    assert state_schema_log_path(0) == "state/0/_stateSchema/default"
    assert operator_metadata_path(2) == "state/2/_metadata/metadata"
    assert operator_metadata_log_path(2) == "state/2/_metadata/v2"
    assert source_log_path(0) == "sources/0"
    assert source_log_path("srcA") == "sources/srcA"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("1.delta", StateFile(1, StateFileKind.DELTA)),
        ("12.snapshot", StateFile(12, StateFileKind.SNAPSHOT)),
        ("7.zip", StateFile(7, StateFileKind.ZIP)),
        ("7.changelog", StateFile(7, StateFileKind.CHANGELOG)),
        (f"7_{UUID}.zip", StateFile(7, StateFileKind.ZIP, UUID)),
        (f"7_{UUID}.changelog", StateFile(7, StateFileKind.CHANGELOG, UUID)),
        (".1.delta.crc", StateFile(1, StateFileKind.DELTA, None, True)),
        ("1.delta.crc", StateFile(1, StateFileKind.DELTA, None, True)),
        (".1.delta.crc.crc", StateFile(1, StateFileKind.DELTA, None, True)),
        (f".7_{UUID}.zip.crc", StateFile(7, StateFileKind.ZIP, UUID, True)),
    ],
)
def test_a_state_file_s_name_says_version_kind_id_and_whether_it_is_a_checksum(
    name: str, expected: StateFile
) -> None:
    assert parse_state_file(name) == expected


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
