"""The engine's own world: numbered events, a running total per key, and checks of every row.

What may happen in it is in `tests.simulation.world`. At the end the sink shows every event
once, with totals that are right for each, and the state is what the output makes it. How that can
be told from one row to the next is in `pipeline`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation import world
from tests.simulation.pipeline import Account, RunningTotal, query, totals_of
from tests.simulation.simulated_driver import SimulatedDriver, visible

from epochal.checkpoint.entries import OffsetEntry
from epochal.connectors.contract import Positions
from epochal.continuous.operators.contract import Row
from epochal.continuous.plan.stages import QueryPlan
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.epoch.contract import LoggedSource
from epochal.epoch.coordinator import Phase
from epochal.epoch.epoch_files.state_chain import StateChain
from epochal.epoch.manifest import manifest_of
from epochal.errors import EpochalError
from epochal.testing.driver.processes import CHECKPOINT, CONF
from epochal.testing.driver.staged_sink import OUTPUT, StagingWriter
from epochal.testing.files import MemoryFiles

COMMITS = "checkpoint/commits"
MAX_WILD_ACTS = 400


@dataclass(slots=True)
class WorldSource(LoggedSource):
    """The driver's side of the events; its offsets name whole steps only."""

    acknowledges_in_tasks = False

    partitions: int
    rows: int
    step: int
    truth: MemoryFiles
    wrong: list[str]
    first: int = 0
    """The number of its first partition: those of two sources differ."""
    bound: int | None = None
    """Events of a partition per epoch, at most; None for as many as there are."""

    def initial(self) -> Positions:
        return {str(self.first + partition): "0" for partition in range(self.partitions)}

    def resume(self, offset: str) -> Positions:
        found: dict[str, str] = json.loads(offset)
        return found

    def offset(self, positions: Positions) -> str:
        return json.dumps({p: str(self._whole(int(at))) for p, at in positions.items()})

    def boundary(self, positions: Positions) -> Positions:
        return {p: str(self._next(int(at))) for p, at in positions.items()}

    def next_end(self, positions: Positions) -> Positions:
        """Where an epoch ends that is planned: always the same place for the same start."""
        bound = self.bound or self.rows
        return {
            p: str(min((int(at) // bound + 1) * bound, self.rows)) for p, at in positions.items()
        }

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        for path in (f"{COMMITS}/{epoch}", f"{OUTPUT}/{epoch}"):
            if self.truth.info(path) is None:
                self.wrong.append(f"epoch {epoch} was acknowledged without {path}")

    def _whole(self, at: int) -> int:
        return at if at == self.rows else at // self.step * self.step

    def _next(self, at: int) -> int:
        return min(-(-at // self.step) * self.step, self.rows)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the seed makes of a world."""

    tasks: int
    partitions: int
    rows: int
    keys: int
    per_read: int
    state_partitions: int
    stages: int
    decides: bool
    step: int
    faults: int
    wild_acts: int
    bound: int | None = None
    """Events of a partition per epoch; None if epochs are not planned."""

    @classmethod
    def drawn(cls, chance: random.Random, bound: int | None) -> Shape:
        return cls(
            bound=bound,
            tasks=chance.choice((1, 2, 2, 2, 3)),
            partitions=chance.choice((1, 2, 2, 3)),
            rows=chance.randint(3, 9),
            keys=chance.randint(1, 4),
            per_read=chance.randint(1, 3),
            state_partitions=chance.choice((1, 2, 3)),
            stages=0 if chance.random() < 0.1 else 1,
            decides=chance.random() < 0.25,
            step=chance.choice((1, 1, 3)),
            faults=chance.choice((0, 1, 2, 4, 6, 8)),
            wild_acts=chance.randint(40, MAX_WILD_ACTS),
        )

    @property
    def whole_bound(self) -> int | None:
        """The bound in events: whole steps, because an epoch ends where offsets say all."""
        return None if self.bound is None else self.bound * self.step


class World(world.World):
    """One run of everything, from one seed."""

    counts_totals = True
    """Whether the state follows from the output."""

    bounds: tuple[int | None, ...] = (None, None, 1, 2, 3)
    """Of which a world draws its bound; None if its epochs are not planned."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = random.Random(seed)
        # Drawn apart, so that worlds without planned epochs stay what they were.
        bound = random.Random(~seed).choice(self.bounds)
        self.shape = shape = Shape.drawn(chance, bound)
        self.plans_epochs = bound is not None
        self._oracle = random.Random(seed)
        self.gaps = 0
        """How often an entry of a retained epoch was missing in the log."""
        self._calm_since: tuple[int, int] | None = None
        """The attempt, and the epoch that was being read, when it grew calm."""
        self._known_ends: tuple[int, int] = (-1, 0)
        """The newest committed epoch, and how many events it and those before it hold."""
        super().__init__(chance, tasks=shape.tasks, faults=shape.faults, wild_acts=shape.wild_acts)

    @property
    def decides(self) -> bool:
        return self.shape.decides

    def _plan(self) -> QueryPlan:
        shape = self.shape
        return query(
            StagingWriter(self.truth, None),  # type: ignore[arg-type]
            rows=shape.rows,
            keys=shape.keys,
            state_partitions=shape.state_partitions,
            per_read=shape.per_read,
            stages=shape.stages,
            breathe=True,
        )

    def _sources(self) -> list[LoggedSource]:
        shape = self.shape
        return [
            WorldSource(
                *(shape.partitions, shape.rows, shape.step, self.truth, self.wrong),
                bound=shape.whole_bound,
            )
        ]

    def _next_ends(self, positions: Sequence[Positions]) -> Sequence[Positions]:
        return [s.next_end(at) for s, at in zip(self._sources(), positions, strict=True)]  # type: ignore[attr-defined]

    def _serve_tasks(self, driver: SimulatedDriver) -> None:
        with_rows = self._epoch_with_rows(driver)
        super()._serve_tasks(driver)
        self._check_news(driver, with_rows)

    def _epoch_with_rows(self, driver: SimulatedDriver) -> int | None:
        """The epoch that is being read, if a task has had rows of it for a while."""
        if driver.driver is None or driver.stopping or driver.paused:
            return None
        attempt, current = self._attempt(), driver.driver.coordinator.current
        if self._calm_since is None:
            self._calm_since = (attempt, current)
        if self._calm_since == (attempt, current):
            return None  # the news may have been lost before it was calm
        cores = [each.core for each in self.tasks.values() if each.attempt == attempt]
        return current if any(core and core._active == current for core in cores) else None

    def _check_news(self, driver: SimulatedDriver, with_rows: int | None) -> None:
        """The driver must have heard that the epoch has rows, or it would not end it soon."""
        if with_rows is not None and driver.driver is not None and driver.failure is None:
            coordinator = driver.driver.coordinator
            is_read = coordinator.phase is Phase.RUNNING and coordinator.current == with_rows
            if is_read and coordinator.is_idle:
                self.wrong.append(f"the driver does not know that epoch {with_rows} has rows")

    def _conclude_run(self, driver: SimulatedDriver) -> None:
        """A query that stops gracefully leaves offsets that say all."""
        super()._conclude_run(driver)
        entry = self._offsets().get_latest()
        if entry is not None:
            logged: dict[str, str] = {}
            for offset in entry[1].by_source.values():
                logged.update(driver.resources.sources[0].resume(str(offset)))
            if _positions(entry[1]) != logged:
                self.wrong.append(f"stopped at {_positions(entry[1])}, logged as {logged}")

    def _all_committed(self) -> bool:
        """Whether the newest committed epoch ends where the events do."""
        names = [int(info.name) for info in self.truth.list(f"{CHECKPOINT}/commits")]
        newest = max(names, default=-1)
        if newest > self._known_ends[0]:
            entry = self._offsets().get(newest)
            if entry is not None:
                self._known_ends = (newest, sum(map(int, _positions(entry).values())))
        return self._known_ends[1] == self.shape.rows * self.shape.partitions * len(
            self.plan.sources
        )

    def _check(self) -> None:
        shape = self.shape
        account = Account(shape.partitions, shape.rows, shape.keys, self.wrong)
        output = [row for rows in visible(self.truth).values() for row in rows]
        if not shape.stages:
            account.check_events(output)
            return
        latest = self._offsets().get_latest()
        assert latest is not None
        account.check_totals(output, self._state(latest[0] + 1))

    def _note_durable(self) -> None:
        """Whatever happens, the state of every retained decision is there and is right."""
        if self.plans_epochs:
            self._check_plans()
        if not self.counts_totals or self.wrong or self._oracle.randrange(4):
            return
        log = self._offsets()
        ids = log.batch_ids()
        committed = {int(info.name) for info in self.truth.list(f"{CHECKPOINT}/commits")}
        newest = max(committed, default=-1)
        kept = range(max(0, newest + 1 - self.retained), newest + 1)
        if missing := sorted(set(kept) - set(ids)):
            self.gaps += 1
            self.story.append(f"offsets of {missing} are not there")
        output = visible(self.truth)
        for epoch in sorted(set(ids) & set(range(kept.start, newest + 2))):
            entry = log.get(epoch)
            manifest = None if entry is None else manifest_of(entry, "offsets")
            if manifest is None or manifest.chain is None:
                continue  # the query has no state
            if self.shape.decides and epoch not in committed:
                continue  # the sink does not have it yet, and may never
            try:
                state = self._state(epoch + 1, manifest.chain)
            except (EpochalError, OSError) as error:
                self.wrong.append(f"the state after epoch {epoch} cannot be read: {error}")
                return
            if epoch in committed:
                rows = [row for each in output if each <= epoch for row in output[each]]
                if state != (expected := totals_of(rows)):
                    self.wrong.append(f"state after {epoch} is {state}, right is {expected}")
        self._check_published(committed, output)

    def _check_plans(self) -> None:
        """Every epoch ends where its plan says, whatever happened, or has nothing to read."""
        log = self._offsets()
        for epoch in log.batch_ids()[-2:]:
            entry, before = log.get(epoch), log.get(epoch - 1) if epoch else None
            if entry is None or (epoch and before is None):
                continue
            start = [source.initial() for source in self._sources()]
            if before is not None:
                start = _by_source(before)
            ends = _by_source(entry)
            plan = [dict(positions) for positions in self._next_ends(start)]
            if ends not in (plan, start):
                self.wrong.append(f"epoch {epoch} reads from {start} to {ends}, not to {plan}")

    def _check_published(self, committed: set[int], output: dict[int, list[Row]]) -> None:
        """A version that is whole under Spark's names is right, whoever wrote it and when."""
        if not self.shape.stages:
            return
        by_partition = [
            {info.name for info in self.truth.list(f"{CHECKPOINT}/state/0/{partition}")}
            for partition in range(self.shape.state_partitions)
        ]
        for name in sorted(set.intersection(*by_partition)):
            version, _, kind = name.partition(".")
            if kind == "snapshot" and int(version) - 1 in committed:
                rows = [row for each in output if each < int(version) for row in output[each]]
                state, expected = self._state(int(version)), totals_of(rows)
                if state != expected:
                    self.wrong.append(f"{name} has {state}, right is {expected}")

    def _state(self, version: int, chain: StateChain | None = None) -> dict[int, tuple[int, int]]:
        """As a decision names it; or as Spark would find it, under its plain names."""
        partitions = range(self.shape.state_partitions)
        operator = RunningTotal(partitions)
        files = self.truth.at(CHECKPOINT)
        stores = TaskStores(self.plan, partitions, files, CONF, attempt=0, run_id="", writers=1)
        stores.load([operator], StateStart(version, None, chain=chain))
        return {key: value for totals in operator.totals.values() for key, value in totals.items()}


def _by_source(entry: OffsetEntry) -> list[Positions]:
    manifest = manifest_of(entry, "offsets")
    assert manifest is not None
    return [dict(positions) for positions in manifest.positions]


def _positions(entry: OffsetEntry) -> dict[str, str]:
    return {name: at for positions in _by_source(entry) for name, at in positions.items()}
