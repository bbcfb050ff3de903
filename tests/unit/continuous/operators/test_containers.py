"""An agenda is a sorted list, a map on disk a dictionary, however late changes reach the disk."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epochal.continuous.operators import containers
from epochal.continuous.operators.containers import Agenda, DiskAgenda, DiskMap
from epochal.continuous.operators.processor.state_rows import ListRows
from epochal.state.disk.disk_rows import DiskRows, DiskStates, DiskVersion
from epochal.state.disk.local_database import LocalDatabase
from epochal.state.rows.row_codec import RowCodec
from epochal.state.rows.types import AtomicType, StructField, StructType
from epochal.state.store.contract import PlainForm

LONG = StructType((StructField("n", AtomicType("long")),))
CODEC = RowCodec(LONG, LONG, 0)
KEYS = st.integers(0, 12).map(lambda number: (number,))


class Maps(RuleBasedStateMachine):
    """Changes a map and a dictionary alike; epochs are saved in order, but at any time."""

    database: LocalDatabase

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[Any, Any] = {}
        self.epoch, self.saved = 0, -1
        self.cuts: list[dict[bytes, bytes | None]] = []
        self.changed: set[Any] = set()
        self.version: DiskVersion = DiskStates(self.database).empty()
        rows = DiskRows(
            self.database, lambda: self.version, PlainForm(CODEC), lambda: self.saved, 0
        )
        self.map: DiskMap[Any] = DiskMap.of_values(rows)

    @rule(key=KEYS, value=st.integers(0, 99))
    def put(self, key: Any, value: int) -> None:
        self.map[key] = self.model[key] = (value,)
        self.changed.add(key)

    @rule(key=KEYS)
    def remove(self, key: Any) -> None:
        assert self.map.pop(key, None) == self.model.pop(key, None)
        self.changed.add(key)

    @rule(key=KEYS)
    def look_up(self, key: Any) -> None:
        assert self.map.get(key) == self.model.get(key)
        assert (key in self.map) is (key in self.model)

    @rule()
    def trim(self) -> None:
        self.map.trim()

    @rule()
    def cut(self) -> None:
        encoded = {
            CODEC.encode_key(key): CODEC.encode_value(self.map[key]) if key in self.map else None
            for key in self.changed
        }
        self.cuts.append(encoded)
        self.changed = set()
        self.map.cut(self.epoch)
        self.epoch += 1

    @precondition(lambda self: self.cuts)
    @rule()
    def save(self) -> None:
        version = self.version.with_changes(self.cuts.pop(0))
        assert isinstance(version, DiskVersion)
        self.version = version
        self.saved += 1

    @invariant()
    def it_is_the_dictionary(self) -> None:
        assert len(self.map) == len(self.model)
        assert dict(self.map.pairs()) == self.model


class Agendas(RuleBasedStateMachine):
    """Plans and takes entries of an agenda on disk and of one in memory."""

    database: LocalDatabase

    def __init__(self) -> None:
        super().__init__()
        version = DiskStates(self.database).empty()
        rows = DiskRows(self.database, lambda: version, PlainForm(CODEC), lambda: 0, 0)
        self.disk: DiskAgenda[Any] = DiskAgenda(rows)
        self.memory: Agenda[Any] = Agenda()

    @rule(at=st.integers(-20, 20), entry=KEYS)
    def add(self, at: int, entry: Any) -> None:
        self.disk.add(at, entry)
        self.memory.add(at, entry)

    @rule(at=st.integers(-20, 20), entry=KEYS)
    def discard(self, at: int, entry: Any) -> None:
        self.disk.discard(at, entry)
        self.memory.discard(at, entry)

    @rule(until=st.integers(-25, 25))
    def take(self, until: int) -> None:
        taken = [(at, sorted(entries)) for at, entries in self.memory.take(until)]
        assert [(at, sorted(entries)) for at, entries in self.disk.take(until)] == taken
        assert self.disk.first() == self.memory.first()

    @invariant()
    def it_is_never_late(self) -> None:
        due, early = self.memory.first(), self.disk.first()
        assert due is None or (early is not None and early <= due)


@pytest.fixture(autouse=True)
def hardly_any_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "_MIN_VALUES", 2)
    monkeypatch.setattr(containers, "_MAX_RECENT", 3)


@pytest.mark.parametrize("machine", [Maps, Agendas])
def test_what_is_on_disk_equals_what_would_be_in_memory(
    database: LocalDatabase, machine: type[Maps | Agendas]
) -> None:
    machine.database = database
    case = machine.TestCase
    case.settings = settings(max_examples=80, stateful_step_count=40)
    case("runTest").runTest()


def test_times_without_entries_do_not_accumulate() -> None:
    agenda: Agenda[int] = Agenda()
    for at in range(20_000):
        agenda.add(at, 1)
        agenda.discard(at, 1)
    agenda.add(7, 2)
    assert len(agenda._heap) < 2_000
    assert agenda.take(10) == [(7, [2])]


def test_an_agenda_agrees_with_a_sorted_list_of_pairs() -> None:
    rng = random.Random(3)
    agenda: Agenda[int] = Agenda()
    plain: set[tuple[int, int]] = set()
    for now in range(3_000):
        pair = (now + rng.randrange(-3, 20), rng.randrange(5))
        if rng.random() < 0.6:
            agenda.add(*pair)
            plain.add(pair)
        else:
            agenda.discard(*pair)
            plain.discard(pair)
        if rng.random() < 0.1:
            taken = sorted((at, each) for at, entries in agenda.take(now) for each in entries)
            assert taken == sorted(pair for pair in plain if pair[0] <= now)
            plain = {pair for pair in plain if pair[0] > now}
        assert agenda.first() == min((at for at, _ in plain), default=None)


def test_a_list_is_renumbered_if_other_elements_than_the_oldest_expire() -> None:
    rows = ListRows("list", 10)
    key = ("a",)
    rows.load([((key, n), ((n,), expires)) for n, expires in enumerate((50, 20, 60, 30))])
    rows.purge(30)
    assert rows.get(key, 30) == [(0,), (2,)]
    found = rows.changes(0)
    assert found.puts == [((key, 2), ((0,), 50)), ((key, 3), ((2,), 60))]
    assert (found.removes, found.rows) == ([(key, 0), (key, 1)], 2)
    rows.purge(50)
    assert rows.get(key, 50) == [(2,)]
    assert (rows.changes(0).removes, rows.expiries.first()) == ([(key, 2)], 60)
