"""Turns the records of a run into metrics.

Counters start at zero with every run, as Prometheus expects. A query that has ended keeps its last
values, except that its rates are zero.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from epochal.metrics import table
from epochal.metrics.run_records import (
    EpochDone,
    Progressed,
    Record,
    RunEnded,
    RunStarted,
    StatusChanged,
    phases_of,
)
from epochal.metrics.table import MetricSpec
from epochal.metrics.text import Metric, Sample

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
MAX_LAG_PARTITIONS = 1_000
"""With more partitions, only the sum is exported, as `epochal_source_behind_latest`."""


class QueryMetrics:
    """The metrics of one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: RunStarted | None = None
        self._status: StatusChanged | None = None
        self._end: RunEnded | None = None
        self._report: dict[str, Any] = {}
        self._epoch, self._committed_ms, self._epochs = -1, 0, 0
        self._rows_in: list[int] = []
        self._rows_out = self._dead_letters = 0
        self._buckets = [0] * (len(LATENCY_BUCKETS) + 1)
        self._latency_seconds = 0.0
        self._phases: defaultdict[str, float] = defaultdict(float)
        self._updated: defaultdict[str, int] = defaultdict(int)
        self._removed: defaultdict[str, int] = defaultdict(int)
        self._late: defaultdict[str, int] = defaultdict(int)

    def write(self, records: list[Record]) -> None:
        """Add records, oldest first."""
        with self._lock:
            for record in records:
                self._add(record)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def collect(self) -> list[Metric]:
        """The metrics as of now; empty until the run has started."""
        with self._lock:
            run = self._run
            if run is None:
                return []
            found = [*self._run_metrics(), *self._epoch_metrics(), *self._report_metrics(run)]
        base = {"query": run.name or run.query_id, "query_id": run.query_id, "run_id": run.run_id}
        return [
            Metric(
                spec.name,
                spec.kind,
                spec.help,
                [Sample({**base, **each.labels}, each.value, each.suffix) for each in samples],
            )
            for spec, samples in found
        ]

    def _add(self, record: Record) -> None:
        match record:
            case RunStarted():
                self._run = record
            case StatusChanged():
                self._status = record
            case Progressed(report=report):
                self._report = report
                for operator in report.get("stateOperators", ()):
                    name = str(operator.get("operatorName"))
                    self._updated[name] += int(operator.get("numRowsUpdated", 0))
                    self._removed[name] += int(operator.get("numRowsRemoved", 0))
                    self._late[name] += int(operator.get("numRowsDroppedByWatermark", 0))
            case EpochDone():
                self._add_epoch(record)
            case RunEnded():
                self._end = record

    def _add_epoch(self, epoch: EpochDone) -> None:
        self._epoch, self._committed_ms = epoch.epoch, epoch.committed_ms
        self._epochs += 1
        self._rows_out += epoch.rows_out
        self._dead_letters += epoch.dead_letters
        missing = len(epoch.rows_in) - len(self._rows_in)
        self._rows_in += [0] * missing
        for number, rows in enumerate(epoch.rows_in):
            self._rows_in[number] += rows
        seconds = epoch.latency_ms / 1000
        self._latency_seconds += seconds
        bucket = next((n for n, top in enumerate(LATENCY_BUCKETS) if seconds <= top), -1)
        self._buckets[bucket] += 1
        for phase in phases_of(epoch):
            self._phases[phase.name] += phase.took_ms / 1000

    def _run_metrics(self) -> list[tuple[MetricSpec, list[Sample]]]:
        assert self._run is not None
        failed = self._end is not None and self._end.error is not None
        status = self._status
        return [
            (table.QUERY_UP, [Sample({}, int(self._end is None))]),
            (table.QUERY_FAILED, [Sample({}, int(failed))]),
            (table.DEGRADED, [Sample({}, int(bool(status and status.degraded)))]),
            (table.RESTARTS, [Sample({}, status.restarts if status else 0)]),
            (table.ATTEMPT, [Sample({}, status.attempt if status else 0)]),
            (table.START_TIME, [Sample({}, self._run.started_ms / 1000)]),
        ]

    def _epoch_metrics(self) -> list[tuple[MetricSpec, list[Sample]]]:
        run = self._run
        assert run is not None
        counted, buckets = 0, []
        for top, count in zip((*LATENCY_BUCKETS, "+Inf"), self._buckets, strict=True):
            counted += count
            buckets.append(Sample({"le": str(top)}, counted, "_bucket"))
        rows = [
            Sample({"source": _source(run.sources, number)}, count)
            for number, count in enumerate(self._rows_in)
        ]
        return [
            (table.EPOCH, [Sample({}, self._epoch)]),
            (table.EPOCHS, [Sample({}, self._epochs)]),
            (table.LAST_COMMIT, [Sample({}, self._committed_ms / 1000)]),
            (table.ROWS_IN, rows),
            (table.ROWS_OUT, [Sample({}, self._rows_out)]),
            (table.DEAD_LETTERS, [Sample({}, self._dead_letters)]),
            (
                table.EPOCH_LATENCY,
                [
                    *buckets,
                    Sample({}, self._latency_seconds, "_sum"),
                    Sample({}, counted, "_count"),
                ],
            ),
            (
                table.PHASE_SECONDS,
                [Sample({"phase": name}, took) for name, took in self._phases.items()],
            ),
        ]

    def _report_metrics(self, run: RunStarted) -> list[tuple[MetricSpec, list[Sample]]]:
        report, running = self._report, int(self._end is None)
        operators = report.get("stateOperators", [])
        sources = report.get("sources", [])
        behind = [
            Sample({"source": _source(run.sources, number)}, distance)
            for number, source in enumerate(sources)
            if (distance := behind_latest(source)) is not None
        ]
        group = run.name or run.query_id
        lags = [
            Sample({"group": group, "topic": topic, "partition": partition}, lag)
            for source in sources
            for (topic, partition), lag in kafka_lag(source).items()
        ]
        names = [str(each.get("operatorName")) for each in operators]
        return [
            (table.INPUT_RATE, [Sample({}, running * report.get("inputRowsPerSecond", 0.0))]),
            (
                table.PROCESSING_RATE,
                [Sample({}, running * report.get("processedRowsPerSecond", 0.0))],
            ),
            (table.LATENCY, [Sample({}, report.get("durationMs", {}).get("triggerExecution", 0))]),
            (table.WATERMARK, [Sample({}, _millis(report.get("eventTime", {}).get("watermark")))]),
            (table.STATE_ROWS, [Sample({}, sum(each["numRowsTotal"] for each in operators))]),
            (table.STATE_BYTES, [Sample({}, sum(each["memoryUsedBytes"] for each in operators))]),
            (table.BEHIND, behind),
            (
                table.OPERATOR_ROWS,
                [
                    Sample({"operator": name}, each["numRowsTotal"])
                    for name, each in zip(names, operators, strict=True)
                ],
            ),
            (
                table.OPERATOR_UPDATED,
                [Sample({"operator": name}, count) for name, count in self._updated.items()],
            ),
            (
                table.OPERATOR_REMOVED,
                [Sample({"operator": name}, count) for name, count in self._removed.items()],
            ),
            (
                table.OPERATOR_LATE,
                [Sample({"operator": name}, count) for name, count in self._late.items()],
            ),
            (table.GROUP_LAG, lags if len(lags) <= MAX_LAG_PARTITIONS else []),
        ]


def behind_latest(source: Mapping[str, Any]) -> int | None:
    """How far a source is behind its newest data, from a progress report; None if unknown."""
    reported = (source.get("metrics") or {}).get("behindLatest")
    if reported is not None:
        return int(reported)
    lags = kafka_lag(source)
    return sum(lags.values()) if lags else None


def kafka_lag(source: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """The lag in records per topic and partition; empty if the source is not Kafka."""
    end, latest = source.get("endOffset"), source.get("latestOffset")
    if not isinstance(end, dict) or not isinstance(latest, dict):
        return {}
    found: dict[tuple[str, str], int] = {}
    for topic, partitions in latest.items():
        read = end.get(topic)
        if not isinstance(partitions, dict) or not isinstance(read, dict):
            return {}
        for partition, offset in partitions.items():
            at = read.get(partition)
            if isinstance(offset, int) and isinstance(at, int):
                found[topic, partition] = max(0, offset - at)
    return found


def _source(names: tuple[str, ...], number: int) -> str:
    """The name of a source, with its number if several sources have the same name."""
    name = names[number] if number < len(names) else "source"
    return name if names.count(name) < 2 else f"{name} #{number}"


def _millis(moment: str | None) -> int:
    return 0 if not moment else round(datetime.fromisoformat(moment).timestamp() * 1000)
