"""The watermark formula, and the watermark of each epoch where watermarks move between epochs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.epoch.test_driver import World, started
from tests.unit.epoch.test_recovery import logs, ours, plan, sparks

from epochal.checkpoint.entries import CommitEntry, OffsetEntry
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
from epochal.epoch.messages import EpochStarted
from epochal.errors import RecoveryError
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
