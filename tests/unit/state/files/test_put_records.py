"""Files of rows that are all put have the same bytes as those written record by record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.state.files.delta_snapshot import encode_records, put_records
from epochal.state.files.rocksdb_changelog import LineageItem, encode_changelog

Puts = list[tuple[bytes, bytes]]
END = b"\xff\xff\xff\xff"
PUTS = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), min_size=1, max_size=50)
LINEAGES = st.none() | st.just((LineageItem(3, "id"),))
GONE = (b"gone", None)
DELETED = b"\0\0\0\4gone" + END


@given(PUTS)
def test_a_delta_without_deletes_is_a_delta_with_one_but_for_that_one(puts: Puts) -> None:
    assert encode_records([*puts, GONE]) == encode_records(puts)[:-4] + DELETED + END


@given(PUTS, LINEAGES)
def test_so_is_a_changelog(puts: Puts, lineage: tuple[LineageItem, ...] | None) -> None:
    short = encode_changelog(puts, lineage)
    assert encode_changelog([*puts, GONE], lineage) == short[:-4] + DELETED + END


@given(PUTS, LINEAGES)
def test_so_is_a_changelog_of_column_families(
    puts: Puts, lineage: tuple[LineageItem, ...] | None
) -> None:
    short = encode_changelog(puts, lineage, of_families=True)
    long = encode_changelog([*puts, GONE], lineage, of_families=True)
    assert long == short[:-1] + b"\x10" + DELETED + b"\0"


@pytest.mark.parametrize("size", [0, 255, 256, 4_096, 4_097, 100_000])
def test_rows_of_any_length_follow_their_length(size: int) -> None:
    row, length = b"x" * size, size.to_bytes(4, "big")
    assert put_records([(row, b"v"), (b"k", row)]) == (
        length + row + b"\0\0\0\1v" + b"\0\0\0\1k" + length + row
    )
