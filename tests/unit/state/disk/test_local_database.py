"""The local database of a task: its directory, its errors, its tables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from epochal.errors import LocalStateError, OptionError
from epochal.state.disk.local_database import MIN_MEMORY_BYTES, LocalDatabase, check_library


def opened(path: Path) -> LocalDatabase:
    return LocalDatabase(str(path), MIN_MEMORY_BYTES)


def test_a_database_removes_its_directory_when_it_is_closed(tmp_path: Path) -> None:
    database = opened(tmp_path / "not" / "there")
    database.write([(b"a", b"1")])
    assert [each.parent for each in (database.path,)] == [tmp_path / "not" / "there"]
    assert oct(database.path.stat().st_mode & 0o777) == "0o700"
    database.close()
    assert list((tmp_path / "not" / "there").iterdir()) == []


def test_the_directory_of_a_killed_process_is_removed_and_that_of_a_live_one_is_not(
    tmp_path: Path,
) -> None:
    program = (
        "import os, sys; from epochal.state.disk.local_database import LocalDatabase;"
        "LocalDatabase(sys.argv[1], 32 << 20).write([(b'a', b'1')]); os.kill(os.getpid(), 9)"
    )
    live = opened(tmp_path)
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    other = opened(tmp_path)
    assert set(tmp_path.iterdir()) == {live.path, other.path}
    live.close()
    other.close()


def test_a_directory_that_cannot_be_made_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalStateError, match="stateLocalDir") as raised:
        opened(tmp_path / "file")
    assert str(tmp_path / "file") in str(raised.value)


def test_a_full_disk_is_an_error_and_loses_nothing_silently(tmp_path: Path) -> None:
    # A limit on the size of files stands for a full disk: RocksDB cannot write its tables.
    program = """
import os, resource, sys
from epochal.errors import LocalStateError
from epochal.state.disk.local_database import LocalDatabase

database = LocalDatabase(sys.argv[1], 32 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    for part in range(1000):
        database.write((os.urandom(16), os.urandom(1000)) for _ in range(1000))
except LocalStateError as error:
    print(error)
    sys.exit(7)
"""
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert run.returncode == 7, run.stderr
    assert "it cannot be written" in run.stdout
    assert "has free space" in run.stdout


def test_without_the_library_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(OptionError, match=r"stateMemory.*pip install 'epochal\[rocksdb\]'"):
        check_library()


def test_a_table_finds_keys_by_their_prefix_and_no_others(tmp_path: Path) -> None:
    def before_the_colon(keys: Sequence[bytes]) -> list[bytes]:
        return [key.partition(b":")[0] for key in keys]

    database = opened(tmp_path)
    first, second = database.table(before_the_colon), database.table(before_the_colon)
    keys = [b"a:1", b"ab:1", b"a:2", b"\xff:1", b":1"]
    for table, value in ((first, b"1"), (second, b"2")):
        database.write(zip(table.entries(keys), [value] * len(keys), strict=True))
    assert list(first.scan(b"a")) == [(b"a:1", b"1"), (b"a:2", b"1")]
    assert list(second.scan(b"\xff")) == [(b"\xff:1", b"2")]
    assert list(second.scan(b"")) == [(b":1", b"2")]
    assert first.get(b"ab:1") == b"1"
    assert first.get(b"ab:2") is None
    assert os.listdir(tmp_path) == [database.path.name]
    database.close()
