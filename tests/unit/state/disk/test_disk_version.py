"""Versions on disk are the versions that dictionaries would hold."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epochal.state.disk.disk_rows import DiskStates, DiskVersion
from epochal.state.disk.local_database import MIN_MEMORY_BYTES, LocalDatabase
from epochal.state.store.versions import FrozenVersion

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
