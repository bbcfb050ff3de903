"""Every metric of a query: name, kind and meaning; turns the records of a run into metrics.

Counters start at zero with every run, as Prometheus expects. A query that has ended keeps its last
values, except that its rates are zero.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from epochal.metrics.prometheus import Metric, Sample
from epochal.metrics.run_records import (
    EpochDone,
    Progressed,
    Record,
    RunEnded,
    RunStarted,
    StatusChanged,
    phases_of,
)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric. All have the labels `query`, `query_id` and `run_id` in addition to `labels`."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


# Spark's own gauges keep their names, with the prefix `spark_streaming_` and `_` instead of `-`, as
# Spark's Prometheus servlet writes them. The query is a label, not part of the name.
_S = "spark_streaming_"
_E = "epochal_"

INPUT_RATE = MetricSpec(f"{_S}inputRate_total", "gauge", "Rows that arrive per second.")
PROCESSING_RATE = MetricSpec(
    f"{_S}processingRate_total", "gauge", "Rows processed per second of reading."
)
LATENCY = MetricSpec(
    f"{_S}latency", "gauge", "Milliseconds from an epoch's start to its commit (triggerExecution)."
)
WATERMARK = MetricSpec(
    f"{_S}eventTime_watermark", "gauge", "The watermark, in milliseconds since 1970; 0 if none."
)
STATE_ROWS = MetricSpec(f"{_S}states_rowsTotal", "gauge", "Rows in all state stores.")
STATE_BYTES = MetricSpec(f"{_S}states_usedBytes", "gauge", "Bytes used by all state stores.")

QUERY_UP = MetricSpec(
    f"{_E}query_up", "gauge", "1 while the query is active, 0 after it has ended."
)
QUERY_FAILED = MetricSpec(f"{_E}query_failed", "gauge", "1 if the query ended with an error.")
RESTARTS = MetricSpec(f"{_E}query_restarts_total", "counter", "Restarts of the query's tasks.")
DEGRADED = MetricSpec(
    f"{_E}query_degraded",
    "gauge",
    "1 while the query waits for something that does not work: storage, a source, a sink, slots.",
)
ATTEMPT = MetricSpec(f"{_E}query_attempt", "gauge", "The number of the current attempt.")
START_TIME = MetricSpec(f"{_E}query_start_time_seconds", "gauge", "When the run started.")
EPOCH = MetricSpec(f"{_E}epoch", "gauge", "The newest committed epoch: Spark's batch id.")
EPOCHS = MetricSpec(f"{_E}epochs_committed_total", "counter", "Epochs committed in this run.")
LAST_COMMIT = MetricSpec(
    f"{_E}last_commit_timestamp_seconds", "gauge", "When the newest epoch was committed."
)
ROWS_IN = MetricSpec(f"{_E}rows_in_total", "counter", "Rows read in this run.", ("source",))
ROWS_OUT = MetricSpec(f"{_E}rows_out_total", "counter", "Rows written to the sink in this run.")
DEAD_LETTERS = MetricSpec(
    f"{_E}dead_letters_total", "counter", "Rows that the sink refused in this run."
)
EPOCH_LATENCY = MetricSpec(
    f"{_E}epoch_latency_seconds", "histogram", "From the cut of an epoch to its commit."
)
PHASE_SECONDS = MetricSpec(
    f"{_E}epoch_phase_seconds_total",
    "counter",
    "Time spent in each phase of epochs: cut, state, prepare, log, commit, ack.",
    ("phase",),
)
BEHIND = MetricSpec(
    f"{_E}source_behind_latest",
    "gauge",
    "Data in the source that is not processed yet, in the source's own unit.",
    ("source",),
)
OPERATOR_ROWS = MetricSpec(
    f"{_E}state_operator_rows", "gauge", "Rows in an operator's state.", ("operator",)
)
OPERATOR_UPDATED = MetricSpec(
    f"{_E}state_operator_rows_updated_total",
    "counter",
    "Rows written to an operator's state.",
    ("operator",),
)
OPERATOR_REMOVED = MetricSpec(
    f"{_E}state_operator_rows_removed_total",
    "counter",
    "Rows removed from an operator's state.",
    ("operator",),
)
OPERATOR_LATE = MetricSpec(
    f"{_E}state_operator_rows_dropped_by_watermark_total",
    "counter",
    "Rows that an operator dropped because they came too late.",
    ("operator",),
)
GROUP_LAG = MetricSpec(
    "kafka_consumergroup_group_lag",
    "gauge",
    "Records of a Kafka partition that the query has not committed; the group is the query's name.",
    ("group", "topic", "partition"),
)

METRICS = (
    *(INPUT_RATE, PROCESSING_RATE, LATENCY, WATERMARK, STATE_ROWS, STATE_BYTES),
    *(QUERY_UP, QUERY_FAILED, DEGRADED, RESTARTS, ATTEMPT, START_TIME),
    *(EPOCH, EPOCHS, LAST_COMMIT),
    *(ROWS_IN, ROWS_OUT, DEAD_LETTERS, EPOCH_LATENCY, PHASE_SECONDS, BEHIND),
    *(OPERATOR_ROWS, OPERATOR_UPDATED, OPERATOR_REMOVED, OPERATOR_LATE, GROUP_LAG),
)


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
            metrics = [*self._run_metrics(), *self._epoch_metrics(), *self._report_metrics(run)]
        base = {"query": run.name or run.query_id, "query_id": run.query_id, "run_id": run.run_id}
        return [
            Metric(
                spec.name,
                spec.kind,
                spec.help,
                [
                    Sample({**base, **sample.labels}, sample.value, sample.suffix)
                    for sample in samples
                ],
            )
            for spec, samples in metrics
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
            (QUERY_UP, [Sample({}, int(self._end is None))]),
            (QUERY_FAILED, [Sample({}, int(failed))]),
            (DEGRADED, [Sample({}, int(bool(status and status.degraded)))]),
            (RESTARTS, [Sample({}, status.restarts if status else 0)]),
            (ATTEMPT, [Sample({}, status.attempt if status else 0)]),
            (START_TIME, [Sample({}, self._run.started_ms / 1000)]),
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
            (EPOCH, [Sample({}, self._epoch)]),
            (EPOCHS, [Sample({}, self._epochs)]),
            (LAST_COMMIT, [Sample({}, self._committed_ms / 1000)]),
            (ROWS_IN, rows),
            (ROWS_OUT, [Sample({}, self._rows_out)]),
            (DEAD_LETTERS, [Sample({}, self._dead_letters)]),
            (
                EPOCH_LATENCY,
                [
                    *buckets,
                    Sample({}, self._latency_seconds, "_sum"),
                    Sample({}, counted, "_count"),
                ],
            ),
            (PHASE_SECONDS, [Sample({"phase": name}, took) for name, took in self._phases.items()]),
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
        names = [str(operator.get("operatorName")) for operator in operators]
        return [
            (INPUT_RATE, [Sample({}, running * report.get("inputRowsPerSecond", 0.0))]),
            (PROCESSING_RATE, [Sample({}, running * report.get("processedRowsPerSecond", 0.0))]),
            (LATENCY, [Sample({}, report.get("durationMs", {}).get("triggerExecution", 0))]),
            (WATERMARK, [Sample({}, _millis(report.get("eventTime", {}).get("watermark")))]),
            (STATE_ROWS, [Sample({}, sum(operator["numRowsTotal"] for operator in operators))]),
            (STATE_BYTES, [Sample({}, sum(operator["memoryUsedBytes"] for operator in operators))]),
            (BEHIND, behind),
            (
                OPERATOR_ROWS,
                [
                    Sample({"operator": name}, operator["numRowsTotal"])
                    for name, operator in zip(names, operators, strict=True)
                ],
            ),
            (
                OPERATOR_UPDATED,
                [Sample({"operator": name}, count) for name, count in self._updated.items()],
            ),
            (
                OPERATOR_REMOVED,
                [Sample({"operator": name}, count) for name, count in self._removed.items()],
            ),
            (
                OPERATOR_LATE,
                [Sample({"operator": name}, count) for name, count in self._late.items()],
            ),
            (GROUP_LAG, lags if len(lags) <= MAX_LAG_PARTITIONS else []),
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
    lags: dict[tuple[str, str], int] = {}
    for topic, partitions in latest.items():
        read = end.get(topic)
        if not isinstance(partitions, dict) or not isinstance(read, dict):
            return {}
        for partition, offset in partitions.items():
            at = read.get(partition)
            if isinstance(offset, int) and isinstance(at, int):
                lags[topic, partition] = max(0, offset - at)
    return lags


def _source(names: tuple[str, ...], number: int) -> str:
    """The name of a source, with its number if several sources have the same name."""
    name = names[number] if number < len(names) else "source"
    return name if names.count(name) < 2 else f"{name} #{number}"


def _millis(moment: str | None) -> int:
    return 0 if not moment else round(datetime.fromisoformat(moment).timestamp() * 1000)
