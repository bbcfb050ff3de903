"""A snapshot of RocksDB that somebody prepared runs no code and leads to no other directory.

RocksDB and `rocksdict` read more from a directory than data: options that name directories, and a
configuration that has values unpickled. What a snapshot says about either is not used.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import rocksdict

from epochal.errors import StateFormatError
from epochal.files.local import LocalFiles
from epochal.state.files.rocksdb_changelog import LineageItem
from epochal.state.store.rocksdb_directory import read_snapshot

CONFIGURATION = "rocksdict-config.json"
FIRST = LineageItem(1, "")


class Payload:
    """Unpickling it makes a directory."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self._path,)


def snapshot_of(database: Path, into: Path, *, loose: tuple[str, ...] = ()) -> LocalFiles:
    """Pack a database as Spark does; `loose` files lie beside the zip, as tables do."""
    files = {path.name: path.read_bytes() for path in database.iterdir()}
    beside = {name for name in files if name.endswith(".sst") or name in loose}
    listed = [
        {"localFileName": name, "dfsSstFileName": f"{name}.sst", "sizeBytes": len(files[name])}
        for name in sorted(beside)
    ]
    (into / "SSTs").mkdir(parents=True)
    for name in beside:
        (into / "SSTs" / f"{name}.sst").write_bytes(files[name])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in files.keys() - beside:
            archive.writestr(name, files[name])
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": listed, "numKeys": 1}))
    (into / "1.zip").write_bytes(packed.getvalue())
    return LocalFiles(into)


def database_with(value: object, path: Path, *, raw: bool = False) -> Path:
    """A database. Unless it is `raw`, `rocksdict` pickles what it does not know."""
    database = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=raw))
    database[b"key"] = value
    database.close()
    return path


def test_no_value_of_a_prepared_snapshot_is_unpickled(tmp_path: Path) -> None:
    made = tmp_path / "made"
    database = database_with(Payload(made), tmp_path / "database")
    assert (database / CONFIGURATION).exists()  # it is what has values unpickled
    files = snapshot_of(database, tmp_path / "state")
    with pytest.raises(StateFormatError, match="does not match existing comparator"):
        read_snapshot(files, FIRST)
    assert not made.exists()


def test_only_files_of_rocksdb_lie_beside_a_snapshot(tmp_path: Path) -> None:
    made = tmp_path / "made"
    database = database_with(Payload(made), tmp_path / "database")
    files = snapshot_of(database, tmp_path / "state", loose=(CONFIGURATION,))
    with pytest.raises(StateFormatError, match="not the name of a file that RocksDB reads"):
        read_snapshot(files, FIRST)
    assert not made.exists()


@pytest.mark.parametrize("option", ["wal_dir", "db_log_dir"])
def test_options_of_a_prepared_snapshot_name_no_directory(option: str, tmp_path: Path) -> None:
    database = database_with(b"value", tmp_path / "database", raw=True)
    for path in database.glob("OPTIONS-*"):
        lines = path.read_text().replace("[DBOptions]", f"[DBOptions]\n{option}={tmp_path}/other")
        path.write_text(lines)
    files = snapshot_of(database, tmp_path / "state")
    assert read_snapshot(files, FIRST)[1] == {b"key": b"value"}
    assert not (tmp_path / "other").exists()
