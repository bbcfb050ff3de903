"""Tables and the MANIFEST that RocksDB wrote are understood, and no flipped bit goes unseen."""

from pathlib import Path

import pytest
import rocksdict

from epochal.errors import StateFormatError, StorageError
from epochal.files import UNBOUNDED, Bounds
from epochal.state.files.rocksdb_tables import check_table, live_tables

FOOTER_BYTES = 53
COMPRESSIONS = ("none", "snappy", "lz4", "lz4hc", "zstd")
CHECKSUMS = ("crc32c", "xxhash", "xxhash64", "xxh3")


def table(
    place: Path,
    *,
    compression: str = "lz4",
    checksum: str = "xxh3",
    rows: int = 2_000,
    partitioned: bool = False,
    version: int = 5,
) -> bytes:
    """Let RocksDB write a table with a filter and an index of many entries."""
    form = rocksdict.BlockBasedOptions()
    form.set_format_version(version)
    form.set_checksum_type(getattr(rocksdict.ChecksumType, checksum)())
    form.set_bloom_filter(10, False)
    form.set_index_block_restart_interval(4)
    if partitioned:
        form.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        form.set_metadata_block_size(256)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(form)
    options.set_compression_type(getattr(rocksdict.DBCompressionType, compression)())
    database = rocksdict.Rdict(str(place), options)
    for number in range(rows):
        database[b"key %06d" % number] = b"value %d " % number * 5
    database.flush()
    database.close()
    [path] = place.glob("*.sst")
    return path.read_bytes()


def check(data: bytes) -> str | int | None:
    return check_table(data, "table", UNBOUNDED.room("table"))


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_form_of_table_is_understood(
    compression: str, checksum: str, partitioned: bool, tmp_path: Path
) -> None:
    data = table(tmp_path, compression=compression, checksum=checksum, partitioned=partitioned)
    assert isinstance(check(data), int)
    for at in range(0, len(data) - FOOTER_BYTES, 997):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(StateFormatError):
            check(bytes(changed))


def test_no_flipped_bit_of_a_block_goes_unseen(tmp_path: Path) -> None:
    data = bytearray(table(tmp_path, rows=20))
    seen = 0
    for at in range(len(data) - FOOTER_BYTES):
        data[at] ^= 1 << at % 8
        try:
            check(bytes(data))
        except StateFormatError:
            seen += 1
        data[at] ^= 1 << at % 8
    assert seen == len(data) - FOOTER_BYTES


def test_the_place_of_a_damaged_block_is_told(tmp_path: Path) -> None:
    data = bytearray(table(tmp_path))
    data[100] ^= 1
    with pytest.raises(StateFormatError) as raised:
        check(bytes(data))
    assert raised.value.offset == 0
    assert "the block has the checksum" in raised.value.reason


@pytest.mark.parametrize("length", [0, 1, 52, 53, 500])
def test_a_table_that_was_cut_off_is_damaged(length: int, tmp_path: Path) -> None:
    with pytest.raises(StateFormatError):
        check(table(tmp_path, rows=100)[:length])


@pytest.mark.parametrize(
    ("form", "said"),
    [({"checksum": "no_checksum"}, "without checksums"), ({"version": 6}, "format version 6")],
)
def test_what_cannot_be_checked_is_not_called_sound(
    form: dict[str, object], said: str, tmp_path: Path
) -> None:
    assert said in str(check(table(tmp_path, **form)))  # type: ignore[arg-type]


def test_an_index_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    data = table(tmp_path, rows=20_000)
    with pytest.raises(StorageError, match="--most-unpacked-bytes"):
        check_table(data, "table", Bounds(unpacked_bytes=100).room("table"))


def database(place: Path, *, flushes: int) -> tuple[bytes, dict[int, int]]:
    """Write a database; return its MANIFEST, and the number and size of each of its tables."""
    form = rocksdict.BlockBasedOptions()
    form.set_format_version(5)
    options = rocksdict.Options(raw_mode=True)
    options.set_block_based_table_factory(form)
    options.create_if_missing(True)
    written = rocksdict.Rdict(str(place), options)
    for number in range(flushes):
        written[b"%d" % number + b"k" * 200] = b"value"
        written.flush()
        if number % 100 == 50:
            written.compact_range(None, None)
    live = {int(each["name"].strip("/").removesuffix(".sst")) for each in written.live_files()}
    written.close()
    [manifest] = place.glob("MANIFEST-*")
    return manifest.read_bytes(), {n: (place / f"{n:06}.sst").stat().st_size for n in live}


def sizes(manifest: bytes) -> dict[int, int] | None:
    tables = live_tables(manifest)
    return None if tables is None else {number: each.size for number, each in tables.items()}


def test_names_the_tables_that_the_database_has(tmp_path: Path) -> None:
    manifest, tables = database(tmp_path, flushes=5)
    assert sizes(manifest) == tables


def test_names_the_session_that_wrote_each_table(tmp_path: Path) -> None:
    manifest, _ = database(tmp_path, flushes=5)
    written = {
        int(path.stem): check_table(path.read_bytes(), "table", UNBOUNDED.room("table"))
        for path in tmp_path.glob("*.sst")
    }
    named = live_tables(manifest)
    assert named is not None
    assert {number: table.session for number, table in named.items()} == written
    other, _ = database(tmp_path / "other", flushes=5)
    again = live_tables(other)
    assert again is not None
    assert {table.session for table in again.values()}.isdisjoint(written.values())


def test_records_that_span_blocks_and_removed_tables_are_understood(tmp_path: Path) -> None:
    manifest, tables = database(tmp_path, flushes=160)
    assert len(manifest) > 2 * 32 * 1024
    assert sizes(manifest) == tables


def test_a_flipped_bit_is_seen_or_changes_what_is_named(tmp_path: Path) -> None:
    manifest, tables = database(tmp_path, flushes=3)
    changed, unseen = bytearray(manifest), []
    for at in range(len(manifest)):
        changed[at] ^= 1 << at % 8
        try:
            if sizes(bytes(changed)) == tables:
                unseen.append(at)
        except ValueError:
            pass
        changed[at] ^= 1 << at % 8
    assert unseen == []


@pytest.mark.parametrize("cut", [1, 6, 40])
def test_a_torn_end_is_seen(cut: int, tmp_path: Path) -> None:
    manifest, _ = database(tmp_path, flushes=3)
    with pytest.raises(ValueError, match="record"):
        live_tables(manifest[:-cut])


def test_a_record_of_an_unknown_kind_is_not_guessed_at() -> None:
    from epochal.state.files.rocksdb_tables import masked_crc32c

    record = bytes([0x90, 0x03])  # tag 400: a blob file
    piece = masked_crc32c(b"\x01" + record).to_bytes(4, "little") + b"\x02\x00\x01" + record
    assert live_tables(piece) is None
