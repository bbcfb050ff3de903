"""Backlogs of several partitions: rows that wait and are in order are never dropped as late.

A world is a query over partitions in which rows wait, each in the order of its event times. Tasks
read them in any interleaving, epochs end anywhere, rows keep coming, and the query crashes and
starts again with other tasks, at whatever its last decision says. The rules are the engine's own;
only tasks, sources and logs are the world's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from tests.simulation.backlog_world import BacklogWorld

from epochal.continuous.tasks.task import TaskCore
from epochal.epoch.event_time import units
from epochal.epoch.event_time.query_watermark import QueryWatermark, watermark_of
from epochal.epoch.event_time.units import UnitMark, Units
from epochal.epoch.messages import ReaderWaits

DELAY_MS = 20
SEEDS = 2_000
SEEDS_PER_FAULT = 400


@dataclass(slots=True)
class Partition:
    """Event times in order, and how many of them have come."""

    times_ms: list[int]
    come: int
    position: int = 0


@dataclass(slots=True)
class Decision:
    """What a restart finds in the log."""

    positions: tuple[str, ...]
    highs: tuple[int, ...] = (-1,)
    own_ms: int = 0
    next_ms: int = 0
    unit: UnitMark | None = None
    counted: tuple[int, ...] = (-1,)
    """What counted by the rules; no restart may take more for it."""


@dataclass(slots=True)
class World:
    """One query, from one seed."""

    seed: int
    chance: random.Random = field(init=False)
    partitions: list[Partition] = field(init=False)
    log: Decision = field(init=False)
    waited: list[int] = field(init=False)
    """How many rows of each partition had come when reading began."""
    began_ms: int = 0
    """The watermark then, or of the next epoch. What a partition brings below it after it was read
    to its end is late, as in Spark."""
    bound: int = 0
    """How many rows of a partition a unit has at most; 0 for all that wait."""
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = chance = random.Random(self.seed)
        self.partitions = []
        for _ in range(chance.randint(1, 4)):
            count, start = chance.randint(0, 40), chance.randint(0, 300)
            times = [start]
            for _ in range(count):
                times.append(times[-1] + chance.randint(0, 30))
            self.partitions.append(Partition(times[1:], chance.randint(0, count)))
        self.log = Decision(("0",) * len(self.partitions))
        self.waited = [0] * len(self.partitions)
        self.bound = chance.choice((0, 0, 1, 5))

    # What `Places` asks.

    def tells(self, reader: int) -> bool:
        return True

    def is_behind(self, reader: int, position: str, end: str) -> bool:
        return int(position) < int(end)

    def shared_ends(self, positions: Sequence[str]) -> Mapping[int, str]:
        return {}

    @property
    def share_ends(self) -> bool:
        return False

    def bounded(self, positions: Sequence[str], ends: Mapping[int, str]) -> Mapping[int, str]:
        most = self.bound or 1_000
        return {r: str(min(int(e), int(positions[r]) + most)) for r, e in ends.items()}

    def is_last(self, reader: int, position: str) -> bool:
        return False

    # How it goes.

    def run(self) -> list[str]:
        crashes = self.chance.randint(0, 3)
        for _ in range(crashes):
            self._attempt(self.chance.randint(0, 12))
        self._attempt(None)
        return self.wrong

    def _attempt(self, epochs: int | None) -> None:
        """Run so many epochs and crash; or to the end of everything."""
        log, own = self.log, [-1] * len(self.partitions)
        for each, position in zip(self.partitions, log.positions, strict=True):
            each.position = int(position)
        self.waited = [each.come for each in self.partitions]
        self.began_ms = watermark_of(log.counted, (DELAY_MS,), log.next_ms)
        asked = {n: str(each.come) for n, each in enumerate(self.partitions)}
        at = [str(each.position) for each in self.partitions]
        ends = {n: end for n, end in asked.items() if self.is_behind(n, at[n], end)}
        unit = log.unit or UnitMark(log.highs, self.bounded(at, ends))
        watermark = QueryWatermark(
            first_epoch=1,
            highs=log.highs,
            delays_ms=(DELAY_MS,),
            watermark_ms=log.next_ms,
            late_ms=log.own_ms,
            moves="epoch",
            units=Units(self, highs=log.highs, counted=unit.counted, ends=unit.ends),
        )
        undecided: list[tuple[int, int, tuple[str, ...], list[ReaderWaits]]] = []
        epoch, quiet = 1, 0
        while quiet < 6 and (epochs is None or epoch <= epochs):
            read = self._read(dict(watermark.in_flight())[epoch - 1], own, epochs is None)
            high = max((self.partitions[n].times_ms[i] for n, i in read), default=-1)
            waits = [
                ReaderWaits(n, str(each.come), (own[n],))
                for n, each in enumerate(self.partitions)
                if each.position < each.come
            ]
            positions = tuple(str(each.position) for each in self.partitions)
            undecided.append((epoch, high, positions, waits))
            epoch += 1
            watermark.start(epoch)
            while len(undecided) > 2 or (undecided and self.chance.random() < 0.7):
                self._decide(watermark, *undecided.pop(0))
            is_read = all(each.position == len(each.times_ms) for each in self.partitions)
            quiet = quiet + 1 if is_read and not undecided else 0
        if epochs is None:
            seen = max((t for each in self.partitions for t in each.times_ms), default=-1)
            expected = max(0, watermark_of((seen,), (DELAY_MS,), 0))
            if self.log.next_ms != expected:
                self.wrong.append(f"the watermark ends at {self.log.next_ms}, not at {expected}")

    def _read(self, late_ms: int, own: list[int], calm: bool) -> list[tuple[int, int]]:
        """Read rows of any partitions; return (partition, index) of each."""
        read: list[tuple[int, int]] = []
        for _ in range(self.chance.randint(0, 3)):
            number = self.chance.randrange(len(self.partitions))
            each = self.partitions[number]
            for index in range(each.position, min(each.come, each.position + 7)):
                time_ms = each.times_ms[index]
                waited = index < self.waited[number] and time_ms > self.began_ms
                if waited and time_ms <= late_ms:
                    self.wrong.append(f"row {index} of {number}, of {time_ms}, was late: {late_ms}")
                read.append((number, index))
                each.position = index + 1
                own[number] = max(own[number], time_ms)
        for each in self.partitions:
            if self.chance.random() < (0.9 if calm else 0.2):
                each.come = min(len(each.times_ms), each.come + self.chance.randint(0, 3))
        return read

    def _decide(
        self,
        watermark: QueryWatermark,
        epoch: int,
        high: int,
        positions: tuple[str, ...],
        waits: list[ReaderWaits],
    ) -> None:
        marks = watermark.decide(epoch, [(high,)], positions, waits)
        if not self.log.own_ms <= marks.own_ms or marks.next_ms < marks.own_ms:
            self.wrong.append(f"the watermark goes back from {self.log.next_ms} to {marks}")
        spark_ms = max(0, watermark_of(marks.highs, (DELAY_MS,), 0))
        if marks.next_ms > spark_ms:
            self.wrong.append(f"Spark's watermark would be {spark_ms}, ours is {marks.next_ms}")
        self.log = Decision(
            positions, marks.highs, marks.own_ms, marks.next_ms, marks.unit, watermark.units.counted
        )


def test_no_row_is_dropped_that_waits_in_order() -> None:
    assert {seed: wrong for seed in range(SEEDS) if (wrong := World(seed).run())} == {}


Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]


def follow_the_highest_of_all(patch: pytest.MonkeyPatch) -> None:
    """The watermark follows the highest event time of all partitions."""

    def take(
        self: Units, positions: Sequence[str], waits: Sequence[ReaderWaits], highs: Sequence[int]
    ) -> None:
        del positions, waits
        self._seen = self.counted = tuple(highs)

    patch.setattr(Units, "take", take)


def forget_partitions(patch: pytest.MonkeyPatch) -> None:
    """After a unit all event times count, although rows wait behind it."""
    real = Units._count
    patch.setattr(Units, "_count", lambda self, highs, waiting: real(self, highs, []))


def forget_units(patch: pytest.MonkeyPatch) -> None:
    """Readers that have not begun hold nothing."""

    def count(self: Units, highs: Sequence[int], waiting: Sequence[ReaderWaits]) -> None:
        begun = [each for each in waiting if min(each.highs) >= 0]
        real(self, highs, begun)

    real = Units._count
    patch.setattr(Units, "_count", count)


def forget_the_unit_in_the_log(patch: pytest.MonkeyPatch) -> None:
    """A restart takes all event times that were seen for the ones that count."""
    patch.setattr(Units, "mark", property(lambda self: None))


PLANTED: dict[str, Plant] = {
    "the watermark follows the highest event time of all partitions": follow_the_highest_of_all,
    "rows behind a unit do not hold the watermark": forget_partitions,
    "a reader that has not begun does not hold the watermark": forget_units,
    "a restart does not find the unit": forget_the_unit_in_the_log,
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[fault](monkeypatch)
    assert any(World(seed).run() for seed in range(SEEDS_PER_FAULT))


def test_nothing_holds_less_than_a_reader_of_another_column() -> None:
    assert units.HOLDS_NOTHING > 253_402_300_799_999  # the end of Spark's timestamps, in ms


# The same with the engine's own tasks and driver.

ENGINE_SEEDS = 60


def test_the_engine_drops_no_row_that_waits_in_order() -> None:
    worlds = {seed: BacklogWorld(seed).run() for seed in range(ENGINE_SEEDS)}
    assert {seed: wrong for seed, wrong in worlds.items() if wrong} == {}


def let_tasks_run_ahead(patch: pytest.MonkeyPatch) -> None:
    """A task sends the highest event time that it has seen, whatever waits in its sources."""
    never = property(lambda self: False, lambda self, to: None)
    patch.setattr(TaskCore, "_are_waiting", never, raising=False)
    patch.setattr(Units, "is_held", property(lambda self: False))


ENGINE_PLANTED: dict[str, Plant] = {
    "the watermark follows the highest event time of all partitions": follow_the_highest_of_all,
    "tasks move the watermark while rows wait": let_tasks_run_ahead,
    "a restart does not find the unit": forget_the_unit_in_the_log,
}


@pytest.mark.parametrize("fault", ENGINE_PLANTED)
def test_a_fault_that_is_planted_in_the_engine_is_found(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ENGINE_PLANTED[fault](monkeypatch)
    assert any(BacklogWorld(seed).run() for seed in range(2 * ENGINE_SEEDS))
