"""Sums up committed epochs into progress reports with Spark's JSON keys. Pure.

An epoch takes a tenth of a second by default, so a report covers all epochs since the last report.
Spark's keys describe that span: `batchId` is its newest epoch, the offsets are its first start and
last end, and rates are averages over it. `epochLatencyMs` is not a key of Spark: it is the time
from the cut of an epoch to its commit.

Note: `processedRowsPerSecond` divides by the time in which epochs were being read, and
`inputRowsPerSecond` by the time since the last report. They differ only if the query idles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from epochal.continuous.operators.aggregation.observe import ObserveSpec
from epochal.continuous.operators.contract import Moment
from epochal.epoch.committed import CommittedEpoch


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
        span = _Span(
            rows_in=tuple(map(sum, zip(*(each.rows_in for each in epochs), strict=True))),
            elapsed_ms=max(1, now_ms - began_ms),
            busy_ms=max(1, sum(max(0, each.cut_ms - each.started_ms) for each in epochs)),
        )
        ends: list[str | None] = list(last.offsets)
        sources = [
            self._source(number, span, ends[number], latest, behind)
            for number in range(len(self._note.sources))
        ]
        self._start = ends
        rows = sum(span.rows_in)
        return {
            "id": self._note.query_id,
            "runId": self._note.run_id,
            "name": self._note.name,
            "timestamp": iso(first.started_ms),
            "batchId": last.epoch,
            "batchDuration": max(0, last.committed_ms - first.started_ms),
            "numInputRows": rows,
            "inputRowsPerSecond": rows * 1000 / span.elapsed_ms,
            "processedRowsPerSecond": rows * 1000 / span.busy_ms,
            "durationMs": _durations(epochs),
            "eventTime": _event_time(last),
            "stateOperators": [self._operator(each, epochs) for each in self._note.operators],
            "sources": sources,
            "sink": {
                "description": self._note.sink,
                "numOutputRows": sum(each.rows_out for each in epochs),
                **_sink_metrics(epochs),
            },
            **self._observed(epochs),
            "epochs": {"first": first.epoch, "last": last.epoch, "count": len(epochs)},
            "epochLatencyMs": latency([each.committed_ms - each.cut_ms for each in epochs]),
        }

    def _has_data(self) -> bool:
        return any(each.has_data for each in self._epochs)

    def _source(
        self,
        number: int,
        span: _Span,
        end: str | None,
        latest: Sequence[str | None],
        behind: Sequence[int | None],
    ) -> dict[str, Any]:
        rows = span.rows_in[number] if number < len(span.rows_in) else 0
        newest = latest[number] if number < len(latest) else None
        lag = behind[number] if number < len(behind) else None
        return {
            "description": self._note.sources[number],
            "startOffset": _parsed(self._start[number]),
            "endOffset": _parsed(end),
            "latestOffset": _parsed(newest if newest is not None else end),
            "numInputRows": rows,
            "inputRowsPerSecond": rows * 1000 / span.elapsed_ms,
            "processedRowsPerSecond": rows * 1000 / span.busy_ms,
            "metrics": {} if lag is None else {"behindLatest": str(lag)},
        }

    def _observed(self, epochs: Sequence[CommittedEpoch]) -> dict[str, Any]:
        specs = {each.name: each for each in self._note.observations}
        at = Moment(epochs[-1].committed_ms, -1, epochs[-1].epoch, -1)
        found = {
            name: spec.metrics([b for e in epochs for n, b in e.observed if n == name], at)
            for name, spec in specs.items()
        }
        return {"observedMetrics": found} if found else {}

    def _operator(self, note: OperatorNote, epochs: Sequence[CommittedEpoch]) -> dict[str, Any]:
        found = [each for epoch in epochs for each in epoch.state if each[0] == note.operator_id]
        late = [each for epoch in epochs for each in epoch.late_rows]
        return {
            "operatorName": note.name,
            "numRowsTotal": found[-1][1] if found else 0,
            "numRowsUpdated": sum(each[2] for each in found),
            "allUpdatesTimeMs": 0,
            "numRowsRemoved": sum(each[3] for each in found),
            "allRemovalsTimeMs": 0,
            "commitTimeMs": _mean([each.publish_ms for each in epochs]),
            "memoryUsedBytes": 0,
            "numRowsDroppedByWatermark": sum(n for at, n in late if at == note.operator_id),
            "numShufflePartitions": note.partitions,
            "numStateStoreInstances": note.partitions * note.stores,
            "customMetrics": {},
        }


@dataclass(frozen=True, slots=True)
class _Span:
    rows_in: tuple[int, ...]
    elapsed_ms: int
    busy_ms: int


def iso(moment_ms: int) -> str:
    """Return a time as Spark's progress reports format it."""
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def latency(times_ms: Sequence[int]) -> dict[str, int]:
    """Return median, 99th percentile and maximum of some times, by nearest rank."""
    ordered = sorted(max(0, each) for each in times_ms)

    def rank(share: float) -> int:
        return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]

    return {"p50": rank(0.5), "p99": rank(0.99), "max": ordered[-1]}


def _durations(epochs: Sequence[CommittedEpoch]) -> dict[str, int]:
    return {
        "addBatch": _mean([each.sink_ms for each in epochs]),
        "commitOffsets": _mean([each.commit_ms for each in epochs]),
        "prepare": _mean([each.prepare_ms for each in epochs]),
        "publishState": _mean([each.publish_ms for each in epochs]),
        "triggerExecution": _mean([each.committed_ms - each.started_ms for each in epochs]),
        "walCommit": _mean([each.wal_ms for each in epochs]),
    }


def _sink_metrics(epochs: Sequence[CommittedEpoch]) -> dict[str, dict[str, str]]:
    letters = sum(each.dead_letters for each in epochs)
    return {"metrics": {"deadLetters": str(letters)}} if letters else {}


def _event_time(last: CommittedEpoch) -> dict[str, str]:
    if last.watermark_ms is None:
        return {}
    found: Mapping[str, int | None] = {
        "max": last.highest_ms,
        "watermark": max(0, last.watermark_ms),
    }
    return {key: iso(value) for key, value in found.items() if value is not None}


def _mean(times_ms: Sequence[int]) -> int:
    return round(sum(times_ms) / len(times_ms)) if times_ms else 0


def _parsed(offset: str | None) -> Any:
    if offset is None:
        return None
    try:
        return json.loads(offset)
    except ValueError:
        return offset
