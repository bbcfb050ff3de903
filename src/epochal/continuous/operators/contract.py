"""What an operator promises the task that runs it. Everything here is called by one thread.

A task runs a chain of operators for each stage. Between stages rows are exchanged by key, so an
operator that keeps state sees all rows of its keys, whichever task read them. State is divided
into partitions by Spark's own hash; a task holds some of them, all of each.

What a reader would get wrong: an operator never touches a file. It holds its state as Python
values, remembers what changed, and hands that over at the cut; another thread writes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from epochal.state.rows.types import StructType

Row: TypeAlias = tuple[Any, ...]
"""Keys and values of stores, in the form of `epochal.state.rows.unsafe_row`: a timestamp is an int
of microseconds, a struct a tuple, an array a list, a map a list of pairs."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happens: the clock's time, the watermark, and the number of the epoch."""

    now_ms: int
    watermark_ms: int
    """Event time up to which input counts as complete; -1 before there is any."""
    epoch: int
    late_ms: int
    """Rows at or before it are late. It is the watermark of the last `expire`: what that closed
    must not be opened again. (Spark compares with the batch before; a turn is the batch here.)"""


@dataclass(frozen=True, slots=True)
class StoreSchema:
    """One named store of a stateful operator."""

    name: str
    key: StructType
    value: StructType


@dataclass(frozen=True, slots=True)
class StateChanges:
    """What an epoch changed in one store of one partition. Values must not change afterwards."""

    store: str
    partition: int
    puts: Sequence[tuple[Row, Row]]
    removes: Sequence[Row]
    rows: int
    """Rows in the store now."""


class Operator(Protocol):
    """Rows in, rows out, at once."""

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]: ...


class StatefulOperator(Protocol):
    """An operator with state, and with things to do when time passes."""

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        """Take over a partition's rows of one store. Before any other call."""
        ...

    def process(
        self, partition: int, batch: pa.RecordBatch, at: Moment
    ) -> Iterable[pa.RecordBatch]:
        """Take rows of one state partition."""
        ...

    def due_ms(self) -> int | None:
        """When `expire` has something to do by the clock, if nothing else happens; None if not."""
        ...

    def expire(self, at: Moment) -> Iterable[pa.RecordBatch]:
        """Fire timers, close windows, drop what has expired. Called once a turn, after input."""
        ...

    def cut(self, epoch: int) -> list[StateChanges]:
        """End the epoch: one entry per partition and store held, also where nothing changed."""
        ...


class EventTimeObserver(Protocol):
    """An operator that passes rows on and notes the highest event time: `withWatermark`."""

    @property
    def watermark(self) -> int:
        """Which watermark of the plan it feeds."""
        ...

    def highest_ms(self) -> int:
        """Highest event time seen; -1 if none."""
        ...

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]: ...


class OperatorSpec(Protocol):
    """An operator as planned; travels pickled (by cloudpickle) to tasks."""

    def open(self) -> Operator: ...


class StatefulSpec(Protocol):
    """A stateful operator as planned."""

    @property
    def name(self) -> str:
        """As in Spark's operator metadata: stateStoreSave, dedupe, transformWithStateExec, …"""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """The columns whose hash says which partition a row belongs to."""
        ...

    @property
    def stores(self) -> tuple[StoreSchema, ...]: ...

    @property
    def output_schema(self) -> pa.Schema: ...

    def open(self, partitions: Sequence[int], state_partitions: int) -> StatefulOperator:
        """Hold these of all the state partitions there are."""
        ...
