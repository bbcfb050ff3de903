"""When epochs are planned and where they end, and how the plan of an open query is shown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.continuous.plan.plans import ROWS, TimedJoin, planned, source, state

from epochal.connectors.contract import Source
from epochal.connectors.file.file_source import FileSource, FileSourceOptions
from epochal.connectors.generator import GeneratorSource
from epochal.continuous.plan.logical import Node, Union
from epochal.continuous.run.open_query import Opened
from epochal.continuous.run.planned_epochs import LOOK_SECONDS, PlannedEpochs
from epochal.continuous.run.progress import QueryNote
from epochal.continuous.run.query_settings import EngineOptions
from epochal.continuous.run.query_spec import QueryDefinition
from epochal.continuous.run.run_events import AllRead
from epochal.epoch.effects import ReadingHeld
from epochal.errors import KafkaUnavailableError, OptionError
from epochal.files.local import LocalFiles
from epochal.testing.clock import ManualClock

HELD = ReadingHeld(7, ("0",))
PACE = 2.0


class World:
    """An attempt that says whether there is an epoch to plan, and what became of it."""

    is_planned = False

    def __init__(self, *answers: bool | Exception, has_end: bool = False) -> None:
        self.answers, self.plans = list(answers), 0
        self.posted: list[Any] = []
        self.shown: list[str] = []
        self.clock = ManualClock()
        self.opened: Any = SimpleNamespace(
            plans_epochs=True,
            has_end=has_end,
            options=SimpleNamespace(epoch=timedelta(seconds=PACE)),
        )

    def plan(self, held: ReadingHeld) -> bool:
        assert held == HELD
        self.plans += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def hold(self) -> bool:
        return True

    def show(self, *, degraded: str) -> None:
        self.shown.append(degraded)

    def epochs(self) -> PlannedEpochs:
        attempt: Any = self
        return PlannedEpochs(attempt, self.opened, self.clock, self.posted.append, self.show)


def test_the_next_epoch_begins_at_the_pace_of_epochs() -> None:
    world = World(True, True)
    epochs = world.epochs()
    epochs.take(HELD)
    assert (world.plans, epochs.due) == (1, None)
    began = world.clock.monotonic()
    world.clock.advance(0.5)
    epochs.take(HELD)
    assert (world.plans, epochs.due) == (1, began + PACE)
    world.clock.advance(PACE - 0.5)
    epochs.plan()
    assert (world.plans, epochs.due) == (2, None)


def test_a_run_with_an_end_does_not_wait_and_says_when_nothing_is_left() -> None:
    world = World(True, True, False, has_end=True)
    epochs = world.epochs()
    for _ in range(3):
        assert world.posted == []
        epochs.take(HELD)
    assert (world.plans, world.posted, epochs.due) == (3, [AllRead()], None)


def test_while_there_is_nothing_to_read_the_sources_are_asked_now_and_then() -> None:
    world = World(False, False, True)
    epochs = world.epochs()
    epochs.take(HELD)
    for _ in range(2):
        assert epochs.due == world.clock.monotonic() + LOOK_SECONDS
        world.clock.advance(LOOK_SECONDS)
        epochs.plan()
    assert (world.plans, world.posted, epochs.due) == (3, [], None)


def test_a_source_that_cannot_be_asked_is_shown_once_and_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    down = KafkaUnavailableError("k:9092", "refused")
    world = World(down, down, True)
    epochs = world.epochs()
    epochs.take(HELD)
    for _ in range(2):
        world.clock.advance(LOOK_SECONDS)
        epochs.plan()
    assert world.shown == [str(down), ""]
    assert len(caplog.messages) == 1


def test_after_a_hold_nothing_is_planned_and_the_held_reading_is_passed_on() -> None:
    world = World(False)
    epochs = world.epochs()
    epochs.take(HELD)
    assert (epochs.plans, epochs.hold(), epochs.plans) == (True, True, False)
    assert (world.posted, epochs.due) == ([HELD], None)
    world.clock.advance(60.0)
    epochs.plan()
    assert (world.plans, epochs.due) == (1, None)


def opened_query(
    tree: Node, *names: str, sources: Sequence[Source] = (), **options: bool
) -> Opened:
    missing = cast(Any, None)
    return Opened(
        query_id="q",
        run_id="r",
        definition=QueryDefinition(tree, missing, EngineOptions(**options)),  # type: ignore[arg-type]
        files=missing,
        guard=missing,
        sources=tuple(sources),
        sink=missing,
        plan=planned(tree),
        note=QueryNote("q", "r", None, names, "console"),
        server=missing,
        settings={},
        state_conf=missing,
    )


def explained(tree: Node, *sources: str) -> list[str]:
    opened = opened_query(tree, *sources)
    opened.settle_partitions(4)
    return opened.explanation().split("\n")[1:]


def test_in_a_tree_each_line_says_where_it_leads() -> None:
    join = state(1, source(0), source(1), spec=TimedJoin())
    assert explained(Union((state(0, join), source(0)), ROWS), "kafka", "rate") == [
        "source 0: kafka -> exchange to state 1, input 0",
        "source 0: kafka -> sink",
        "source 1: rate -> exchange to state 1, input 1",
        "exchange -> state 1: symmetricHashJoin by (key) and (key), 4 partitions"
        " -> exchange to state 0",
        "exchange -> state 0: stateStoreSave by (key), 4 partitions -> sink",
        "sink: console",
    ]


def two_files(home: Path, **bound: int) -> FileSource:
    (home / "in").mkdir()
    for name in "ab":
        (home / "in" / name).write_text("x\n")
    options = FileSourceOptions(path=str(home / "in"), **bound)  # type: ignore[arg-type]
    return FileSource("text", options, None, LocalFiles(home / "ck"), 0, watch=False)


def begun(opened: Opened) -> list[Any]:
    start = [source.initial() for source in opened.sources]
    opened.find_ends(start)
    return start


@pytest.mark.parametrize(
    ("options", "reason"),
    [({}, "another source of the query has a bound"), ({"available_now": True}, "availableNow")],
)
def test_a_source_that_cannot_tell_its_end_cannot_be_planned(
    tmp_path: Path, options: dict[str, bool], reason: str
) -> None:
    endless = GeneratorSource(ROWS, lambda _partition, _start: iter(()))
    sources = (two_files(tmp_path, max_files_per_trigger=1), endless)
    with pytest.raises(OptionError, match=f"Source numbers cannot tell .*{reason}"):
        begun(opened_query(source(0), "files", "numbers", sources=sources, **options))
