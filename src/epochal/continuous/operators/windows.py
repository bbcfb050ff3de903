"""Windows over event time, and the operator that assigns rows to windows.

Windows follow Spark's rules. They are aligned to 1970 plus a start offset, include their start and
exclude their end. A row without event time is in no window. With sliding windows, the operator
emits one row per window that contains the input row.

Note: windows are assigned *before* rows are exchanged, because the window is part of the exchange
key. This puts the state of a window into the same partition as Spark does. A session window is no
part of that key: each row gets a session of its own here, and those that touch are merged later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.continuous.operators.cells import Array, micros
from epochal.continuous.operators.contract import Moment
from epochal.errors import OptionError
from epochal.options import parse_duration
from epochal.record_batches import batch_of

Ints = npt.NDArray[np.int64]

WINDOW, SESSION_WINDOW = "window", "session_window"
"""Spark's names for the window columns."""


@dataclass(frozen=True, slots=True)
class Window:
    """Windows over the event time in a column. Create with `tumbling`, `sliding` or `session`."""

    column: str
    size_us: int
    slide_us: int
    start_us: int = 0
    is_session: bool = False
    """For a session, `size_us` is the gap after which it ends."""

    @property
    def name(self) -> str:
        return SESSION_WINDOW if self.is_session else WINDOW

    def field(self, event_time: pa.DataType) -> pa.Field[Any]:
        """The column that holds the window."""
        bound = pa.timestamp("us", tz=getattr(event_time, "tz", None))
        kind = pa.struct([pa.field("start", bound), pa.field("end", bound)])
        # The start of a session is never null in state, so the session must not be either.
        return pa.field(self.name, kind, nullable=not self.is_session)


def tumbling(column: str, size: str, start: str = "0 seconds") -> Window:
    """Windows of equal length that follow one another without overlap."""
    return sliding(column, size, size, start)


def sliding(column: str, size: str, slide: str, start: str = "0 seconds") -> Window:
    """Windows that overlap: a new one every `slide`."""
    length, step, first = (_micros(text) for text in (size, slide, start))
    if not 0 < step <= length:
        raise OptionError(
            f"a window is {size} long and slides by {slide}, but the slide must be positive and "
            f"not longer than the window: rows between two windows would be lost"
        )
    if first >= step:
        raise OptionError(
            f"windows start at {start}, but the start must be less than the slide, {slide}"
        )
    return Window(column, length, step, first)


def session(column: str, gap: str) -> Window:
    """Windows that end when there was no row for `gap`."""
    length = _micros(gap)
    if length <= 0:
        raise OptionError(f"the gap that ends a session is {gap}, but must be positive")
    return Window(column, length, length, is_session=True)


@dataclass(frozen=True, slots=True)
class AssignWindowsSpec:
    """Adds a column with the window: one row per window that contains the input row.

    Must run before the exchange.
    """

    window: Window

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema.append(self.window.field(schema.field(self.window.column).type))

    def open(self) -> Self:
        return self

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        times: Array = batch.column(self.window.column)
        stamps = micros(times)
        if stamps.null_count:
            batch = batch.filter(stamps.is_valid())
            stamps = stamps.drop_null()
        if not batch.num_rows:
            return ()
        rows, starts = windows_of(stamps.to_numpy(), self.window)
        if len(starts) != batch.num_rows or self.window.slide_us != self.window.size_us:
            batch = batch.take(rows)
        field = self.window.field(times.type)
        kind = field.type
        ends = starts + self.window.size_us
        bounds = [pa.array(bound).view(kind.field(0).type) for bound in (starts, ends)]
        column = pa.StructArray.from_arrays(bounds, fields=[kind.field(0), kind.field(1)])
        schema = batch.schema.append(field)
        return (batch_of([*batch.columns, column], schema, batch.num_rows),)


def windows_of(stamps: Ints, window: Window) -> tuple[Ints, Ints]:
    """For each window of each timestamp: the timestamp's index and the start of the window."""
    if window.is_session:
        return np.arange(len(stamps), dtype=np.int64), stamps
    last = stamps - np.mod(stamps - window.start_us, window.slide_us)
    indexes = np.arange(len(stamps), dtype=np.int64)
    if window.slide_us == window.size_us:
        return indexes, last
    overlaps = -(-window.size_us // window.slide_us)
    starts = (last[:, None] - np.arange(overlaps, dtype=np.int64) * window.slide_us).ravel()
    indexes = np.repeat(indexes, overlaps)
    within = stamps[indexes] < starts + window.size_us
    return indexes[within], starts[within]


def _micros(text: str) -> int:
    return parse_duration(text, "a window's duration") // timedelta(microseconds=1)
