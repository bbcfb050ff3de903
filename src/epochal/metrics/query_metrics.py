"""Every metric of a query: name, kind and meaning; turns the records of a run into metrics.

Counters start at zero with every run, as Prometheus expects. A query that has ended keeps its last
values, except that its rates are zero.

Spark's own gauges keep their names, with the prefix `spark_streaming_` and `_` instead of `-`, as
Spark's Prometheus servlet writes them. The query is a label, not part of the name.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

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


def _gauge(name: str, help: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, "gauge", help, labels)


def _counter(name: str, help: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, "counter", help, labels)


METRICS = (
    _gauge("spark_streaming_inputRate_total", "Rows that arrive per second."),
    _gauge("spark_streaming_processingRate_total", "Rows processed per second of reading."),
    _gauge(
        "spark_streaming_latency",
        "Milliseconds from an epoch's start to its commit (triggerExecution).",
    ),
    _gauge(
        "spark_streaming_eventTime_watermark",
        "The watermark, in milliseconds since 1970; 0 if none.",
    ),
    _gauge("spark_streaming_states_rowsTotal", "Rows in all state stores."),
    _gauge("spark_streaming_states_usedBytes", "Bytes used by all state stores."),
    _gauge("epochal_query_up", "1 while the query is active, 0 after it has ended."),
    _gauge("epochal_query_failed", "1 if the query ended with an error."),
    _gauge(
        "epochal_query_degraded",
        "1 while the query waits for something that does not work: storage, a source, a sink, "
        "slots.",
    ),
    _counter("epochal_query_restarts_total", "Restarts of the query's tasks."),
    _gauge("epochal_query_attempt", "The number of the current attempt."),
    _gauge("epochal_query_start_time_seconds", "When the run started."),
    _gauge("epochal_epoch", "The newest committed epoch: Spark's batch id."),
    _counter("epochal_epochs_committed_total", "Epochs committed in this run."),
    _gauge("epochal_last_commit_timestamp_seconds", "When the newest epoch was committed."),
    _counter("epochal_rows_in_total", "Rows read in this run.", "source"),
    _counter("epochal_rows_out_total", "Rows written to the sink in this run."),
    _counter("epochal_dead_letters_total", "Rows that the sink refused in this run."),
    MetricSpec(
        "epochal_epoch_latency_seconds", "histogram", "From the cut of an epoch to its commit."
    ),
    _counter(
        "epochal_epoch_phase_seconds_total",
        "Time spent in each phase of epochs: cut, state, prepare, log, commit, ack.",
        "phase",
    ),
    _gauge(
        "epochal_source_behind_latest",
        "Data in the source that is not processed yet, in the source's own unit.",
        "source",
    ),
    _gauge("epochal_state_operator_rows", "Rows in an operator's state.", "operator"),
    _counter(
        "epochal_state_operator_rows_updated_total",
        "Rows written to an operator's state.",
        "operator",
    ),
    _counter(
        "epochal_state_operator_rows_removed_total",
        "Rows removed from an operator's state.",
        "operator",
    ),
    _counter(
        "epochal_state_operator_rows_dropped_by_watermark_total",
        "Rows that an operator dropped because they came too late.",
        "operator",
    ),
    _gauge(
        "kafka_consumergroup_group_lag",
        "Records of a Kafka partition that the query has not committed; the group is the query's "
        "name.",
        "group",
        "topic",
        "partition",
    ),
)

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
MAX_LAG_PARTITIONS = 1_000
"""With more partitions, only the sum is exported, as `epochal_source_behind_latest`."""

Values: TypeAlias = "dict[str, float | Mapping[str, float] | list[Sample]]"
"""By metric: its value, its values by the one label that it has, or its samples."""


class QueryMetrics:
    """The metrics of one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._run: RunStarted | None = None
        self._status = StatusChanged(0, "", -1, 0, 0)
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
            values = {**self._epoch_values(run), **self._report_values(run)}
        base = {"query": run.name or run.query_id, "query_id": run.query_id, "run_id": run.run_id}

        def samples(spec: MetricSpec) -> list[Sample]:
            match values[spec.name]:
                case list(ready):
                    return [Sample({**base, **s.labels}, s.value, s.suffix) for s in ready]
                case int(value) | float(value):
                    return [Sample(base, value)]
                case by_label:
                    (label,) = spec.labels
                    return [Sample({**base, label: name}, n) for name, n in by_label.items()]

        return [Metric(spec.name, spec.kind, spec.help, samples(spec)) for spec in METRICS]

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

    def _epoch_values(self, run: RunStarted) -> Values:
        end, status = self._end, self._status
        counted, buckets = 0, []
        for top, count in zip((*LATENCY_BUCKETS, "+Inf"), self._buckets, strict=True):
            counted += count
            buckets.append(Sample({"le": str(top)}, counted, "_bucket"))
        return {
            "epochal_query_up": int(end is None),
            "epochal_query_failed": int(end is not None and end.error is not None),
            "epochal_query_degraded": int(bool(status.degraded)),
            "epochal_query_restarts_total": status.restarts,
            "epochal_query_attempt": status.attempt,
            "epochal_query_start_time_seconds": run.started_ms / 1000,
            "epochal_epoch": self._epoch,
            "epochal_epochs_committed_total": self._epochs,
            "epochal_last_commit_timestamp_seconds": self._committed_ms / 1000,
            "epochal_rows_in_total": {
                _source(run.sources, number): count for number, count in enumerate(self._rows_in)
            },
            "epochal_rows_out_total": self._rows_out,
            "epochal_dead_letters_total": self._dead_letters,
            "epochal_epoch_latency_seconds": [
                *buckets,
                Sample({}, self._latency_seconds, "_sum"),
                Sample({}, counted, "_count"),
            ],
            "epochal_epoch_phase_seconds_total": dict(self._phases),
            "epochal_state_operator_rows_updated_total": dict(self._updated),
            "epochal_state_operator_rows_removed_total": dict(self._removed),
            "epochal_state_operator_rows_dropped_by_watermark_total": dict(self._late),
        }

    def _report_values(self, run: RunStarted) -> Values:
        report, running = self._report, int(self._end is None)
        operators, sources = report.get("stateOperators", []), report.get("sources", [])
        by_operator: defaultdict[str, int] = defaultdict(int)
        for operator in operators:
            by_operator[str(operator.get("operatorName"))] += operator["numRowsTotal"]
        behind = ((number, behind_latest(source)) for number, source in enumerate(sources))
        group = run.name or run.query_id
        lags = [
            Sample({"group": group, "topic": topic, "partition": partition}, lag)
            for source in sources
            for (topic, partition), lag in kafka_lag(source).items()
        ]
        watermark = report.get("eventTime", {}).get("watermark")
        watermark_ms = 1000 * datetime.fromisoformat(watermark).timestamp() if watermark else 0
        return {
            "spark_streaming_inputRate_total": running * report.get("inputRowsPerSecond", 0.0),
            "spark_streaming_processingRate_total": running
            * report.get("processedRowsPerSecond", 0.0),
            "spark_streaming_latency": report.get("durationMs", {}).get("triggerExecution", 0),
            "spark_streaming_eventTime_watermark": round(watermark_ms),
            "spark_streaming_states_rowsTotal": sum(by_operator.values()),
            "spark_streaming_states_usedBytes": sum(o["memoryUsedBytes"] for o in operators),
            "epochal_source_behind_latest": {
                _source(run.sources, number): lag for number, lag in behind if lag is not None
            },
            "epochal_state_operator_rows": by_operator,
            "kafka_consumergroup_group_lag": lags if len(lags) <= MAX_LAG_PARTITIONS else [],
        }


def behind_latest(source: Mapping[str, Any]) -> int | None:
    """How far a source is behind its newest data, from a progress report; None if unknown."""
    reported = (source.get("metrics") or {}).get("behindLatest")
    if reported is not None:
        return int(reported)
    lags = kafka_lag(source)
    return sum(lags.values()) if lags else None


def records_behind(position: Any, latest: Any) -> int | None:
    """How many records of a partition wait; None if one of the offsets is not known.

    A recreated topic may end before the old position. Then the lag is 0, not negative. A source
    that knows that it has read nothing of a partition passes position 0.
    """
    is_known = isinstance(position, int) and isinstance(latest, int)
    return max(0, latest - position) if is_known else None


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
            lag = records_behind(read.get(partition), offset)
            if lag is not None:
                lags[topic, partition] = lag
    return lags


def _source(names: tuple[str, ...], number: int) -> str:
    """The name of a source, with its number if several sources have the same name."""
    name = names[number] if number < len(names) else "source"
    return name if names.count(name) < 2 else f"{name} #{number}"
