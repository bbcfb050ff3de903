"""The MANIFEST of a database that RocksDB wrote names its tables; damage to it is seen."""

from pathlib import Path

import pytest
import rocksdict

from epochal.files import UNBOUNDED
from epochal.state.files.rocksdb_tables import live_tables
from epochal.state.files.rocksdb_tables import check_table


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
