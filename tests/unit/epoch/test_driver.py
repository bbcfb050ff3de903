"""The driver over files in memory, step by step, and once with its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import google_crc32c
import pytest
from tests.waiting import SECONDS

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog
from epochal.clock import Clock, SystemClock
from epochal.epoch.committed import CommittedEpoch
from epochal.epoch.contract import CommittedSink, LoggedSource
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.durable import EpochResources, newest_attempt
from epochal.epoch.effects import CommitSink, Decide, LogCommit, PublishState, ReadingHeld
from epochal.epoch.epoch_files.chain_files import StateFiles
from epochal.epoch.manifest import manifest_of
from epochal.epoch.messages import (
    CommitPartitionEpoch,
    EpochReply,
    EpochStarted,
    IncrementAndGetEpoch,
    Leave,
    Peers,
    PreparedState,
    RegisterTask,
    ReportPartitionOffset,
    TaskActive,
    TaskFailed,
    TaskReady,
)
from epochal.epoch.open_epoch import Pace
from epochal.errors import ClaimExpiredError, EpochBacklogError, RecoveryError, TaskFailedError
from epochal.files import Files
from epochal.testing.clock import ManualClock
from epochal.testing.files import MemoryFiles


@dataclass
class Numbers(LoggedSource):
    """A source of one partition; a position is a number, an offset the tens of it."""

    acknowledges_in_tasks = False

    acknowledged: list[tuple[int, Mapping[str, str]]] = field(default_factory=list)

    def initial(self) -> Mapping[str, str]:
        return {"p": "0"}

    def resume(self, offset: str) -> Mapping[str, str]:
        return {"p": f"{offset}0"}

    def offset(self, positions: Mapping[str, str]) -> str:
        return str(int(positions["p"]) // 10)

    def boundary(self, positions: Mapping[str, str]) -> Mapping[str, str]:
        return {"p": str(-(-int(positions["p"]) // 10) * 10)}

    def acknowledge(self, epoch: int, positions: Mapping[str, str]) -> None:
        self.acknowledged.append((epoch, positions))


@dataclass
class Shelf(CommittedSink):
    """A sink that remembers what became visible."""

    decides: bool = False
    visible: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    broken: Exception | None = None

    def fence(self, attempt: int) -> None:
        pass

    def decided(self, epoch: int) -> bool:
        return epoch in self.visible

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        if self.broken is not None:
            raise self.broken
        self.visible.setdefault(epoch, tuple(messages))


class World:
    """A checkpoint in memory, a source, a sink, and one attempt after the other."""

    def __init__(self, clock: Clock | None = None, **more: Any) -> None:
        self.files: Files = MemoryFiles()
        self.clock = clock or ManualClock()
        self.source, self.sink = Numbers(), Shelf()
        self.owned: Callable[[], bool] = lambda: True
        self.more = more
        self.has_ids = "commit_version" in more
        self.attempt = 0
        self.pushed: list[tuple[list[bytes], EpochReply]] = []
        self.commits: list[CommittedEpoch] = []
        self.failures: list[Exception] = []
        self.held: list[ReadingHeld] = []
        self.changed = threading.Condition()

    @property
    def offset_log(self) -> OffsetLog:
        return OffsetLog(self.files.at("offsets"))

    @property
    def commit_log(self) -> CommitLog:
        return CommitLog(self.files.at("commits"))

    def entry(self, epoch: int) -> OffsetEntry:
        found = self.offset_log.get(epoch)
        assert found is not None
        return found

    def driver(self, **pace: Any) -> EpochDriver:
        self.attempt += 1
        resources = EpochResources(
            url=self.files.url,
            offsets=self.offset_log,
            commits=self.commit_log,
            sources=[self.source],
            sink=self.sink,
            state=StateFiles(self.files, publishers=1),
            owned=lambda: self.owned(),
            run_id="run-a",
            **self.more,
        )
        listeners = Listeners(
            push=lambda peers, message: self.pushed.append((list(peers), message)),
            committed=lambda epoch, _: self.note(self.commits, epoch),
            failed=lambda error: self.note(self.failures, error),
            held=lambda held: self.note(self.held, held),
        )
        return EpochDriver(
            resources,
            listeners,
            attempt=self.attempt,
            clock=self.clock,
            pace=Pace(**{"epoch_seconds": 1, **pace}),
        )

    def note(self, kept: list[Any], value: object) -> None:
        with self.changed:
            kept.append(value)
            self.changed.notify_all()

    def await_that(self, holds: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(holds, SECONDS)

    def prepare(self, epoch: int, partition: int = 0) -> PreparedState:
        name = f"{epoch + 1}.delta.prepared-a{self.attempt}"
        if self.has_ids:
            name = f"{epoch + 1}_by-a{self.attempt}.changelog.prepared-a{self.attempt}"
        data = f"state after {epoch}".encode()
        self.files.replace(f"state/0/{partition}/{name}", data)
        return PreparedState(0, partition, "default", epoch + 1, name, google_crc32c.value(data))

    def run(self, driver: EpochDriver, *, background: bool = False) -> None:
        """Bring the one task up."""
        driver.start([(0, "p")], 1, background=background)
        driver.handle(RegisterTask(self.attempt, 0, "tcp://t", b"k", "h", 1), b"peer")
        driver.handle(TaskReady(self.attempt, 0))

    def report(self, driver: EpochDriver, epoch: int, position: int, **more: Any) -> None:
        """The task has all of an epoch."""
        attempt = driver.attempt
        driver.handle(ReportPartitionOffset(attempt, 0, epoch, str(position)))
        message = f"rows to {position}".encode()
        driver.handle(
            CommitPartitionEpoch(attempt, 0, epoch, message, (self.prepare(epoch),), **more)
        )

    def newest_push(self) -> EpochReply:
        return self.pushed[-1][1]

    def paths(self) -> list[str]:
        return [path for path, _ in self.files.walk()]


def started(world: World, **pace: Any) -> EpochDriver:
    driver = world.driver(**pace)
    driver.recover()
    world.run(driver)
    return driver


def with_epoch(world: World, position: int = 17) -> EpochDriver:
    """A driver whose first epoch is all there, and of which nothing is done yet."""
    driver = started(world)
    end_epoch(driver)
    world.report(driver, 0, position)
    return driver


def drain(driver: EpochDriver) -> list[tuple[str, int]]:
    taken = []
    while (step := driver.perform_next()) is not None:
        taken.append((type(step).__name__, step.epoch))
    return taken


def end_epoch(driver: EpochDriver) -> None:
    driver.handle(IncrementAndGetEpoch(driver.attempt))


def perform_until(driver: EpochDriver, kind: type) -> None:
    while type(driver.perform_next()) is not kind:
        pass


def test_an_epoch_is_decided_then_published_then_visible_then_logged_then_acknowledged() -> None:
    world = World()
    driver = started(world)
    end_epoch(driver)
    world.report(driver, 0, 17, rows_in=(17,), rows_out=3)
    order = ["Decide", "PublishState", "CommitSink", "LogCommit", "Acknowledge"]
    assert drain(driver) == [(step, 0) for step in order]
    assert world.sink.visible == {0: (b"rows to 17",)}
    assert world.source.acknowledged == [(0, {"p": "17"})]
    assert world.paths() == ["commits/0", "offsets/0", "state/0/0/1.delta"]
    entry = world.entry(0)
    assert entry.offsets == ("1",)
    manifest = manifest_of(entry, "")
    assert manifest is not None
    assert (manifest.attempt, manifest.run_id, manifest.positions) == (1, "run-a", ({"p": "17"},))
    assert world.commit_log.get(0) == CommitEntry(extra={"epochal": {"runId": "run-a"}})


def test_a_source_that_acknowledges_in_its_tasks_is_not_acknowledged_by_the_driver() -> None:
    world = World()
    world.source.acknowledges_in_tasks = True
    driver = with_epoch(world)
    assert drain(driver)[-1] == ("Acknowledge", 0)
    assert world.source.acknowledged == []
    assert world.newest_push() == EpochStarted(1, 1, committed=0)


def test_a_run_that_lost_the_checkpoint_decides_nothing() -> None:
    world = World()
    driver = with_epoch(world)
    world.owned = lambda: False
    with pytest.raises(ClaimExpiredError):
        driver.perform_next()
    assert [path for path in world.paths() if path.startswith("offsets")] == []


def test_an_attempt_below_the_last_decision_is_refused() -> None:
    world = World()
    world.attempt = 7
    driver = with_epoch(world)
    drain(driver)
    assert newest_attempt(world.offset_log) == 8
    world.attempt = 3
    with pytest.raises(RecoveryError):
        world.driver().recover()


def test_entries_by_name_stay_by_name() -> None:
    world = World()
    world.offset_log.add(0, OffsetEntry(2, {"orders": "4"}))
    world.commit_log.add(0, CommitEntry())
    driver = started(world)
    end_epoch(driver)
    world.report(driver, 1, 50)
    drain(driver)
    entry = world.entry(1)
    assert (entry.version, entry.offsets) == (2, {"orders": "5"})


def test_offsets_that_somebody_moved_have_the_last_word() -> None:
    world = World()
    driver = with_epoch(world)
    drain(driver)
    entry = world.entry(0)
    world.offset_log.purge_after(-1)
    world.offset_log.add(0, replace(entry, offsets=("3",)))
    found = world.driver().recover()
    assert found.positions == ({"p": "30"},)
    assert found.state is not None


def test_a_source_that_had_no_offset_yet_starts_at_its_beginning() -> None:
    world = World()
    world.offset_log.add(0, OffsetEntry(1, (None,)))
    world.commit_log.add(0, CommitEntry())
    assert world.driver().recover().positions == ({"p": "0"},)


def test_a_long_log_is_purged_in_parts() -> None:
    world = World(min_batches_to_retain=100)
    driver = started(world, max_epochs_in_flight=1000)
    for epoch in range(125):
        end_epoch(driver)
        world.report(driver, epoch, epoch)
        drain(driver)
    assert world.offset_log.batch_ids() == list(range(21, 125))


def test_the_watermark_is_logged_as_spark_logs_it() -> None:
    world = World(delays_ms=(1000,))
    driver = started(world)
    for epoch, high in enumerate((5000, 4000, 9000)):
        end_epoch(driver)
        world.report(driver, epoch, epoch, watermarks=(high,))
    drain(driver)
    began = [entry.watermark_ms for _, entry in world.offset_log.get_range()]
    ended = [entry.next_watermark_ms for _, entry in world.commit_log.get_range()]
    assert (began, ended) == ([0, 4000, 4000], [4000, 4000, 8000])
    found = world.driver().recover()
    assert (found.highs, found.watermark_ms) == ((9000,), 8000)


def test_what_was_committed_is_told_with_its_times() -> None:
    world = World(delays_ms=(1000,))
    assert isinstance(world.clock, ManualClock)
    driver = started(world)
    begin_ms = world.clock.now_ms()
    world.clock.advance(2)
    end_epoch(driver)
    world.clock.advance(0.5)
    world.report(
        driver, 0, 17, watermarks=(5000,), rows_in=(17,), rows_out=3, state_rows=((0, 9, 4, 1),)
    )
    world.clock.advance(0.25)
    drain(driver)
    assert world.commits == [
        CommittedEpoch(
            epoch=0,
            started_ms=begin_ms,
            cut_ms=begin_ms + 2000,
            committed_ms=begin_ms + 2750,
            rows_in=(17,),
            rows_out=3,
            offsets=("1",),
            state=((0, 9, 4, 1),),
            watermark_ms=4000,
            highest_ms=5000,
            prepare_ms=500,
            queue_ms=250,
        )
    ]


def test_pushes_go_to_whoever_registered_last() -> None:
    world = World()
    driver = world.driver()
    driver.recover()
    driver.start([(0, "p")], 1, background=False)
    driver.handle(RegisterTask(1, 0, "tcp://t", b"k", "h", 1), b"old")
    driver.handle(RegisterTask(1, 0, "tcp://t", b"k", "h", 1), b"new")
    driver.handle(TaskReady(1, 0))
    peers = Peers(1, world.pushed[0][1].peers if isinstance(world.pushed[0][1], Peers) else ())
    assert world.pushed == [([b"old"], peers), ([b"new"], peers), ([b"new"], EpochStarted(1, 0))]


def test_epochs_end_by_the_clock_once_a_task_was_active() -> None:
    world = World()
    assert isinstance(world.clock, ManualClock)
    driver = started(world)
    world.clock.advance(5)
    driver.tick()
    assert driver.coordinator.current == 0
    driver.handle(TaskActive(1, 0, 0))
    assert driver.coordinator.current == 1
    assert driver.due() == world.clock.monotonic() + 10


def test_a_stop_ends_where_offsets_say_all_and_lets_the_tasks_leave() -> None:
    world = World()
    driver = started(world)
    assert driver.stop()
    assert world.newest_push() == EpochStarted(1, 1, hold=True)
    world.report(driver, 0, 17)
    drain(driver)
    assert world.newest_push() == EpochStarted(1, 1, limits=((0, "20"),))
    world.report(driver, 1, 20)
    drain(driver)
    assert [held.epoch for held in world.held] == [0, 1]
    assert world.newest_push() == Leave(1)
    assert world.driver().recover().positions == ({"p": "20"},)


def test_a_stop_of_a_query_whose_tasks_are_not_there_says_so() -> None:
    world = World()
    driver = world.driver()
    driver.recover()
    driver.start([(0, "p")], 1, background=False)
    assert not driver.stop()


def test_a_failed_task_ends_the_attempt_once_and_what_was_decided_is_still_finished() -> None:
    world = World()
    driver = with_epoch(world)
    driver.handle(TaskFailed(1, 0, "boom", "trace"))
    driver.handle(TaskFailed(1, 0, "boom again", "trace"))
    assert [type(error) for error in world.failures] == [TaskFailedError]
    assert world.newest_push() == Leave(1)
    drain(driver)
    assert world.commit_log.batch_ids() == [0]


def test_steps_that_nobody_performs_end_the_attempt() -> None:
    world = World()
    driver = started(world, max_epochs_in_flight=10_000)
    for epoch in range(250):
        end_epoch(driver)
        world.report(driver, epoch, epoch)
        if world.failures:
            break
    assert [type(error) for error in world.failures] == [EpochBacklogError]


def test_a_source_that_cannot_be_told_does_not_stop_the_query() -> None:
    world = World()
    driver = started(world)

    def refuse(epoch: int, positions: Mapping[str, str]) -> None:
        raise RuntimeError("not now")

    world.source.acknowledge = refuse  # type: ignore[method-assign]
    end_epoch(driver)
    world.report(driver, 0, 17)
    drain(driver)
    assert world.commit_log.batch_ids() == [0]


def test_with_its_threads_a_step_that_fails_ends_the_attempt_and_nothing_after_it_is_done() -> None:
    world = World(SystemClock())
    driver = world.driver(epoch_seconds=1000)
    driver.recover()
    world.run(driver, background=True)
    world.sink.broken = RuntimeError("disk full")
    for epoch in range(3):
        end_epoch(driver)
        world.report(driver, epoch, 10 * epoch)
    world.await_that(lambda: bool(world.failures))
    driver.close()
    assert world.failures == [world.sink.broken]
    assert (world.offset_log.batch_ids(), world.commit_log.batch_ids()) == ([0], [])
    world.sink.broken = None
    assert world.driver().recover().first_epoch == 1


def test_closing_leaves_no_thread() -> None:
    before = threading.active_count()
    world = World(SystemClock())
    driver = world.driver()
    driver.recover()
    world.run(driver, background=True)
    assert threading.active_count() == before + 4
    driver.close()
    driver.close()
    assert threading.active_count() == before


def test_tasks_that_can_hear_are_sent_away_whatever_state_the_attempt_is_in() -> None:
    world = World()
    driver = started(world)
    driver.handle(TaskFailed(1, 0, "it broke", "trace"))
    assert len(world.failures) == 1
    driver.dismiss()
    assert world.pushed[-1] == ([b"peer"], Leave(1))


def test_an_idle_epoch_ends_soon_when_it_is_woken() -> None:
    world = World()
    driver = started(world, epoch_seconds=1, idle_epoch_seconds=600)
    due = driver.due()
    driver.wake()
    woken = driver.due()
    assert due is not None
    assert woken is not None
    assert due - woken == 599


def planned_by_spark() -> World:
    """A checkpoint of Spark's, killed in batch 4, which was to read from 30 to 70."""
    world = World()
    world.more["planned"] = world.files.at(".epochal/planned")
    world.offset_log.add(3, OffsetEntry(1, ("3",), conf={"k": "v"}))
    world.commit_log.add(3, CommitEntry())
    world.offset_log.add(4, OffsetEntry(1, ("7",), timestamp_ms=123_456, conf={"k": "v"}))
    return world


WITH_IDS: dict[str, Any] = {"commit_version": 2, "is_stateful": True}


OURS: dict[str, Any] = {"epochal": {"runId": "run-a"}}


def named(unique_id: str, extra: dict[str, Any] | None = None) -> CommitEntry:
    return CommitEntry(2, state_unique_ids={0: ((unique_id,),)}, extra=extra or {})


@pytest.mark.parametrize("last", [Decide, CommitSink, PublishState, LogCommit])
def test_a_commit_names_the_ids_that_were_decided_also_after_a_crash(last: type) -> None:
    world = World(**WITH_IDS)
    driver = with_epoch(world)
    perform_until(driver, last)
    found = world.driver().recover()
    assert world.commit_log.get(0) == named("by-a1", OURS)
    assert world.paths() == ["commits/0", "offsets/0", "state/0/0/1_by-a1.changelog"]
    assert found.state is not None
    assert found.state[0].name == "1_by-a1.changelog.prepared-a1"


def test_without_state_a_commit_of_format_2_names_no_ids() -> None:
    world = World(commit_version=2)
    driver = started(world)
    end_epoch(driver)
    driver.handle(ReportPartitionOffset(1, 0, 0, "17"))
    driver.handle(CommitPartitionEpoch(1, 0, 0, b"rows"))
    drain(driver)
    assert world.commit_log.get(0) == CommitEntry(2, state_unique_ids={}, extra=OURS)


@pytest.mark.parametrize("crash", [False, True])
def test_a_batch_whose_output_the_sink_has_is_run_again_for_its_state_alone(crash: bool) -> None:
    world = planned_by_spark()
    world.more.update(WITH_IDS)
    world.has_ids = True
    world.sink.visible[4] = (b"by Spark",)
    if crash:
        started(world)
    driver = started(world)
    world.report(driver, 4, 70)
    perform_until(driver, Decide)
    entry = world.entry(4)
    manifest = manifest_of(entry, "")
    assert manifest is not None
    assert manifest.messages == ()
    if crash:
        started(world)
    else:
        drain(driver)
    assert world.sink.visible == {4: (b"by Spark",)}
    assert world.commit_log.get(4) == named(f"by-a{driver.attempt}", OURS)
