"""The local database of a task: its directory, its errors, its tables, the versions in it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epochal.errors import LocalStateError, OptionError
from epochal.state.disk.disk_rows import DiskStates, DiskVersion
from epochal.state.disk.local_database import MIN_MEMORY_BYTES, LocalDatabase, check_library
from epochal.state.store.versions import FrozenVersion


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


KEYS = st.binary(min_size=1, max_size=3)
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=4), max_size=6)


def first_byte(keys: Sequence[bytes]) -> list[bytes]:
    return [key[:1] for key in keys]


class Versions(RuleBasedStateMachine):
    """Builds versions on any earlier one, reads them in any order, and drops some."""

    database: LocalDatabase

    def __init__(self) -> None:
        super().__init__()
        self.plain = DiskStates(self.database)
        self.scanned = DiskStates(self.database, first_byte)
        self.made: list[tuple[FrozenVersion, FrozenVersion, dict[bytes, bytes]]] = []
        self.reading: list[tuple[Iterator[Any], dict[bytes, bytes]]] = []
        self.load({})

    @rule(rows=st.dictionaries(KEYS, st.binary(max_size=4), max_size=6))
    def load(self, rows: dict[bytes, bytes]) -> None:
        parts = [list(rows.items())[:2], list(rows.items())[2:]]
        self.made.append((self.plain.of(parts), self.scanned.of(parts), dict(rows)))

    @rule(data=st.data(), changes=CHANGES)
    def change(self, data: st.DataObject, changes: dict[bytes, bytes | None]) -> None:
        """Build the next version, mostly on the newest one, else on one that has a child."""
        newest = st.just(len(self.made) - 1)
        at = data.draw(st.one_of(newest, newest, st.integers(0, len(self.made) - 1)))
        *parents, rows = self.made[at]
        children = []
        for parent in parents:
            draft = parent.draft()
            for key, value in changes.items():
                if value is None:
                    assert draft.remove(key) is (key in rows)
                else:
                    draft.put(key, value)
            children.append(draft.freeze())
        after = {**rows, **changes}
        kept = {key: value for key, value in after.items() if value is not None}
        self.made.append((children[0], children[1], kept))

    @rule(data=st.data())
    def begin_to_read(self, data: st.DataObject) -> None:
        version, _, rows = data.draw(st.sampled_from(self.made))
        self.reading.append((version.items(), rows))

    @precondition(lambda self: self.reading)
    @rule()
    def finish_reading(self) -> None:
        found, rows = self.reading.pop()
        assert dict(found) == rows

    @precondition(lambda self: len(self.made) > 1)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.made.pop(data.draw(st.integers(0, len(self.made) - 1)))

    @invariant()
    def every_version_has_its_rows(self) -> None:
        for plain, scanned, rows in islice(reversed(self.made), 4):
            for version in (plain, scanned):
                assert dict(version.items()) == rows
                assert len(version) == len(rows)
                wanted = [*rows, b"absent"]
                assert version.draft().get_many(wanted) == [rows.get(key) for key in wanted]
                for prefix in {key[:1] for key in rows} | {b"z"}:
                    found = version.draft().with_prefix(prefix, first_byte)
                    assert dict(found) == {k: v for k, v in rows.items() if k[:1] == prefix}


def test_versions_on_disk_equal_dictionaries(database: LocalDatabase) -> None:
    Versions.database = database
    machine = Versions.TestCase
    machine.settings = settings(max_examples=60, stateful_step_count=20)
    machine("runTest").runTest()


def test_a_table_is_emptied_when_its_last_version_is_dropped(database: LocalDatabase) -> None:
    version: DiskVersion | None = DiskStates(database).of([[(b"a", b"1"), (b"b", b"2")]])
    assert version is not None
    start, end = version.table.head, version.table.end
    assert len(list(database.entries(start, end))) == 2
    version = None
    gc.collect()
    assert list(database.entries(start, end)) == []


def test_only_changes_that_an_older_version_needs_stay_in_memory(database: LocalDatabase) -> None:
    old = version = DiskStates(database).empty()
    for number in range(20):
        made = version.with_changes({b"%d" % number: b"x"})
        assert isinstance(made, DiskVersion)
        version = made
    assert len(version.home._changed) == 20
    assert dict(old.items()) == {}
    del old
    final = version.with_changes({b"a": b"1"})
    assert isinstance(final, DiskVersion)
    assert len(final.home._changed) == 1
    assert len(final) == 21


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalDatabase]:
    opened = LocalDatabase(str(tmp_path_factory.mktemp("local")), MIN_MEMORY_BYTES)
    yield opened
    opened.close()
