"""Records the event times of the rows that pass: `with_watermark`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.contract import EventTimes, Moment

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

NONE_SEEN = -1


@dataclass(frozen=True, slots=True)
class ObserveEventTimeSpec:
    """Observe a timestamp column for watermark number `watermark` of the plan."""

    watermark: int
    column: str

    def open(self) -> ObserveEventTime:
        return ObserveEventTime(self.watermark, self.column)


class ObserveEventTime:
    """Passes rows on unchanged and remembers their event times."""

    def __init__(self, watermark: int, column: str) -> None:
        self.watermark, self._column = watermark, column
        self._highest_ms = NONE_SEEN
        self._newest = EventTimes()

    def highest_ms(self) -> int:
        return self._highest_ms

    def take(self) -> EventTimes:
        newest, self._newest = self._newest, EventTimes()
        return newest

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        found = pc.min_max(batch.column(self._column))
        stamp = pa.timestamp("us", "UTC")
        lowest, highest = (found[name].cast(stamp).value for name in ("min", "max"))
        rows = batch.num_rows
        if highest is not None:
            self._highest_ms = max(self._highest_ms, highest // 1000)
            self._newest = self._newest.with_rows(rows, lowest // 1000, highest // 1000)
        else:
            self._newest = self._newest.with_rows(rows, None, NONE_SEEN)
        return (batch,)
