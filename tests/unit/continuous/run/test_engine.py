"""A run's course, with attempts that only pretend: failures, restarts, stops, reconfigurations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener
from tests.waiting import eventually

from epochal.checkpoint.stop_request import request_stop
from epochal.clock import Clock, SystemClock
from epochal.continuous.run import engine as engine_module
from epochal.continuous.run.engine import Engine
from epochal.continuous.run.listeners import ListenerBus
from epochal.continuous.run.progress import QueryNote
from epochal.continuous.run.query_settings import EngineOptions
from epochal.continuous.run.run_events import AttemptFailed, JobEnded, NewPartitions
from epochal.epoch.committed import CommittedEpoch
from epochal.epoch.effects import ReadingHeld
from epochal.errors import (
    DriverLostError,
    HostSilentError,
    KafkaUnavailableError,
    OptionError,
    PlanChangedError,
    QueryError,
    QueryFailedError,
    StorageError,
    TaskFailedError,
    TooFewSlotsError,
)
from epochal.errors.base import FailureKind
from epochal.testing.clock import ManualClock
from epochal.testing.files import FaultyFiles, MemoryFiles

QUERY = "11111111-1111-1111-1111-111111111111"
RUN = "22222222-2222-2222-2222-222222222222"
QUICK = EngineOptions(max_restarts=3, stop_timeout=timedelta(seconds=20), seed=1)


class Pretence:
    """Attempts that do what a test says, and note what is asked of them."""

    def __init__(self, *scripts: Callable[[Pretended], None]) -> None:
        self.scripts = list(scripts)
        self.asked: list[str] = []
        self.prepared = 0
        self.refusals: list[Exception] = []
        self.committed: Callable[..., None] = lambda *_: None
        self.all_read = False
        self.plans_epochs = False

    def is_read(self, positions: object) -> bool:
        del positions
        return self.all_read

    def prepare(self, *, stopped: Any, post: Any, on_committed: Any, on_acknowledged: Any) -> Any:
        self.prepared += 1
        self.committed = on_committed
        if self.refusals:
            raise self.refusals.pop(0)
        return Pretended(self.prepared, self, post)


class Pretended:
    """One such attempt."""

    first_epoch = 0
    settled = True
    positions: tuple[dict[str, str], ...] = ()
    offsets: tuple[str, ...] = ()
    is_planned = False

    def __init__(self, number: int, pretence: Pretence, post: Any) -> None:
        self.number, self._pretence, self.post = number, pretence, post
        self.silent: list[Exception] = []
        self.reads, self.will_read, self.limits, self.is_at_boundary = True, False, 0, True
        self.is_published = True
        self.epochs_left = 0

    def start(self) -> None:
        self._note("start")
        if self._pretence.scripts:
            self._pretence.scripts.pop(0)(self)

    def find_silent(self) -> Exception | None:
        return self.silent.pop() if self.silent else None

    def hold(self) -> bool:
        self._note("hold")
        if self.reads or self.will_read:
            self.post(ReadingHeld(5, ()))
        return self.reads

    def plan(self, held: ReadingHeld) -> bool:
        self._note(f"plan after {held.epoch}")
        self.epochs_left -= 1
        if self.epochs_left >= 0:
            self.post(ReadingHeld(held.epoch + 1, ()))
        return self.epochs_left >= 0

    def limit(self, held: ReadingHeld) -> bool:
        self.limits -= 1
        if self.limits >= 0:
            self._note("limit")
            self.post(ReadingHeld(held.epoch + 1, ()))
        return self.limits >= 0

    def finish(self) -> None:
        self._note("finish")
        self.post(JobEnded(self.number, None))

    def end(self, timeout_seconds: float) -> None:
        self._note("end")

    def fail(self, error: Exception) -> None:
        self.post(AttemptFailed(self.number, error))

    def commit(self, epoch: int, rows: int = 0, settled: bool = True) -> None:
        facts = CommittedEpoch(epoch, 0, 0, 0, (), rows, settled=settled)
        self._pretence.committed(facts, ())

    def _note(self, what: str) -> None:
        self._pretence.asked.append(f"{self.number} {what}")


class Run:
    """An engine over pretended attempts."""

    def __init__(
        self, pretence: Pretence, options: EngineOptions = QUICK, clock: Clock | None = None
    ) -> None:
        self.pretence = pretence
        self.closed, self.ended = threading.Event(), threading.Event()
        self.lost: QueryError | None = None
        self.files = MemoryFiles()
        self.bus = ListenerBus()
        opened: Any = SimpleNamespace(
            query_id=QUERY,
            run_id=RUN,
            options=options,
            sources=(),
            note=QueryNote(QUERY, RUN, None, (), "memory"),
            close=self.closed.set,
            ends=None,
            files=self.files,
            is_read=pretence.is_read,
            plans_epochs=pretence.plans_epochs,
            has_end=pretence.plans_epochs,
        )
        self.opened = opened
        self.engine = Engine(
            opened,
            pretence.prepare,
            lambda: self.lost,
            self.bus,
            lambda _: self.ended.set(),
            clock or SystemClock(),
        )

    @property
    def asked(self) -> list[str]:
        """What was asked of attempts."""
        return self.pretence.asked

    def failed(self) -> QueryFailedError:
        assert self.engine.wait(30)
        assert self.closed.is_set()
        assert self.engine.error is not None
        return self.engine.error


def started(*scripts: Callable[[Pretended], None], **options: Any) -> Run:
    run = Run(Pretence(*scripts), EngineOptions(**options) if options else QUICK)
    run.engine.start()
    return run


def boom(attempt: Pretended) -> None:
    attempt.fail(TaskFailedError(0, "ValueError: boom", "Traceback: ValueError: boom"))


def users_fault(attempt: Pretended) -> None:
    attempt.fail(TaskFailedError(0, "KeyError: 'price'", "File my_query.py", FailureKind.REPEATS))


def stand_by(attempt: Pretended) -> None:
    """Runs until somebody says something."""


STOPS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "it holds, then lets the tasks leave": ({}, ["hold", "finish"]),
    "it reads on to where offsets say all": ({"limits": 1}, ["hold", "limit", "finish"]),
    "before anything is read it ends the tasks at once": ({"reads": False}, ["hold"]),
    "it waits for tasks to start if the last run did not end on a boundary": (
        {"reads": False, "is_at_boundary": False, "will_read": True, "limits": 1},
        ["hold", "limit", "finish"],
    ),
    "if it takes too long the tasks are killed": (
        {"reads": False, "is_at_boundary": False},
        ["hold"],
    ),
}
"""How an attempt is, and what a stop asks of it."""


@pytest.mark.parametrize("case", STOPS)
def test_a_stop_ends_an_attempt_however_it_is(case: str) -> None:
    traits, asked = STOPS[case]

    def as_it_is(attempt: Pretended) -> None:
        for name, value in traits.items():
            setattr(attempt, name, value)

    pretence = Pretence(as_it_is)
    patience = timedelta(milliseconds=20 if "too long" in case else 20_000)
    run = Run(pretence, EngineOptions(stop_timeout=patience))
    run.engine.start()
    run.engine.stop()
    assert pretence.asked == [f"1 {each}" for each in ("start", *asked, "end")]
    assert (run.engine.error, run.engine.is_active) == (None, False)
    assert run.closed.is_set()
    assert run.ended.is_set()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_listener_that_interrupts_the_start_leaves_nothing_behind(
    stop: type[BaseException],
) -> None:
    class Interrupting(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None:
            raise stop

        onQueryProgress = onQueryTerminated = onQueryStarted

    before = threading.active_count()
    pretence = Pretence(stand_by)
    run = Run(pretence)
    run.bus.add(Interrupting())
    with pytest.raises(stop):
        run.engine.start()
    assert (run.closed.is_set(), run.engine.is_active) == (True, False)
    assert (pretence.asked, threading.active_count()) == ([], before)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watching thread looks for requests each time it wakes up."""
    monkeypatch.setattr(engine_module, "STOP_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(engine_module, "WATCH_SECONDS", 0.01)


def ask(files: MemoryFiles, run_id: str = RUN) -> None:
    request_stop(files, run_id, asked_by="a test", now_ms=0)


@pytest.mark.usefixtures("impatient")
def test_a_request_in_the_checkpoint_stops_as_stop_does() -> None:
    run = started(stand_by)
    ask(run.files)
    assert run.engine.wait(30)
    assert run.asked == ["1 start", "1 hold", "1 finish", "1 end"]
    assert (run.engine.error, run.closed.is_set()) == (None, True)


@pytest.mark.usefixtures("impatient")
def test_a_request_to_an_earlier_run_stops_nothing() -> None:
    pretence = Pretence(stand_by)
    run = Run(pretence)
    ask(run.files, "33333333-3333-3333-3333-333333333333")
    run.engine.start()
    assert not run.engine.wait(0.3)
    assert pretence.asked == ["1 start"]
    run.engine.stop()


@pytest.mark.usefixtures("impatient")
def test_a_request_during_recovery_is_obeyed_before_the_tasks_read() -> None:
    preparing, go_on = threading.Event(), threading.Event()

    class Slow(Pretence):
        def prepare(self, **given: Any) -> Any:
            if self.prepared:  # the second attempt
                preparing.set()
                assert go_on.wait(30)
                assert given["stopped"]()  # it need not wait for free slots
            return super().prepare(**given)

    pretence = Slow(boom, stand_by)
    run = Run(pretence)
    run.engine.start()
    assert preparing.wait(30)
    ask(run.files)
    eventually(run.engine._stop_asked.is_set)
    go_on.set()
    assert run.engine.wait(30)
    assert pretence.asked[-3:] == ["2 hold", "2 finish", "2 end"]
    assert run.engine.error is None


@pytest.mark.usefixtures("impatient")
def test_a_storage_that_fails_does_not_end_the_search_for_requests() -> None:
    looks: list[str] = []

    def down(operation: str, path: str) -> None:
        looks.append(f"{operation} {path}")
        if len(looks) < 3:
            raise StorageError("memory:", "down")

    run = Run(Pretence(stand_by))
    run.opened.files = FaultyFiles(run.files, down)
    run.engine.start()
    ask(run.files)
    assert run.engine.wait(30)
    assert looks == [f"info .epochal/stop/{RUN}"] * 3
    assert run.engine.error is None


@pytest.mark.usefixtures("impatient")
def test_requests_are_looked_for_by_the_clock_however_many_epochs_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "STOP_LOOK_SECONDS", 2.0)
    looks: list[str] = []
    clock = ManualClock()
    run = Run(Pretence(stand_by), clock=clock)
    run.opened.files = FaultyFiles(run.files, lambda operation, _path: looks.append(operation))

    def has_looked(times: int) -> bool:
        return len(looks) == times

    run.engine.start()
    attempt: Any = run.engine._attempt
    for turn in range(3):
        for epoch in range(100):
            attempt.commit(100 * turn + epoch, rows=1)
        assert len(looks) == turn
        clock.advance(2.0)
        eventually(partial(has_looked, turn + 1))
    run.engine.stop()
    assert looks == ["info"] * 3


def test_a_silent_host_costs_a_restart() -> None:
    def cut_off(attempt: Pretended) -> None:
        attempt.silent.append(HostSilentError({1: 10.4}, ["3"]))

    run = started(cut_off, stand_by)
    eventually(lambda: "2 start" in run.asked)
    run.engine.stop()
    assert (run.engine.state.restarts, run.engine.error) == (1, None)


def test_a_users_function_that_has_worked_ends_the_query_too() -> None:
    def after_some_rows(attempt: Pretended) -> None:
        attempt.commit(0, rows=1)
        users_fault(attempt)

    run = started(after_some_rows, stand_by)
    assert run.failed().cause == "KeyError: 'price'\nFile my_query.py"
    assert run.engine.state.restarts == 0


FULL = StorageError("/out", "the disk is full")


def full_disk(attempt: Pretended) -> None:
    attempt.fail(FULL)


def no_broker(attempt: Pretended) -> None:
    attempt.fail(KafkaUnavailableError("broker:9092", "no answer"))


def test_a_full_disk_ends_a_run_that_has_committed_nothing() -> None:
    run = started(full_disk, stand_by)
    assert run.failed().__cause__ is FULL


def test_an_outage_uses_up_no_restarts_and_the_status_says_so_until_a_commit() -> None:
    def work_until_it_is_full(attempt: Pretended) -> None:
        attempt.commit(0)
        full_disk(attempt)

    goes_on = threading.Event()

    def recover(attempt: Pretended) -> None:
        assert goes_on.wait(30)
        attempt.commit(1)

    pretence = Pretence(work_until_it_is_full, no_broker, boom, full_disk, recover)
    run = Run(pretence, EngineOptions(max_restarts=0, seed=1))
    run.engine.start()
    eventually(lambda: "5 start" in pretence.asked)
    waiting = run.engine.state
    goes_on.set()
    eventually(lambda: run.engine.state.committed == 1)
    run.engine.stop()
    assert run.engine.error is None
    assert (waiting.restarts, waiting.trouble.partition("UTC: ")[2]) == (4, str(FULL))
    assert run.engine.state.trouble == ""


def test_a_query_that_fails_again_and_again_ends_with_the_users_words() -> None:
    run = started(*[boom] * 9)
    error = run.failed()
    assert error.cause == "Traceback: ValueError: boom"
    assert isinstance(error.__cause__, TaskFailedError)
    assert run.asked.count("4 start") == 1  # the first, and three that got nowhere
    assert "5 start" not in run.asked


def test_the_end_of_the_job_is_a_failure_unless_tasks_were_let_go() -> None:
    def vanish(attempt: Pretended) -> None:
        attempt.post(JobEnded(attempt.number, None))

    run = started(vanish, max_restarts=0)
    assert "although the query was not stopped" in str(run.failed())


def test_a_tasks_own_words_are_preferred_to_sparks() -> None:
    def twice(attempt: Pretended) -> None:
        attempt.post(JobEnded(attempt.number, RuntimeError("stage failed")))
        boom(attempt)

    run = started(twice, max_restarts=0)
    assert run.failed().cause == "Traceback: ValueError: boom"


def test_news_of_an_earlier_attempt_changes_nothing() -> None:
    def late(attempt: Pretended) -> None:
        attempt.post(AttemptFailed(attempt.number - 1, RuntimeError("old")))
        attempt.post(JobEnded(attempt.number - 1, None))

    run = started(boom, late)
    eventually(lambda: "2 start" in run.asked)
    run.engine.stop()
    assert run.asked == ["1 start", "1 end", "2 start", "2 hold", "2 finish", "2 end"]


def test_new_partitions_end_the_epoch_and_start_another_attempt() -> None:
    def grow(attempt: Pretended) -> None:
        attempt.post(NewPartitions(("7",)))

    run = started(grow, stand_by)
    eventually(lambda: "2 start" in run.asked)
    run.engine.stop()
    assert run.asked[:5] == ["1 start", "1 hold", "1 finish", "1 end", "2 start"]
    assert run.engine.state.restarts == 0


@pytest.mark.parametrize("fatal", [PlanChangedError("p", "a", "b"), DriverLostError("gone")])
def test_what_a_restart_cannot_cure_ends_the_query_at_once(fatal: QueryError) -> None:
    pretence = Pretence(lambda attempt: attempt.fail(fatal))
    run = Run(pretence)
    run.engine.start()
    assert run.failed().__cause__ is fatal
    assert pretence.asked == ["1 start", "1 end"]


def test_a_lost_driver_is_no_reason_to_restart() -> None:
    run = started(stand_by)
    run.lost = DriverLostError("its process has ended")
    assert isinstance(run.failed().__cause__, DriverLostError)
    assert run.asked == ["1 start", "1 end"]


def test_the_first_preparation_is_raised_by_start_and_gives_the_checkpoint_up() -> None:
    pretence = Pretence()
    pretence.refusals = [TooFewSlotsError(5, 2, 2, 5.0)]
    run = Run(pretence)
    with pytest.raises(TooFewSlotsError):
        run.engine.start()
    assert run.closed.is_set()
    assert not run.engine.is_active
    assert pretence.asked == []


def test_a_later_preparation_that_fails_counts_as_a_failure() -> None:
    run = started(boom, stand_by)
    run.pretence.refusals = [TooFewSlotsError(2, 1, 1, 60.0)]
    eventually(lambda: "start" in " ".join(run.asked[2:]))
    run.engine.stop()
    assert run.engine.state.restarts in (1, 2)  # the refusal may have come too late


def test_waiting_for_the_end_of_an_endless_source_is_refused() -> None:
    run = Run(Pretence(stand_by))
    run.opened.sources = (SimpleNamespace(latest=lambda: None),)
    run.opened.note = QueryNote(QUERY, RUN, None, ("clock",), "memory")
    with pytest.raises(OptionError, match="clock"):
        run.engine.wait_until_read(1)


def test_a_run_over_what_is_available_ends_when_there_is_nothing_left_to_plan() -> None:
    def holds(attempt: Pretended) -> None:
        attempt.reads, attempt.epochs_left = False, 2
        attempt.post(ReadingHeld(3, ()))

    pretence = Pretence(holds)
    pretence.plans_epochs = True
    run = Run(pretence)
    run.engine.start()
    assert run.engine.wait(30)
    plans = ["1 plan after 3", "1 plan after 4", "1 plan after 5"]
    assert pretence.asked == ["1 start", *plans, "1 hold", "1 finish", "1 end"]
    assert run.engine.error is None


def test_such_a_run_with_nothing_to_read_starts_no_task() -> None:
    pretence = Pretence()
    pretence.all_read = True
    run = Run(pretence)
    run.engine.start()
    assert run.engine.wait(30)
    assert pretence.asked == []
