"""Which event times count for the watermark, while rows wait."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from epochal.epoch.contract import LoggedSource
from epochal.epoch.event_time.unit_ends import (
    Readers,
    SourcePlaces,
    ends_of_waiting,
    first_unit,
    open_unit,
)
from epochal.epoch.event_time.units import HOLDS_NOTHING, UnitMark, Units
from epochal.epoch.manifest import Manifest, OpenUnit, manifest_from_json, manifest_to_json
from epochal.epoch.messages import ReaderWaits
from epochal.errors import MalformedFileError


@dataclass(slots=True)
class Log(LoggedSource):
    """A source whose positions are numbers; with `step`, its offsets name whole steps only."""

    ends: dict[str, int]
    step: int = 1
    tells_waiting: bool = True
    lists_together: bool = False
    most: int = 1_000
    acknowledges_in_tasks: bool = False

    def initial(self) -> Mapping[str, str]:
        return dict.fromkeys(self.ends, "0")

    def resume(self, offset: str) -> Mapping[str, str]:
        found: dict[str, str] = json.loads(offset)
        return found

    def offset(self, positions: Mapping[str, str]) -> str:
        return json.dumps(dict(positions))

    def boundary(self, positions: Mapping[str, str]) -> Mapping[str, str]:
        highest = max(-(-int(at) // self.step) * self.step for at in positions.values())
        return dict.fromkeys(positions, str(highest))

    def acknowledge(self, epoch: int, positions: Mapping[str, str]) -> None:
        """Nothing is kept for them."""

    def latest(self) -> Mapping[str, str]:
        return {name: str(end) for name, end in self.ends.items()}

    def lag(self, positions: Mapping[str, str], latest: Mapping[str, str]) -> int:
        return sum(max(0, int(end) - int(positions[name])) for name, end in latest.items())

    def unit_end(self, at: Mapping[str, str], latest: Mapping[str, str]) -> Mapping[str, str]:
        return {name: str(min(int(end), int(at[name]) + self.most)) for name, end in latest.items()}


def begun(
    log: Log, ends: Mapping[str, str], counted: int = -1, last: Mapping[str, str] | None = None
) -> Units:
    readers = Readers(1, tuple((0, name) for name in log.ends))
    places = SourcePlaces(readers, [log], None if last is None else [last])
    return first_unit(places, OpenUnit((counted,), (ends,)), (counted,), is_epoch=False)


def wait(reader: int, end: str = "", high: int = -1) -> ReaderWaits:
    return ReaderWaits(reader, end, (high,))


def test_a_reader_whose_rows_do_not_move_a_watermark_does_not_hold_it() -> None:
    units = begun(Log({"a": 10, "b": 10}), {"a": "5"})
    units.take(("10", "0"), [wait(1, "10", HOLDS_NOTHING)], (900,))
    assert units.counted == (900,)


def test_files_count_when_all_that_were_listed_together_are_read() -> None:
    log = Log({"a": 0, "b": 0}, step=10, tells_waiting=False, lists_together=True)
    units = begun(log, {"a": "10", "b": "10"})
    units.take(("10", "4"), [], (500,))
    assert units.counted == (-1,)
    units.take(("10", "10"), [], (600,))
    assert units.counted == (600,)
    units.take(("10", "14"), [], (700,))  # the other one has yet to read its part of that list
    units.take(("22", "20"), [], (800,))
    assert units.counted == (700,)  # and not more: 800 may be of the list after it
    units.take(("30", "30"), [], (900,))
    assert units.counted == (900,)
    assert units.is_held  # a task cannot know what other tasks have read


def test_rows_behind_the_end_of_the_query_hold_nothing() -> None:
    units = begun(Log({"a": 10}), {}, last={"a": "5"})
    units.take(("5",), [wait(0, "10", 100)], (900,))
    assert (units.counted, units.mark) == ((900,), None)


def test_an_epoch_that_was_planned_is_a_unit() -> None:
    places = SourcePlaces(Readers(1, ((0, "a"),)), [Log({"a": 20})])
    units = Units(places, highs=(-1,), is_epoch=True)
    units.take(("10",), [wait(0, "20", 90)], (100,))
    assert (units.counted, units.mark) == ((90,), UnitMark((90,), {}))
    units.take(("20",), [], (200,))
    assert (units.counted, units.is_held) == ((200,), True)  # others may still read the epoch


def test_a_reader_whose_end_is_not_known_holds_until_it_says_otherwise() -> None:
    units = begun(Log({"a": 10, "b": 10}), {})
    units.take(("0", "0"), [wait(0), wait(1)], (-1,))
    units.take(("4", "0"), [wait(0), wait(1)], (400,))
    assert units.counted == (-1,)
    units.take(("4", "0"), [], (400,))
    assert units.counted == (400,)


def test_what_waits_is_asked_of_the_sources_with_their_bound() -> None:
    log = Log({"a": 50, "b": 3}, most=5)
    assert ends_of_waiting([log], [{"a": "40", "b": "3"}]) == ({"a": "45"},)


@pytest.mark.parametrize("ends", [{0: "7", 1: ""}, {}])
def test_a_restart_finds_the_unit_in_the_log(ends: Mapping[int, str]) -> None:
    readers = Readers(1, ((0, "a"), (0, "b")))
    logged = open_unit(UnitMark((100,), ends), readers)
    manifest = Manifest(3, 1, "run", ({"a": "5", "b": "1"},), (), (), (900,), unit=logged)
    found = manifest_from_json(manifest_to_json(manifest), "offsets/3")
    assert found == manifest
    assert found.unit == OpenUnit((100,), ({"a": "7"} if ends else {},))
    assert open_unit(None, readers) is None


def test_a_unit_that_is_not_one_is_refused() -> None:
    value = manifest_to_json(Manifest(3, 1, "run", (), (), ()))
    with pytest.raises(MalformedFileError, match=r"got `int` - at `\$\.unit`"):
        manifest_from_json({**value, "unit": 7}, "offsets/3")
