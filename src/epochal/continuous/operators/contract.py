"""The contract between operators and the task that runs them. One thread makes all calls.

A task runs a chain of operators for each stage. Between stages rows are exchanged by key, so a
stateful operator sees all rows of its keys, no matter which task read them. Spark's hash divides
state into partitions. Each partition belongs to one task, and a task may hold several.

Note: an operator never accesses files. It holds its state as Python values, records what changed,
and returns the changes at the cut. Another thread writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from epochal.state.files.rocksdb_family import Family
from epochal.state.rows.types import StructType

Row: TypeAlias = tuple[Any, ...]
"""A key or value of a store, in the form of `epochal.state.rows.unsafe_row`: a timestamp is an int
of microseconds, a struct a tuple, an array a list, a map a list of pairs."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The current time of an operator: clock, watermark and epoch."""

    now_ms: int
    watermark_ms: int
    """Event time up to which input counts as complete; -1 until there is a watermark."""
    epoch: int
    late_ms: int
    """Rows at or before this time are late. It is the watermark of the last `expire`, so that a
    late row cannot reopen a window that `expire` closed. If watermarks move at epoch boundaries, it
    is that of the epoch before, as in Spark's batches."""


@dataclass(frozen=True, slots=True)
class StoreSchema:
    """One named store of a stateful operator."""

    name: str
    key: StructType
    value: StructType
    prefix_columns: int = 0
    """How many columns of the key prefix scans use: `numColsPrefixKey` in Spark's metadata."""
    families: tuple[Family, ...] = ()
    """Column families, which only RocksDB has. Then `key` and `value` are empty, and the operator
    loads and changes each family by its own name, as if it were a store."""
    properties_json: str = ""
    """The operator's settings in Spark's metadata, if the store has families."""
    scan_columns: int = 0
    """By how many first columns of the key the operator finds rows that are on disk."""

    @property
    def has_families(self) -> bool:
        """Whether it is laid out in column families, of which a processor may have none."""
        return bool(self.properties_json)


@dataclass(frozen=True, slots=True)
class StateChanges:
    """The changes of one epoch to one store of one partition.

    Values must not be mutated afterwards: another thread writes them.
    """

    store: str
    partition: int
    puts: Sequence[tuple[Row, Row]]
    removes: Sequence[Row]
    rows: int
    """The number of rows in the store after these changes."""


class Operator(Protocol):
    """An operator without state: it returns the results of a batch immediately."""

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]: ...


class StatefulOperator(Protocol):
    """An operator with state, which may also act when time passes.

    One that drops late rows also has `late_rows: int`, how many it has dropped so far.
    """

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        """Load the stored rows of one store of a partition. Called before everything else.

        If the task keeps its state on disk, `rows` is a `DiskRows`: then the operator need not
        hold all of them.
        """
        ...

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment, side: int = 0
    ) -> Iterable[pa.RecordBatch]:
        """Process rows of one input whose keys belong to one state partition.

        `side` numbers the inputs: a join has two, all other operators have one.
        """
        ...

    def due_ms(self) -> int | None:
        """The clock time at which `expire` has work even without input; None if never."""
        ...

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        """Fire timers, close windows, drop expired state.

        Called after the input of each turn. If watermarks move at epoch boundaries, it is called
        once per epoch instead, at its end, just before `cut`, even if the epoch had no rows.
        """
        ...

    def cut(self, epoch: int) -> list[StateChanges]:
        """End the epoch. Returns one entry per partition and store, even if nothing changed."""
        ...


@dataclass(frozen=True, slots=True)
class EventTimes:
    """Of some rows."""

    rows: int = 0
    lowest_ms: int | None = None
    """None if no row has an event time."""
    highest_ms: int = -1

    def with_rows(self, rows: int, lowest_ms: int | None, highest_ms: int) -> EventTimes:
        """Return those of these rows and more."""
        times = [time for time in (self.lowest_ms, lowest_ms) if time is not None]
        lowest = min(times, default=None)
        return EventTimes(self.rows + rows, lowest, max(self.highest_ms, highest_ms))


class OperatorSpec(Protocol):
    """The plan of an operator. It is sent to tasks pickled (by cloudpickle)."""

    def open(self) -> Operator: ...


class StatefulSpec(Protocol):
    """The plan of a stateful operator.

    It may also have `output_watermark_ms(input_ms: int) -> int | None`, if the watermark of its
    output is not that of its input: see `plan.stages`.
    """

    @property
    def name(self) -> str:
        """The name in Spark's operator metadata: stateStoreSave, dedupe, …"""
        ...

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """For each input, the columns whose hash determines the state partition of a row."""
        ...

    @property
    def stores(self) -> tuple[StoreSchema, ...]: ...

    @property
    def output_schema(self) -> pa.Schema: ...

    def open(self, partitions: Sequence[int], state_partitions: int) -> StatefulOperator:
        """Create an operator for `partitions` out of `state_partitions` in total."""
        ...
