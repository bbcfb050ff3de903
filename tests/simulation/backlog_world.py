"""The engine's own parts over a backlog: windows over partitions that wait, each in order.

Partitions span different event times, and a reader takes them one after the other, which is as
unlike their event times as it can be. What may go wrong is in `tests.simulation.world`; here
each attempt may also have another number of tasks. At the end every row is in a window that came
out, or in the state of one that is open: none was dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from tests.simulation import engine_world
from tests.simulation.engine_trees import Kept, longs
from tests.simulation.engine_world import WorldSource
from tests.simulation.pipeline import EventReader, EventReaders
from tests.simulation.simulated_driver import SimulatedDriver, visible

from epochal.connectors.contract import Positions
from epochal.continuous.operators.contract import Moment, StoreSchema
from epochal.continuous.operators.stateless.row_operators import ObserveEventTimeSpec
from epochal.continuous.plan.stages import (
    Branch,
    QueryPlan,
    SourcePlan,
    StagePlan,
    Target,
    Watermark,
)
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.epoch.contract import LoggedSource
from epochal.testing.driver.processes import CHECKPOINT, CONF
from epochal.testing.driver.staged_sink import StagingWriter

DELAY_MS = 10
WINDOW_MS = 20
TIMES = pa.schema([("window", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
COUNTS = pa.schema([("window", pa.int64()), ("rows", pa.int64())])


def time_ms(partition: int, index: int) -> int:
    """The event time of a row: in order within its partition, and each partition has its own."""
    return 100 + 35 * ((partition * 2) % 3) + index * (9 + 7 * partition)


class TimeReaders(EventReaders):
    """Opens readers of partitions whose rows all wait from the beginning."""

    def open(self, partitions: Positions) -> TimeReader:
        return TimeReader(self, {name: int(at) for name, at in partitions.items()})


class TimeReader(EventReader):
    """Reads the partitions one after the other."""

    last_read: tuple[str, ...] = ()

    def in_turn(self) -> list[str]:
        return sorted(self._positions)

    def batch(self, partition: int, indexes: range) -> pa.RecordBatch:
        self.last_read = (str(partition),)
        times = [time_ms(partition, index) for index in indexes]
        windows = [at - at % WINDOW_MS for at in times]
        stamps: Any = pa.array([at * 1000 for at in times], TIMES.field(1).type)
        return pa.RecordBatch.from_arrays([pa.array(windows, pa.int64()), stamps], schema=TIMES)

    def waiting(self) -> Positions:
        rows = self._plan.rows
        return {name: str(rows) for name, at in self._positions.items() if at < rows}


@dataclass(slots=True)
class TimeSource(WorldSource):
    """The driver's side; a unit may have few rows of each partition."""

    tells_waiting: bool = True
    most: int = 1_000

    def latest(self) -> Positions:
        return {name: str(self.rows) for name in self.initial()}

    def lag(self, positions: Positions, latest: Positions) -> int:
        return sum(int(end) - int(positions[name]) for name, end in latest.items())

    def unit_end(self, at: Positions, latest: Positions) -> Positions:
        return {name: str(min(int(end), int(at[name]) + self.most)) for name, end in latest.items()}


@dataclass(frozen=True, slots=True)
class CountSpec:
    """Rows per window, once the watermark has passed it."""

    name: str = "stateStoreSave"
    keys: tuple[tuple[str, ...], ...] = (("window",),)
    output_schema: pa.Schema = COUNTS
    stores: tuple[StoreSchema, ...] = (StoreSchema("default", longs("window"), longs("rows")),)

    def open(self, partitions: Sequence[int], state_partitions: int) -> Count:
        del state_partitions
        return Count(partitions)


class Count(Kept):
    """The open windows of some partitions."""

    late_rows = 0

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        del side
        starts: list[Any] = batch.column(0).to_pylist()
        timely = [(each,) for each in starts if each + WINDOW_MS > at.late_ms]
        self.late_rows += len(starts) - len(timely)
        rows = self.rows[partition]
        for window in timely:
            rows[window] = (rows.get(window, (0,))[0] + 1,)
        self.changed[partition].update(timely)
        return ()

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        for partition, rows in self.rows.items():
            closed = sorted(each for each in rows if each[0] + WINDOW_MS <= at.watermark_ms)
            if closed:
                self.changed[partition].update(closed)
                counts = [rows.pop(each)[0] for each in closed]
                windows = [each[0] for each in closed]
                columns = [pa.array(windows, pa.int64()), pa.array(counts, pa.int64())]
                yield pa.RecordBatch.from_arrays(columns, schema=COUNTS)


class BacklogWorld(engine_world.World):
    """One run of everything, from one seed."""

    counts_totals = False

    def _plan(self) -> QueryPlan:
        shape = self.shape
        self.most = self.chance.choice((1_000, 1_000, 1, 2))
        observe = ObserveEventTimeSpec(0, "at")
        source = SourcePlan(
            TimeReaders(shape.rows, keys=0, per_read=shape.per_read, breathe=True),
            TIMES,
            (Branch((observe,), Target(0)),),
        )
        return QueryPlan(
            sources=(source,),
            watermarks=(Watermark(0, "at", DELAY_MS),),
            stages=(StagePlan(0, CountSpec(), (TIMES,), (), Target(1)),),
            writers=StagingWriter(self.truth, None),  # type: ignore[arg-type]
            output_schema=COUNTS,
            state_partitions=shape.state_partitions,
            watermarks_move=self.chance.choice(("turn", "epoch")),
        )

    def _sources(self) -> list[LoggedSource]:
        shape = self.shape
        place = shape.partitions, shape.rows, 1, self.truth, self.wrong
        return [TimeSource(*place, most=self.most)]

    def _attempt_with(self, driver: SimulatedDriver) -> None:
        self.task_count = self.chance.choice((1, self.shape.tasks, self.shape.tasks))
        super()._attempt_with(driver)

    def _check(self) -> None:
        shape = self.shape
        due = Counter(
            at - at % WINDOW_MS
            for partition in range(shape.partitions)
            for at in (time_ms(partition, index) for index in range(shape.rows))
        )
        got = self._windows()
        came_out = [row for table in visible(self.truth).values() for row in table]
        for window, rows in came_out:
            if window in got:
                self.wrong.append(f"window {window} came out, and again later")
            got[window] += rows
        if got != due:
            self.wrong.append(f"dropped {sorted((due - got).items())}, twice {got - due}")

    def _windows(self) -> Counter[int]:
        """The open windows, as Spark would find them or as the last decision names them."""
        latest = self._offsets().get_latest()
        assert latest is not None
        partitions = range(self.shape.state_partitions)
        operator, files = Count(partitions), self.truth.at(CHECKPOINT)
        stores = TaskStores(self.plan, partitions, files, CONF, attempt=0, run_id="", writers=1)
        stores.load([operator], StateStart(latest[0] + 1, None))
        return Counter(
            {key[0]: row[0] for rows in operator.rows.values() for key, row in rows.items()}
        )
