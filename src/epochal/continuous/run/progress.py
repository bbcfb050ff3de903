"""Makes the progress and idle reports of a run, with Spark's JSON keys.

An epoch takes a tenth of a second by default, so a report covers all epochs since the last report.
Spark's keys describe that span: `batchId` is its newest epoch, the offsets are its first start and
last end, and rates are averages over it. `epochLatencyMs` is not a key of Spark: it is the time
from the cut of an epoch to its commit.

`ProgressMaker` sums up, without IO. `Reporter` brings it the time and the sources' newest offsets,
and keeps the newest hundred reports. The committing thread only appends epochs to a list; the
watching thread makes the reports.

Note: `processedRowsPerSecond` divides by the time in which epochs were being read, and
`inputRowsPerSecond` by the time since the last report. They differ only if the query idles.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from epochal.clock import Clock
from epochal.connectors.contract import Positions, Source
from epochal.continuous.operators.aggregation.observe import ObserveSpec
from epochal.continuous.operators.contract import Moment
from epochal.epoch.committed import CommittedEpoch

if TYPE_CHECKING:  # it needs PySpark
    from epochal.continuous.run.listeners import ListenerBus

logger = logging.getLogger(__name__)

KEPT_REPORTS = 100


@dataclass(frozen=True, slots=True)
class OperatorNote:
    """What reports say of a stateful operator, apart from its figures."""

    operator_id: int
    name: str
    partitions: int
    stores: int


@dataclass(frozen=True, slots=True)
class QueryNote:
    """What is the same in every report of a query."""

    query_id: str
    run_id: str
    name: str | None
    sources: tuple[str, ...]
    sink: str
    operators: tuple[OperatorNote, ...] = ()
    observations: tuple[ObserveSpec, ...] = ()


class ProgressMaker:
    """Collects epochs between two reports."""

    def __init__(self, note: QueryNote, start_offsets: Sequence[str | None], now_ms: int) -> None:
        self._note = note
        self._start: list[str | None] = list(start_offsets)
        self._epochs: list[CommittedEpoch] = []
        self._reported_ms = now_ms
        self._quiet_since_ms = now_ms

    def add(self, epoch: CommittedEpoch) -> None:
        self._epochs.append(epoch)

    def is_due(self, now_ms: int, interval_ms: int) -> bool:
        """Return whether there is something to report and the last report is old enough."""
        return now_ms - self._reported_ms >= interval_ms and self._has_data()

    def is_idle(self, now_ms: int, interval_ms: int) -> bool:
        """Return whether an idle report is due; if so, restart the interval."""
        if self._has_data() or now_ms - self._quiet_since_ms < interval_ms:
            return False
        self._quiet_since_ms = now_ms
        if self._epochs:
            self._start = list(self._epochs[-1].offsets)
            self._epochs.clear()
        return True

    def make(
        self, now_ms: int, latest: Sequence[str | None] = (), behind: Sequence[int | None] = ()
    ) -> dict[str, Any] | None:
        """Return the report on all epochs since the last report; None if nothing happened."""
        if not self._has_data():
            return None
        epochs, self._epochs = self._epochs, []
        began_ms, self._reported_ms = self._reported_ms, now_ms
        self._quiet_since_ms = now_ms
        first, last = epochs[0], epochs[-1]
        rows_in = tuple(map(sum, zip(*(epoch.rows_in for epoch in epochs), strict=True)))
        elapsed_ms = max(1, now_ms - began_ms)
        busy_ms = max(1, sum(max(0, epoch.cut_ms - epoch.started_ms) for epoch in epochs))

        def rates(rows: int) -> dict[str, float]:
            return {
                "numInputRows": rows,
                "inputRowsPerSecond": rows * 1000 / elapsed_ms,
                "processedRowsPerSecond": rows * 1000 / busy_ms,
            }

        begins, ends = self._start, last.offsets
        names = self._note.sources
        of_sources: list[Sequence[Any]] = [names, begins, ends, rows_in, latest, behind]
        sources = [
            {
                "description": description,
                "startOffset": _parsed(begin),
                "endOffset": _parsed(end),
                "latestOffset": _parsed(end if newest is None else newest),
                **rates(rows or 0),
                "metrics": {} if lag is None else {"behindLatest": str(lag)},
            }
            for description, begin, end, rows, newest, lag in zip_longest(*of_sources)
        ]
        self._start = list(last.offsets)
        letters = sum(epoch.dead_letters for epoch in epochs)
        return {
            "id": self._note.query_id,
            "runId": self._note.run_id,
            "name": self._note.name,
            "timestamp": iso(first.started_ms),
            "batchId": last.epoch,
            "batchDuration": max(0, last.committed_ms - first.started_ms),
            **rates(sum(rows_in)),
            "durationMs": _durations(epochs),
            "eventTime": _event_time(last),
            "stateOperators": [self._operator(note, epochs) for note in self._note.operators],
            "sources": sources,
            "sink": {
                "description": self._note.sink,
                "numOutputRows": sum(epoch.rows_out for epoch in epochs),
                **({"metrics": {"deadLetters": str(letters)}} if letters else {}),
            },
            **self._observed(epochs),
            "epochs": {"first": first.epoch, "last": last.epoch, "count": len(epochs)},
            "epochLatencyMs": latency([epoch.committed_ms - epoch.cut_ms for epoch in epochs]),
        }

    def _has_data(self) -> bool:
        return any(epoch.has_data for epoch in self._epochs)

    def _observed(self, epochs: Sequence[CommittedEpoch]) -> dict[str, Any]:
        specs = {spec.name: spec for spec in self._note.observations}
        at = Moment(epochs[-1].committed_ms, -1, epochs[-1].epoch, -1)
        metrics = {
            name: spec.metrics([b for e in epochs for n, b in e.observed if n == name], at)
            for name, spec in specs.items()
        }
        return {"observedMetrics": metrics} if metrics else {}

    def _operator(self, note: OperatorNote, epochs: Sequence[CommittedEpoch]) -> dict[str, Any]:
        counts = [rows for epoch in epochs for rows in epoch.state if rows[0] == note.operator_id]
        late = [rows for epoch in epochs for rows in epoch.late_rows]
        return {
            "operatorName": note.name,
            "numRowsTotal": counts[-1][1] if counts else 0,
            "numRowsUpdated": sum(rows[2] for rows in counts),
            "allUpdatesTimeMs": 0,
            "numRowsRemoved": sum(rows[3] for rows in counts),
            "allRemovalsTimeMs": 0,
            "commitTimeMs": _mean([epoch.publish_ms for epoch in epochs]),
            "memoryUsedBytes": 0,
            "numRowsDroppedByWatermark": sum(n for at, n in late if at == note.operator_id),
            "numShufflePartitions": note.partitions,
            "numStateStoreInstances": note.partitions * note.stores,
            "customMetrics": {},
        }


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
        # May call a broker, so not under the lock, which the committing thread takes. Epochs that
        # are committed meanwhile are in this report; their distance is in the next.
        latest, behind = self._distance(positions)
        with self._lock:
            report = maker.make(now_ms, latest, behind)
            if report is not None:
                self._reports.append(report)
        if report is not None:
            logger.info(
                "query %s run %s epoch %d: %d rows in, %d out, epoch latency %s ms",
                *(self._note.query_id, self._note.run_id),
                *(report["batchId"], report["numInputRows"]),
                *(report["sink"]["numOutputRows"], report["epochLatencyMs"]["p50"]),
            )
            self._bus.progress(report)
        return report

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


def iso(moment_ms: int) -> str:
    """Return a time as Spark's progress reports format it."""
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def latency(times_ms: Sequence[int]) -> dict[str, int]:
    """Return median, 99th percentile and maximum of some times, by nearest rank."""
    ordered = sorted(max(0, time_ms) for time_ms in times_ms)

    def rank(share: float) -> int:
        return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]

    return {"p50": rank(0.5), "p99": rank(0.99), "max": ordered[-1]}


def _durations(epochs: Sequence[CommittedEpoch]) -> dict[str, int]:
    return {
        "addBatch": _mean([epoch.sink_ms for epoch in epochs]),
        "commitOffsets": _mean([epoch.commit_ms for epoch in epochs]),
        "prepare": _mean([epoch.prepare_ms for epoch in epochs]),
        "publishState": _mean([epoch.publish_ms for epoch in epochs]),
        "triggerExecution": _mean([epoch.committed_ms - epoch.started_ms for epoch in epochs]),
        "walCommit": _mean([epoch.wal_ms for epoch in epochs]),
    }


def _event_time(last: CommittedEpoch) -> dict[str, str]:
    if last.watermark_ms is None:
        return {}
    highest = {} if last.highest_ms is None else {"max": iso(last.highest_ms)}
    return {**highest, "watermark": iso(max(0, last.watermark_ms))}


def _mean(times_ms: Sequence[float]) -> int:
    return round(sum(times_ms) / len(times_ms)) if times_ms else 0


def _parsed(offset: str | None) -> Any:
    if offset is None:
        return None
    try:
        return json.loads(offset)
    except ValueError:
        return offset
