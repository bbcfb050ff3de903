"""A small query whose every row can be accounted for: numbered events, a running total per key.

A row that is lost, or counted twice, or counted on state that another epoch made, shows in the
output for good: each output row carries the count and sum of its key after it was added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from epochal.connectors.contract import Positions, ReaderFactory, SourceReader, WriterFactory
from epochal.continuous.operators.contract import Moment, Row, StateChanges, StoreSchema
from epochal.continuous.plan.stages import Branch, QueryPlan, SourcePlan, StagePlan, Target
from epochal.state.rows.types import AtomicType, StructField, StructType

EVENTS = pa.schema([("key", pa.int64()), ("id", pa.int64()), ("amount", pa.int64())])
TOTALS = pa.schema(
    [
        ("key", pa.int64()),
        ("id", pa.int64()),
        ("amount", pa.int64()),
        ("count", pa.int64()),
        ("total", pa.int64()),
    ]
)
LONG = AtomicType("long")


def event(partition: int, index: int, keys: int) -> tuple[int, int, int]:
    """(key, id, amount) of one event: any reader, any time, reads the same."""
    return ((index * 7 + partition * 3) % keys, partition * 1_000_000 + index, index % 11 + 1)


@dataclass(frozen=True, slots=True)
class EventReaders(ReaderFactory):
    """Partitions of events that are all there from the beginning; a position is an index."""

    rows: int
    keys: int
    per_read: int = 1_000_000
    breathe: bool = False
    """Whether there is nothing to be had right after something was."""

    def open(self, partitions: Positions) -> EventReader:
        return EventReader(self, {name: int(at) for name, at in partitions.items()})


class EventReader(SourceReader):
    def __init__(self, plan: EventReaders, positions: dict[str, int]) -> None:
        self._plan, self._positions = plan, positions
        self._ends = dict.fromkeys(positions, plan.rows)
        self._breathes = False

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        self._breathes = self._plan.breathe and not self._breathes
        if self._plan.breathe and not self._breathes:
            return None
        for name in self.in_turn():
            start = self._positions[name]
            end = min(start + max_rows, start + self._plan.per_read, self._ends[name])
            if start < end:
                self._positions[name] = end
                return self.batch(int(name), range(start, end))
        return None

    def in_turn(self) -> list[str]:
        """The partitions, in the order in which they are asked for rows."""
        return sorted(self._positions, key=lambda name: self._positions[name])

    def batch(self, partition: int, indexes: range) -> pa.RecordBatch:
        rows = [event(partition, at, self._plan.keys) for at in indexes]
        columns = [list(column) for column in zip(*rows, strict=True)]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, pa.int64()) for column in columns], schema=EVENTS
        )

    def positions(self) -> Positions:
        return {name: str(at) for name, at in self._positions.items()}

    def limit(self, ends: Positions) -> None:
        self._ends.update({name: int(end) for name, end in ends.items()})

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class RunningTotalSpec:
    """Count and sum per key."""

    name: str = "transformWithStateExec"
    keys: tuple[tuple[str, ...], ...] = (("key",),)
    output_schema: pa.Schema = TOTALS
    stores: tuple[StoreSchema, ...] = (
        StoreSchema(
            "default",
            StructType((StructField("key", LONG),)),
            StructType((StructField("count", LONG), StructField("total", LONG))),
        ),
    )

    def open(self, partitions: Sequence[int], state_partitions: int) -> RunningTotal:
        del state_partitions
        return RunningTotal(partitions)


class RunningTotal:
    def __init__(self, partitions: Sequence[int]) -> None:
        self.totals: dict[int, dict[int, tuple[int, int]]] = {p: {} for p in partitions}
        self._changed: dict[int, set[int]] = {p: set() for p in partitions}

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        assert store == "default"
        self.totals[partition] = {key: (count, total) for (key,), (count, total) in rows}

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        del at, side
        totals, changed = self.totals[partition], self._changed[partition]
        counts, sums = [], []
        keys: list[Any] = batch.column(0).to_pylist()
        amounts: list[Any] = batch.column(2).to_pylist()
        for key, amount in zip(keys, amounts, strict=True):
            count, total = totals.get(key, (0, 0))
            totals[key] = (count + 1, total + amount)
            counts.append(count + 1)
            sums.append(total + amount)
            changed.add(key)
        columns = [*batch.columns, pa.array(counts, pa.int64()), pa.array(sums, pa.int64())]
        return [pa.RecordBatch.from_arrays(columns, schema=TOTALS)]

    def due_ms(self) -> int | None:
        return None

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        del at
        return []

    def cut(self, epoch: int) -> list[StateChanges]:
        del epoch
        found = []
        for partition, changed in self._changed.items():
            totals = self.totals[partition]
            puts = [((key,), totals[key]) for key in sorted(changed)]
            found.append(StateChanges("default", partition, puts, (), len(totals)))
            self._changed[partition] = set()
        return found


def query(
    writers: WriterFactory,
    *,
    rows: int,
    keys: int,
    state_partitions: int,
    per_read: int = 1_000_000,
    stages: int = 1,
    breathe: bool = False,
) -> QueryPlan:
    """Events, a running total, a sink; without a stage, events as they are."""
    branch = Branch((), Target(0))
    source = SourcePlan(EventReaders(rows, keys, per_read, breathe), EVENTS, (branch,))
    stage = StagePlan(0, RunningTotalSpec(), (EVENTS,), (), Target(1))
    return QueryPlan(
        sources=(source,),
        watermarks=(),
        stages=(stage,) * stages,
        writers=writers,
        output_schema=TOTALS if stages else EVENTS,
        state_partitions=state_partitions,
    )


def totals_of(output: Iterable[Row]) -> dict[int, tuple[int, int]]:
    """The state that rows of output make."""
    found: dict[int, tuple[int, int]] = {}
    for row in output:
        count, total = found.get(row[0], (0, 0))
        found[row[0]] = (count + 1, total + row[2])
    return found


@dataclass(slots=True)
class Account:
    """Checks output rows and state against the events they must come from, all of them, once."""

    partitions: int
    rows: int
    keys: int
    wrong: list[str] = field(default_factory=list)

    def events(self) -> list[tuple[int, int, int]]:
        return [
            event(partition, index, self.keys)
            for partition in range(self.partitions)
            for index in range(self.rows)
        ]

    def check_totals(self, output: Sequence[Row], state: dict[int, tuple[int, int]]) -> None:
        """Every event once, with the count and sum that its key had; state as of the end."""
        self.check_events([row[:3] for row in output])
        by_key: dict[int, list[Row]] = {}
        for row in output:
            by_key.setdefault(row[0], []).append(row)
        expected: dict[int, tuple[int, int]] = {}
        for key, rows in sorted(by_key.items()):
            total = 0
            for place, row in enumerate(sorted(rows, key=lambda row: row[3]), 1):
                total += row[2]
                if row[3:] != (place, total):
                    self.wrong.append(f"key {key}: {row[3:]} where {(place, total)} is right")
            expected[key] = (len(rows), total)
        if state != expected:
            self.wrong.append(f"state is {state}, the output makes it {expected}")

    def check_events(self, output: Sequence[Row]) -> None:
        """Every event once."""
        got, due = Counter(output), Counter(self.events())
        if got != due:
            self.wrong.append(f"lost {sorted(due - got)}, twice {sorted(got - due)}")
