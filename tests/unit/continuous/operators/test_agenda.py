"""The agenda, and lists whose elements do not expire in order."""

from __future__ import annotations

import random

from epochal.continuous.operators.agenda import Agenda
from epochal.continuous.operators.processor.state_rows import ListRows


def test_entries_are_taken_by_time_and_times_without_entries_are_skipped() -> None:
    agenda: Agenda[str] = Agenda()
    for at, entry in ((5, "a"), (3, "b"), (5, "c"), (9, "d")):
        agenda.add(at, entry)
    agenda.discard(3, "b")
    agenda.discard(3, "b")
    agenda.discard(5, "nobody")
    assert agenda.first() == 5
    assert agenda.take(8) == [(5, ["a", "c"])]
    assert agenda.first() == 9
    agenda.discard(9, "d")
    assert agenda.first() is None
    assert agenda.take(100) == []


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
