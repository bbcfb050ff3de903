"""Makes the progress and idle reports of a run and keeps the newest hundred.

The committing thread only appends epochs to a list. The watching thread makes the reports.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from epochal.clock import Clock
from epochal.connectors.contract import Positions, Source
from epochal.continuous.run.listeners import ListenerBus
from epochal.continuous.run.progress import ProgressMaker, QueryNote
from epochal.epoch.committed import CommittedEpoch

logger = logging.getLogger(__name__)

KEPT_REPORTS = 100


class Reporter:
    """The reports of one run."""

    def __init__(
        self,
        note: QueryNote,
        sources: Sequence[Source],
        bus: ListenerBus,
        clock: Clock,
        *,
        progress_ms: int,
        idle_ms: int,
    ) -> None:
        self._note, self._sources, self._bus, self._clock = note, sources, bus, clock
        self._progress_ms, self._idle_ms = progress_ms, idle_ms
        self._lock = threading.Lock()
        self._maker: ProgressMaker | None = None
        self._positions: Sequence[Positions] = ()
        self._reports: deque[dict[str, Any]] = deque(maxlen=KEPT_REPORTS)

    def begin(self, note: QueryNote, offsets: Sequence[str | None]) -> None:
        """Start counting at these offsets. A restart of the tasks continues the count.

        `note` is given again because only the first attempt sets the number of state partitions.
        """
        with self._lock:
            if self._maker is None:
                self._note = note
                self._maker = ProgressMaker(note, offsets, self._clock.now_ms())

    def add(self, epoch: CommittedEpoch, positions: Sequence[Positions]) -> None:
        with self._lock:
            self._positions = positions
            if self._maker is not None:
                self._maker.add(epoch)

    def reports(self) -> list[dict[str, Any]]:
        """Return the newest reports, oldest first."""
        with self._lock:
            return list(self._reports)

    def report(self, *, final: bool = False) -> dict[str, Any] | None:
        """Make and return the report that is due, if any. At the end of a run one is always due."""
        now_ms = self._clock.now_ms()
        with self._lock:
            maker, positions = self._maker, self._positions
            if maker is None:
                return None
            due = final or maker.is_due(now_ms, self._progress_ms)
            idle = not final and maker.is_idle(now_ms, self._idle_ms)
        if idle:
            self._bus.idle(self._note.query_id, self._note.run_id, now_ms)
        if not due:
            return None
        latest, behind = self._distance(positions)  # may call a broker, so not under the lock
        with self._lock:
            made = maker.make(now_ms, latest, behind)
            if made is not None:
                self._reports.append(made)
        if made is not None:
            logger.info(
                "query %s run %s epoch %d: %d rows in, %d out, epoch latency %s ms",
                *(self._note.query_id, self._note.run_id, made["batchId"], made["numInputRows"]),
                *(made["sink"]["numOutputRows"], made["epochLatencyMs"]["p50"]),
            )
            self._bus.progress(made)
        return made

    def _distance(
        self, positions: Sequence[Positions]
    ) -> tuple[list[str | None], list[int | None]]:
        latest: list[str | None] = []
        behind: list[int | None] = []
        for source, at in zip(self._sources, positions, strict=False):
            try:
                end = source.latest()
                latest.append(None if end is None else source.offset(end))
                behind.append(None if end is None else source.lag(at, end))
            except Exception as error:  # noqa: BLE001  a report must not end a query
                logger.warning("query %s: latest offset unknown: %s", self._note.query_id, error)
                latest.append(None)
                behind.append(None)
        return latest, behind
