"""Record streams of deltas and snapshots, and what several of them make together."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.errors import StateFormatError
from epochal.state.files.delta_snapshot import (
    FileKind,
    Records,
    encode_records,
    encode_spans,
    put_records,
    scan_records,
)
from epochal.state.files.merge import merge_records, puts_of
from epochal.state.files.rocksdb_changelog import LineageItem, encode_changelog
from epochal.state.rows.byte_spans import spans_of

Record = tuple[bytes, bytes | None]


def read_in_order(data: bytes, kind: FileKind) -> list[Record]:
    """The plain reading that the scanner must agree with, floor of value lengths included."""
    found: list[Record] = []
    at = 0
    while True:
        (key_length,) = struct.unpack_from(">i", data, at)
        if key_length == -1:
            return found
        key = data[at + 4 : at + 4 + key_length]
        at += 4 + key_length
        (value_length,) = struct.unpack_from(">i", data, at)
        at += 4
        if key_length < -1 or len(key) < key_length:
            raise ValueError("key")
        if value_length < 0:
            if kind is FileKind.SNAPSHOT:
                raise ValueError("value")
            found.append((key, None))
            continue
        value = data[at : at + value_length]
        if len(value) < value_length:
            raise ValueError("value")
        at += value_length
        found.append((key, value[: value_length // 8 * 8]))


def outcome(data: bytes, kind: FileKind) -> list[Record] | str:
    try:
        return read_in_order(data, kind)
    except (ValueError, struct.error):
        return "refused"


def scanned(data: bytes, kind: FileKind) -> list[Record] | str:
    try:
        return scan_records(data, kind).to_list()
    except StateFormatError:
        return "refused"


# Rows whose content looks like lengths, which is what misleads a guess: a byte stands for a word.
TRICKY = (0, 8, 16, 24, 4, 12, 20, 0x100, 0x10000, 1 << 24, 0xFFFFFFFF, 0xFFFFFFFE, 32, 40, 3, 48)
WORDS = [(TRICKY[i % 16] if i < 224 else i * 0x00030507).to_bytes(4, "big") for i in range(256)]


def row_of(raw: bytes) -> bytes:
    return b"".join(WORDS[byte] for byte in raw[: len(raw) // 2 * 2])


rows = st.binary(max_size=12).map(row_of)
records = st.lists(st.tuples(rows, st.one_of(st.none(), rows)), max_size=8)
kinds = st.sampled_from(list(FileKind))


@given(records, kinds)
@settings(max_examples=300)
def test_scanning_equals_reading_in_order(given_records: list[Record], kind: FileKind) -> None:
    data = encode_records(given_records)
    assert scanned(data, kind) == outcome(data, kind)


@given(records, kinds, st.data())
@settings(max_examples=500)
def test_scanning_equals_reading_in_order_on_damaged_files(
    given_records: list[Record], kind: FileKind, data: st.DataObject
) -> None:
    whole = bytearray(encode_records(given_records))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(whole) - 1))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"])):
            case "flip":
                whole[at] = data.draw(st.integers(0, 255))
            case "cut":
                del whole[at : at + data.draw(st.integers(1, 12))]
            case "insert":
                whole[at:at] = data.draw(st.binary(min_size=1, max_size=12))
            case _:
                whole += whole[at:]
        if not whole:
            break
    assert scanned(bytes(whole), kind) == outcome(bytes(whole), kind)


@given(st.binary(max_size=200), kinds)
@settings(max_examples=300)
def test_scanning_equals_reading_in_order_on_garbage(data: bytes, kind: FileKind) -> None:
    assert scanned(data, kind) == outcome(data, kind)


@given(records, st.booleans())
def test_writes_spans_and_single_records_alike(given_records: list[Record], sums: bool) -> None:
    puts = [(key, value) for key, value in given_records if value is not None]
    keys, values = spans_of([key for key, _ in puts]), spans_of([value for _, value in puts])
    assert encode_spans(keys, values, row_checksums=sums) == encode_records(
        puts, row_checksums=sums
    )


@given(records)
def test_returns_records_with_row_checksums_as_they_were(given_records: list[Record]) -> None:
    data = encode_records(given_records, row_checksums=True)
    assert scan_records(data, FileKind.DELTA, row_checksums=True).to_list() == given_records


def test_finds_the_same_records_among_many_of_equal_shape() -> None:
    many: list[Record] = [
        (struct.pack("<qii8s", 0, 8, 16, b"k%07d" % i), struct.pack("<qqq", 0, i, i * i))
        for i in range(5000)
    ]
    many[2500] = (b"\x00" * 24, None)
    data = encode_records(many)
    assert scan_records(data, FileKind.DELTA).to_list() == many


@pytest.mark.parametrize(
    ("data", "kind", "offset", "condition"),
    [
        (b"", FileKind.DELTA, 0, "CANNOT_READ_STREAMING_STATE_FILE"),
        (encode_records([(b"k" * 8, b"v" * 8)])[:-4], FileKind.DELTA, 24, "STREAMING_STATE_FILE"),
        (encode_records([(b"k" * 8, b"v" * 8)])[:-5], FileKind.DELTA, 12, "STREAMING_STATE_FILE"),
        (b"\x00\x00\x00\x08kkkk", FileKind.DELTA, 0, "STREAMING_STATE_FILE"),
        (b"\xff\xff\xff\xfe", FileKind.DELTA, 0, "CANNOT_READ_DELTA_FILE_KEY_SIZE"),
        (b"\xff\xff\xff\xfe", FileKind.SNAPSHOT, 0, "CANNOT_READ_SNAPSHOT_FILE_KEY_SIZE"),
        (
            encode_records([(b"k" * 8, None)]),
            FileKind.SNAPSHOT,
            12,
            "CANNOT_READ_SNAPSHOT_FILE_VALUE_SIZE",
        ),
    ],
)
def test_says_where_a_broken_file_breaks(
    data: bytes, kind: FileKind, offset: int, condition: str
) -> None:
    with pytest.raises(StateFormatError) as caught:
        scan_records(data, kind, source="state/0/1/7.delta")
    assert (caught.value.source, caught.value.offset) == ("state/0/1/7.delta", offset)
    assert caught.value.condition.endswith(condition)
    assert "state/0/1/7.delta" in str(caught.value)


@pytest.mark.parametrize("index", [0, 70, 149])
def test_finds_a_wrong_row_checksum_wherever_it_is(index: int) -> None:
    many: list[Record] = [(b"k%07d" % i, b"v%07d" % i) for i in range(149)]
    many.append((b"deleted!", None))
    data = bytearray(encode_records(many, row_checksums=True))
    at = 28 * index + (16 if index < 149 else 4)
    data[at] ^= 0x40
    with pytest.raises(StateFormatError) as caught:
        scan_records(bytes(data), FileKind.DELTA, row_checksums=True)
    assert caught.value.condition == "STATE_STORE_ROW_CHECKSUM_VERIFICATION_FAILED"
    assert caught.value.offset == at


def test_refuses_a_value_too_short_for_its_row_checksum() -> None:
    data = encode_records([(b"k" * 8, b"")])
    with pytest.raises(StateFormatError, match="no room for its row checksum"):
        scan_records(data, FileKind.DELTA, row_checksums=True)


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


Operations = list[tuple[bytes, bytes | None]]

KEYS = st.integers(0, 12).map(lambda n: n.to_bytes(8, "little"))
VALUES = st.integers(0, 5).map(lambda n: n.to_bytes(8, "little"))
DELTA = st.lists(st.tuples(KEYS, st.none() | VALUES), max_size=8)


def recorded(operations: Operations, kind: FileKind = FileKind.DELTA) -> Records:
    return scan_records(encode_records(operations), kind)


def merged(base: dict[bytes, bytes] | None, deltas: list[Operations]) -> list[tuple[bytes, bytes]]:
    bottom = None if base is None else recorded(list(base.items()), FileKind.SNAPSHOT)
    parts = merge_records(bottom, [recorded(delta) for delta in deltas])
    return sorted(pair for part in parts for pair in zip(part.keys, part.values, strict=True))


@given(st.none() | st.dictionaries(KEYS, VALUES), st.lists(DELTA, max_size=4))
def test_the_last_record_of_a_key_wins_as_in_a_dictionary(
    base: dict[bytes, bytes] | None, deltas: list[Operations]
) -> None:
    model = dict(base or {})
    for delta in deltas:
        for key, value in delta:
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
    assert merged(base, deltas) == sorted(model.items())


def test_large_files_are_cut_into_parts_that_hold_every_row_once() -> None:
    rows = puts_of(recorded([(bytes([n]) * 8, bytes(8)) for n in range(20)]))
    assert rows.parts(1 << 30) == [rows]
    for most in (16, 17, 40, 100, 319, 320):
        parts = rows.parts(most)
        assert [key for part in parts for key in part.keys] == list(rows.keys)
        sizes = [int((p.keys.lengths + p.values.lengths).sum()) for p in parts]
        assert all(size <= most + 16 for size in sizes)
