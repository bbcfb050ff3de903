"""The watermark formula, the watermark of each epoch, and which event times count for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.unit.epoch.test_driver import World, started
from tests.unit.epoch.test_recovery import logs, ours, plan, sparks

from epochal.checkpoint.entries import CommitEntry, OffsetEntry
from epochal.epoch.contract import LoggedSource
from epochal.epoch.driver import EpochDriver
from epochal.epoch.event_time.query_watermark import (
    NO_WATERMARK,
    NONE_SEEN,
    NOT_ADVANCED,
    POLICY_KEY,
    QueryWatermark,
    policy_of,
    watermark_of,
)
from epochal.epoch.event_time.unit_ends import (
    Readers,
    SourcePlaces,
    ends_of_waiting,
    first_unit,
    open_unit,
)
from epochal.epoch.event_time.units import HOLDS_NOTHING, UnitMark, Units
from epochal.epoch.manifest import Manifest, OpenUnit, manifest_from_json, manifest_to_json
from epochal.epoch.messages import EpochStarted, ReaderWaits
from epochal.errors import MalformedFileError, RecoveryError
from epochal.testing.clock import ManualClock


@pytest.mark.parametrize(
    ("highs", "floor", "expected"),
    [
        ((), 7, 7),
        ((), NO_WATERMARK, NO_WATERMARK),
        ((5000,), 0, 4000),
        ((500,), 0, 0),
        ((5000,), 4500, 4500),
        ((5000, 9000), 0, 4000),
        # A side that has seen nothing holds the watermark at zero. After a restart it may have seen
        # nothing, while the logs know the watermark.
        ((NONE_SEEN, 9000), NOT_ADVANCED, 0),
        ((9000, NONE_SEEN), NOT_ADVANCED, 0),
        ((NONE_SEEN, NONE_SEEN), NOT_ADVANCED, 0),
        ((NONE_SEEN, 9000), 3, 3),
    ],
)
def test_the_slowest_watermark_counts_and_never_goes_back(
    highs: tuple[int, ...], floor: int, expected: int
) -> None:
    assert watermark_of(highs, (1000,) * len(highs), floor) == expected


def tracked(**more: Any) -> QueryWatermark:
    given = {"highs": (-1,), "delays_ms": (1000,), "moves": "epoch", **more}
    return QueryWatermark(**given)


def test_an_epoch_should_end_soon_while_its_end_or_the_next_one_closes_windows() -> None:
    watermark = tracked()
    assert not watermark.wants_epoch(0)
    watermark.start(1)
    watermark.decide(0, [(5000,)])
    assert watermark.wants_epoch(1)  # the next epoch would have a higher watermark
    watermark.start(2)
    assert watermark.wants_epoch(2)  # it closes windows when it ends
    watermark.decide(1, [(5000,)])
    watermark.start(3)
    assert not watermark.wants_epoch(3)


@pytest.mark.parametrize(("policy", "expected"), [("min", 4000), ("MAX", 8000), ("", 4000)])
def test_several_watermarks_make_one_as_the_checkpoint_pins_it(policy: str, expected: int) -> None:
    pinned = policy_of({POLICY_KEY: policy} if policy else {})
    assert watermark_of((5000, 9000), (1000, 1000), 0, pinned) == expected
    assert watermark_of((-1, 9000), (1000, 1000), 0, pinned) == (0 if expected == 4000 else 8000)


def world() -> World:
    return World(ManualClock(), delays_ms=(1000,), watermarks_move="epoch")


def next_epoch(world: World, driver: EpochDriver, seconds: float = 1.0) -> EpochStarted:
    """Let an epoch end, if it does after that time."""
    assert isinstance(world.clock, ManualClock)
    world.clock.advance(seconds)
    driver.tick()
    push = world.newest_push()
    assert isinstance(push, EpochStarted)
    return push


def perform_all(driver: EpochDriver) -> None:
    while driver.perform_next() is not None:
        pass


def test_epochs_without_rows_follow_until_all_windows_are_closed_and_then_none() -> None:
    there = world()
    driver = started(there, idle_epoch_seconds=100.0)
    next_epoch(there, driver, 100.0)
    there.report(driver, 0, 5, watermarks=(5000,))
    assert next_epoch(there, driver).epoch == 2  # it has the new watermark
    there.report(driver, 1, 5, watermarks=(5000,))
    assert next_epoch(there, driver).epoch == 3  # the one before has closed the windows
    there.report(driver, 2, 5, watermarks=(5000,))
    perform_all(driver)
    assert [each.settled for each in there.commits] == [False, False, True]
    assert next_epoch(there, driver, 50.0).epoch == 3
    assert there.driver().recover().settled


def test_after_spark_the_watermarks_are_those_of_its_logs() -> None:
    found = plan(
        logs({3: sparks(3), 4: sparks(4, watermark_ms=3000)}, (3, 4), 5000),
        delays_ms=(1000,),
        query={"moves": "epoch"},
    )
    assert (found.watermark_ms, found.late_ms, found.highs) == (5000, 3000, (6000,))


def test_an_epoch_that_is_finished_by_the_next_attempt_is_followed_by_the_formula() -> None:
    entries = {3: ours(3), 4: ours(4, watermarks=(9000,))}
    found = plan(logs(entries, (3,)), delays_ms=(1000,), query={"moves": "epoch"})
    assert (found.watermark_ms, found.late_ms) == (8000, 0)


def test_a_source_that_occurs_twice_has_two_equal_lines() -> None:
    there = World(ManualClock(), offset_lines=(0, 0))
    driver = started(there, idle_epoch_seconds=1.0)
    next_epoch(there, driver)
    there.report(driver, 0, 50)
    perform_all(driver)
    entry = there.offset_log.get(0)
    assert entry is not None
    assert entry.offsets == ("5", "5")
    found = there.driver().recover()
    assert (found.positions, found.offsets) == (({"p": "50"},), ("5",))


def test_lines_of_one_source_that_differ_are_refused() -> None:
    there = World(ManualClock(), offset_lines=(0, 0))
    there.offset_log.add(0, OffsetEntry(1, ("5", "6")))
    there.commit_log.add(0, CommitEntry())
    with pytest.raises(RecoveryError, match="its offsets differ: 5 and 6"):
        there.driver().recover()
    single = World(ManualClock())
    single.offset_log.add(0, OffsetEntry(1, ("5", "5")))
    single.commit_log.add(0, CommitEntry())
    with pytest.raises(RecoveryError, match="2 sources, but the query has 1"):
        single.driver().recover()


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
