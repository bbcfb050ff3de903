"""Small files that unpack to much more than they should are refused before the memory is taken."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from epochal.errors import StateFormatError, StorageError
from epochal.files import Bounds
from epochal.files.local import LocalFiles
from epochal.state.files.codecs import NAMES, compress, compress_pieces, decompress
from epochal.state.files.rocksdb_changelog import LineageItem
from epochal.state.store.rocksdb_directory import read_metadata, read_snapshot

MIB = 1 << 20
BOUNDS = Bounds(unpacked_bytes=4 * MIB)


def peak_of_refused(data: bytes, codec: str) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(StorageError, match=f"unpacks to more than {4 * MIB} bytes.*raise"):
            decompress(data, codec, source="1.delta", bounds=BOUNDS)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", sorted(NAMES))
def test_a_bomb_takes_no_more_memory_than_is_allowed(codec: str) -> None:
    bomb = b"".join(compress_pieces([bytes(MIB)] * 64, codec))
    assert peak_of_refused(bomb, codec) < 16 * MIB


def test_a_few_kilobytes_of_zstd_runs_are_unpacked_in_small_steps() -> None:
    # 2,000 blocks of 128 KiB that repeat one byte: 250 MiB in 8 kB.
    run = struct.pack("<I", 128 << 10 << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", 1 << 3 | 1)[:3] + b"\0"
    bomb = b"\x28\xb5\x2f\xfd\x00\x38" + run * 2000 + last
    assert len(decompress(bomb, "zstd")) == 2000 * (128 << 10) + 1
    assert peak_of_refused(bomb, "zstd") < 16 * MIB


@pytest.mark.parametrize("codec", sorted(NAMES))
def test_what_fits_exactly_is_unpacked(codec: str) -> None:
    data = bytes(4 * MIB)
    assert decompress(compress(data, codec), codec, bounds=BOUNDS) == data


def packed(parts: Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in parts:
            archive.writestr(name, content)
    return out.getvalue()


def snapshot(tmp_path: Path, data: bytes) -> tuple[LocalFiles, LineageItem]:
    (tmp_path / "1.zip").write_bytes(data)
    return LocalFiles(tmp_path, bounds=BOUNDS), LineageItem(1, "")


def test_the_metadata_of_a_zip_is_bounded(tmp_path: Path) -> None:
    files, item = snapshot(tmp_path, packed([("metadata", bytes(64 * MIB))]))
    tracemalloc.start()
    with pytest.raises(StorageError, match="unpacks to more than"):
        read_metadata(files, item)
    assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    tracemalloc.stop()


def test_a_size_that_a_zip_declares_is_not_believed(tmp_path: Path) -> None:
    data = packed([("metadata", bytes(64 * MIB))])
    size = struct.pack("<I", 64 * MIB)
    assert data.count(size) == 2
    files, item = snapshot(tmp_path, data.replace(size, struct.pack("<I", 10)))
    tracemalloc.start()
    with pytest.raises(StateFormatError):
        read_metadata(files, item)
    assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    tracemalloc.stop()


def test_all_parts_of_a_zip_share_one_bound(tmp_path: Path) -> None:
    parts = [(f"{number:06}.log", bytes(2 * MIB)) for number in range(3)]
    files, item = snapshot(tmp_path, packed([("metadata", b'v1\n{"sstFiles":[]}'), *parts]))
    with pytest.raises(StorageError, match="unpacks to more than"):
        read_snapshot(files, item)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_is_only_unpacked_by_the_method_that_spark_uses(method: int, tmp_path: Path) -> None:
    files, item = snapshot(tmp_path, packed([("metadata", bytes(64 * MIB))], method))
    with pytest.raises(StateFormatError, match="which Spark never uses"):
        read_metadata(files, item)


def test_a_file_that_a_snapshot_lists_many_times_does_not_fill_the_disk(tmp_path: Path) -> None:
    entry = '{"localFileName":"%06d.sst","dfsSstFileName":"1.sst","sizeBytes":1073741824}'
    listed = ",".join(entry % number for number in range(100))
    metadata = f'v1\n{{"sstFiles":[{listed}],"numKeys":1}}'.encode()
    files, item = snapshot(tmp_path, packed([("metadata", metadata)]))
    with pytest.raises(StorageError, match=f"is larger than {8 << 30} bytes"):
        read_snapshot(files, item)


def test_no_file_of_a_snapshot_has_a_size_that_makes_room_for_others(tmp_path: Path) -> None:
    entry = '{"localFileName":"%06d.sst","dfsSstFileName":"%d.sst","sizeBytes":%d}'
    (tmp_path / "SSTs").mkdir()
    (tmp_path / "SSTs" / "1.sst").write_bytes(bytes(MIB))
    listed = ",".join([*(entry % (n, 1, MIB) for n in range(9)), entry % (9, 2, -9 * MIB)])
    metadata = f'v1\n{{"sstFiles":[{listed}],"numKeys":1}}'.encode()
    (tmp_path / "1.zip").write_bytes(packed([("metadata", metadata)]))
    files = LocalFiles(tmp_path, bounds=Bounds(state_bytes=4 * MIB))
    with pytest.raises(StateFormatError, match=f"a size cannot be {-9 * MIB}"):
        read_snapshot(files, LineageItem(1, ""))
