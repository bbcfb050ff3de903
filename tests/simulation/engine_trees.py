"""A world whose query is a tree: joins, unions, a source that is read twice, epoch watermarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from tests.simulation.engine_world import World, WorldSource
from tests.simulation.pipeline import EVENTS, LONG, EventReaders, event
from tests.simulation.simulated_driver import visible

from epochal.checkpoint.entries import CommitLog
from epochal.connectors.contract import WriterFactory
from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.continuous.plan.compile import compile_plan, sources_of
from epochal.continuous.plan.logical import Node, Stateful, Step, StreamSource, Union, Watermarked
from epochal.continuous.plan.stages import QueryPlan
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.epoch.event_time.query_watermark import watermark_of
from epochal.epoch.manifest import manifest_of
from epochal.state.rows.types import StructField, StructType
from epochal.testing.driver.processes import CHECKPOINT, CONF
from epochal.testing.driver.staged_sink import StagingWriter

TIMED = EVENTS.append(pa.field("time", pa.timestamp("us", "UTC")))
OUT = pa.schema([(name, pa.int64()) for name in ("key", "what", "left", "right")])
WINDOW_MS, DELAY_MS = 5_000, 3_000
PARTITIONS_PER_SOURCE = 10
"""Partition 12 is the third one of source 1."""

HELD_MS = 2_001
"""How far the watermark that a join passes on is behind that of its input."""

KINDS = ("join", "sink", "stage", "twice", "chain")


def time_ms(event_id: int) -> int:
    """The event time of an event: every third one comes 7 s late."""
    partition, index = divmod(event_id, 1_000_000)
    return 10_000 + index * 2_000 + partition % 10 * 300 - (7_000 if index % 3 == 2 else 0)


def window_end(ms: int) -> int:
    return (ms // WINDOW_MS + 1) * WINDOW_MS


def longs(*names: str) -> StructType:
    return StructType(tuple(StructField(name, LONG) for name in names))


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    return list(zip(*batch.to_pydict().values(), strict=True))


def batches(rows: Sequence[Row]) -> list[pa.RecordBatch]:
    if not rows:
        return []
    columns = [pa.array(list(column), pa.int64()) for column in zip(*rows, strict=True)]
    return [pa.RecordBatch.from_arrays(columns, schema=OUT)]


@dataclass(frozen=True, slots=True)
class Stamp:
    """Adds the event time."""

    def open(self) -> Stamp:
        return self

    def process(self, batch: pa.RecordBatch, at: Moment) -> list[pa.RecordBatch]:
        ids: list[Any] = batch.column(1).to_pylist()
        times = pa.array([1000 * time_ms(each) for each in ids], pa.timestamp("us", "UTC"))
        return [pa.RecordBatch.from_arrays([*batch.columns, times], schema=TIMED)]


@dataclass(frozen=True, slots=True)
class AsOutput:
    """Events in the form of output rows: (key, id, amount, -1)."""

    def open(self) -> AsOutput:
        return self

    def process(self, batch: pa.RecordBatch, at: Moment) -> list[pa.RecordBatch]:
        return batches([(key, event_id, amount, -1) for key, event_id, amount, _ in rows_of(batch)])


class Kept:
    """State as rows by partition."""

    def __init__(self, partitions: Sequence[int]) -> None:
        self.rows: dict[int, dict[Row, Row]] = {p: {} for p in partitions}
        self.changed: dict[int, set[Row]] = {p: set() for p in partitions}

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        self.rows[partition] = dict(rows)

    def due_ms(self) -> int | None:
        return None

    def cut(self, epoch: int) -> list[StateChanges]:
        found = []
        for partition, changed in self.changed.items():
            rows = self.rows[partition]
            puts = [(key, rows[key]) for key in sorted(changed) if key in rows]
            removes = [key for key in sorted(changed) if key not in rows]
            found.append(StateChanges("default", partition, puts, removes, len(rows)))
            self.changed[partition] = set()
        return found


@dataclass(frozen=True, slots=True)
class WindowsSpec:
    """Sums of amounts per key and window, on each side; a row when the watermark passes it."""

    sides: int = 1
    name: str = "symmetricHashJoin"
    output_schema: pa.Schema = OUT
    stores: tuple[StoreSchema, ...] = (
        StoreSchema("default", longs("key", "end"), longs("left", "right")),
    )

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        return (("key",),) * self.sides

    def open(self, partitions: Sequence[int], state_partitions: int) -> Windows:
        return Windows(partitions)


@dataclass(frozen=True, slots=True)
class HoldingSpec(WindowsSpec):
    """Passes on a lower watermark than it takes, as a join with a time range does."""

    def output_watermark_ms(self, input_ms: int) -> int:
        return input_ms - HELD_MS


@dataclass(frozen=True, slots=True)
class PastSpec(WindowsSpec):
    """Keeps closed windows until its own watermark passes their end."""

    def open(self, partitions: Sequence[int], state_partitions: int) -> Past:
        return Past(partitions)


class Windows(Kept):
    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> list[pa.RecordBatch]:
        rows = self.rows[partition]
        for key, event_id, amount, _ in rows_of(batch):
            add_to_window(rows, key, event_id, amount, side, at.late_ms)
            self.changed[partition].update(each for each in rows if each[0] == key)
        return []

    def expire(self, at: Moment) -> list[pa.RecordBatch]:
        closed = []
        for partition, rows in self.rows.items():
            for row in close_windows(rows, at.watermark_ms):
                self.changed[partition].add(row[:2])
                closed.append(row)
        return batches(closed)


class Past(Windows):
    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> list[pa.RecordBatch]:
        for row in rows_of(batch):
            if row[1] > at.late_ms:
                self.rows[partition][row[:2]] = row[2:]
                self.changed[partition].add(row[:2])
        return []


def add_to_window(
    rows: dict[Row, Row], key: int, event_id: int, amount: int, side: int, late_ms: int
) -> None:
    end = window_end(time_ms(event_id))
    if end > late_ms:
        sums = list(rows.get((key, end), (0, 0)))
        sums[side] += amount
        rows[key, end] = tuple(sums)


def close_windows(rows: dict[Row, Row], watermark_ms: int) -> list[Row]:
    closed = [key for key in rows if key[1] <= watermark_ms]
    return [(*key, *rows.pop(key)) for key in sorted(closed)]


@dataclass(frozen=True, slots=True)
class TotalsSpec:
    """Number and sum of rows per key; a row for each key that changed, at the epoch's end."""

    name: str = "stateStoreSave"
    keys: tuple[tuple[str, ...], ...] = (("key",),)
    output_schema: pa.Schema = OUT
    stores: tuple[StoreSchema, ...] = (
        StoreSchema("default", longs("key"), longs("count", "total")),
    )

    def open(self, partitions: Sequence[int], state_partitions: int) -> Totals:
        return Totals(partitions)


class Totals(Kept):
    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> list[pa.RecordBatch]:
        for row in rows_of(batch):
            add_to_total(self.rows[partition], row)
            self.changed[partition].add(row[:1])
        return []

    def expire(self, at: Moment) -> list[pa.RecordBatch]:
        return batches(
            [
                (*key, at.epoch, *self.rows[partition][key])
                for partition, changed in self.changed.items()
                for key in sorted(changed)
            ]
        )


def add_to_total(rows: dict[Row, Row], row: Row) -> None:
    count, total = rows.get(row[:1], (0, 0))
    rows[row[:1]] = (count + 1, total + row[1] + row[2])


def tree_of(kind: str) -> Node:
    """Windows over source 0, and a second input, which differs."""

    def timed(number: int, watermark: bool = True) -> Node:
        source = StreamSource(number, "events", {}, None, EVENTS, f"source {number}")
        stamped = Step(source, Stamp(), TIMED)
        return Watermarked(stamped, "time", DELAY_MS) if watermark else stamped

    def output(node: Node) -> Node:
        return Step(node, AsOutput(), OUT)

    match kind:
        case "join":
            return Stateful((timed(0), timed(1)), 0, WindowsSpec(2))
        case "chain":
            held = Stateful((timed(0), timed(1)), 1, HoldingSpec(2))
            return Stateful((held,), 0, PastSpec())
        case "sink":
            return Union((Stateful((timed(0),), 0, WindowsSpec()), output(timed(1, False))), OUT)
        case "stage":
            both = Union((Stateful((timed(0),), 1, WindowsSpec()), output(timed(1))), OUT)
            return Stateful((both,), 0, TotalsSpec())
        case "twice":
            return Union((output(timed(0, False)), Stateful((timed(0),), 0, WindowsSpec())), OUT)
    raise AssertionError(kind)


def tree_plan(
    kind: str, writers: WriterFactory, readers: EventReaders, state_partitions: int
) -> QueryPlan:
    """The plan of a query of this kind."""
    tree = tree_of(kind)
    opened: Any = [
        SimpleNamespace(readers=readers, acknowledges_in_tasks=False) for _ in sources_of(tree)
    ]
    plan = compile_plan(tree, opened, watermarks_move="epoch")
    return replace(plan, writers=writers, state_partitions=state_partitions)


@dataclass(slots=True)
class Model:
    """The query by hand."""

    kind: str
    keys: int
    windows: dict[Row, Row] = field(default_factory=dict)
    totals: dict[Row, Row] = field(default_factory=dict)
    past: dict[Row, Row] = field(default_factory=dict)
    highs: dict[int, int] = field(default_factory=dict)
    """Highest event time by source."""

    def run(self, epoch: int, ids: Iterable[int], late_ms: int, watermark_ms: int) -> Counter[Row]:
        """What an epoch that read these events puts out."""
        made: list[Row] = []
        for event_id in ids:
            partition, index = divmod(event_id, 1_000_000)
            key, _, amount = event(partition, index, self.keys)
            source = partition // PARTITIONS_PER_SOURCE
            self.highs[source] = max(self.highs.get(source, -1), time_ms(event_id))
            if source == 0 or self.kind in ("join", "chain"):
                add_to_window(self.windows, key, event_id, amount, source, late_ms)
            if source == 1 or self.kind == "twice":
                joins = self.kind in ("join", "chain")
                made += [] if joins else [(key, event_id, amount, -1)]
        made += close_windows(self.windows, watermark_ms)
        if self.kind == "chain":
            self.past |= {row[:2]: row[2:] for row in made if row[1] > max(0, late_ms - HELD_MS)}
            return Counter(close_windows(self.past, max(0, watermark_ms - HELD_MS)))
        if self.kind != "stage":
            return Counter(made)
        for row in made:
            add_to_total(self.totals, row)
        changed = {row[:1] for row in made}
        return Counter((*key, epoch, *self.totals[key]) for key in changed)

    def highest_watermark(self) -> int:
        """What the watermark may be after these epochs."""
        marked = (0,) if self.kind in ("sink", "twice") else (0, 1)
        highs = [self.highs.get(source, -1) for source in marked]
        return watermark_of(highs, [DELAY_MS] * len(highs), 0)

    def state(self) -> dict[int, Mapping[Row, Row]]:
        """By operator."""
        if self.kind == "stage":
            return {0: self.totals, 1: self.windows}
        if self.kind == "chain":
            return {0: self.past, 1: self.windows}
        return {0: self.windows}


class TreeWorld(World):
    """One run of a tree, from one seed."""

    retained = 100_000  # the logs of all epochs are needed to compute what the sink must show
    counts_totals = False
    kind: str

    def _plan(self) -> QueryPlan:
        shape = self.shape
        self.kind = self.chance.choice(KINDS)
        readers = EventReaders(shape.rows, shape.keys, shape.per_read, breathe=True)
        writers: Any = StagingWriter(self.truth, None)  # type: ignore[arg-type]
        return tree_plan(self.kind, writers, readers, shape.state_partitions)

    def _sources(self) -> list[Any]:
        shape, files = self.shape, self.truth
        return [
            WorldSource(
                shape.partitions,
                shape.rows,
                shape.step,
                files,
                self.wrong,
                number * PARTITIONS_PER_SOURCE,
                # Only the first source has a bound; the others are read to their end.
                None if number else shape.whole_bound,
            )
            for number in range(len(self.plan.sources))
        ]

    def _all_committed(self) -> bool:
        """Whether everything was read, and the windows closed that its watermark closes."""
        if not super()._all_committed():
            return False
        entry = self._offsets().get(self._known_ends[0])
        model = Model(self.kind, self.shape.keys)
        model.run(0, self._ids({}, self._everything()), -1, -1)
        return entry is not None and entry.watermark_ms == model.highest_watermark()

    def _everything(self) -> dict[str, str]:
        return {
            name: str(self.shape.rows) for source in self._sources() for name in source.initial()
        }

    def _ids(self, start: dict[str, str], end: dict[str, str]) -> list[int]:
        return [
            int(name) * 1_000_000 + index
            for name in end
            for index in range(int(start.get(name, "0")), int(end[name]))
        ]

    def _check(self) -> None:
        shown, log = visible(self.truth), self._offsets()
        commits = CommitLog(self.truth.at(f"{CHECKPOINT}/commits"), read_only=True)
        model = Model(self.kind, self.shape.keys)
        start: dict[str, str] = {}
        late_ms = 0
        for epoch in log.batch_ids():
            entry, commit = log.get(epoch), commits.get(epoch)
            assert entry is not None
            assert commit is not None
            manifest = manifest_of(entry, "offsets")
            assert manifest is not None
            if len(entry.offsets) != len(self.plan.offset_lines or self.plan.sources):
                self.wrong.append(f"epoch {epoch} has the offsets {entry.offsets}")
            if not late_ms <= entry.watermark_ms <= model.highest_watermark():
                self.wrong.append(
                    f"epoch {epoch} has watermark {entry.watermark_ms}, after {late_ms} and "
                    f"events up to {model.highest_watermark()}"
                )
            ends = {name: at for each in manifest.positions for name, at in each.items()}
            due = model.run(epoch, self._ids(start, ends), late_ms, entry.watermark_ms)
            got = [tuple(row) for row in shown.get(epoch, [])]
            if due != type(due)(got):
                self.wrong.append(f"epoch {epoch} shows {sorted(got)}, not {sorted(due.items())}")
            after = log.get(epoch + 1)
            if after is not None and after.watermark_ms != commit.next_watermark_ms:
                self.wrong.append(f"epoch {epoch} announced watermark {commit.next_watermark_ms}")
            start, late_ms = ends, entry.watermark_ms
        found = self._tree_state(log.batch_ids()[-1] + 1)
        if found != model.state():
            self.wrong.append(f"state is {found}, not {model.state()}")

    def _tree_state(self, version: int) -> dict[int, dict[Row, Row]]:
        """As Spark would find it, under its plain names, by operator."""
        partitions = range(self.shape.state_partitions)
        files = self.truth.at(CHECKPOINT)
        stores = TaskStores(self.plan, partitions, files, CONF, attempt=0, run_id="", writers=1)
        operators = [stage.stateful.open(partitions, len(partitions)) for stage in self.plan.stages]
        stores.load(operators, StateStart(version, None))
        found: dict[int, dict[Row, Row]] = {}
        for stage, operator in zip(self.plan.stages, operators, strict=True):
            assert isinstance(operator, Kept)
            rows = found.setdefault(stage.operator_id, {})
            for of_partition in operator.rows.values():
                rows.update(of_partition)
        return found
