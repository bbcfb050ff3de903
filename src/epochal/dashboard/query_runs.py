"""Collects the records of one run, and converts them to the JSON that the page shows. Pure.

Note: the same record may arrive twice. A journal that is full is rewritten with its newest records
and then read from its start. Epochs and times only grow within a run, so a record that is not newer
than the last one is already known.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from epochal.dashboard.batch_history import FILE, SHOWN_PARTITIONS, UNITS, offset_of
from epochal.metrics.query_metrics import behind_latest
from epochal.metrics.run_records import (
    EpochDone,
    Progressed,
    Record,
    RunEnded,
    RunStarted,
    StatusChanged,
    phases_of,
)

KEPT_EPOCHS = 600
KEPT_RESTARTS = 100
KEPT_REPORTS = 900
"""A quarter of an hour, at one report per second."""

RUNNING, STOPPED, FAILED, LOST = "running", "stopped", "failed", "lost"


@dataclass(slots=True)
class RunView:
    """The newest records of one run."""

    run: RunStarted
    alive: bool = True
    status: StatusChanged | None = None
    end: RunEnded | None = None
    sequence: int = 0
    """The number of epochs and reports added so far."""
    epochs: deque[tuple[int, EpochDone]] = field(default_factory=lambda: deque(maxlen=KEPT_EPOCHS))
    reports: deque[tuple[int, Progressed]] = field(
        default_factory=lambda: deque(maxlen=KEPT_REPORTS)
    )

    restarts: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_RESTARTS))
    """When the query restarted its tasks, in milliseconds since the Unix epoch."""

    late_rows: int = 0
    """Rows that operators dropped because they came too late."""

    def add(self, record: Record) -> bool:
        """Add a record. Returns False if it is already known."""
        match record:
            case RunStarted():
                return False
            case EpochDone():
                if self.epochs and record.epoch <= self.epochs[-1][1].epoch:
                    return False
                self.sequence += 1
                self.epochs.append((self.sequence, record))
            case Progressed():
                if self.reports and record.at_ms <= self.reports[-1][1].at_ms:
                    return False
                self.sequence += 1
                self.reports.append((self.sequence, record))
                self.late_rows += _late_rows(record.report)
            case StatusChanged():
                before = self.status
                if before is not None and record.at_ms <= before.at_ms:
                    return False
                if before is not None and record.restarts > before.restarts:
                    self.restarts.append(record.at_ms)
                self.status = record
            case RunEnded():
                self.end = record
        return True

    @property
    def state(self) -> str:
        """`running`, `stopped`, `failed`, or `lost` if its process was killed."""
        if self.end is not None:
            return STOPPED if self.end.error is None else FAILED
        return RUNNING if self.alive else LOST

    @property
    def newest_epoch(self) -> int | None:
        if self.epochs:
            return self.epochs[-1][1].epoch
        return self.status.epoch if self.status and self.status.epoch >= 0 else None

    def summary(self) -> dict[str, Any]:
        """The run as an entry of the list of queries."""
        run, status, end = self.run, self.status, self.end
        report = self.reports[-1][1].report if self.reports else {}
        running = self.state == RUNNING
        latency = report.get("epochLatencyMs") or {}
        return {
            "name": run.name,
            "query_id": run.query_id,
            "run_id": run.run_id,
            "state": self.state,
            "message": status.message if status and running else "",
            "error": end.error if end else None,
            "started_ms": run.started_ms,
            "ended_ms": end.at_ms if end else None,
            "attempt": status.attempt if status else None,
            "restarts": status.restarts if status else 0,
            "epoch": self.newest_epoch,
            "newest_ms": self.epochs[-1][1].committed_ms if self.epochs else None,
            "input_rate": report.get("inputRowsPerSecond", 0.0) if running else 0.0,
            "p50_ms": latency.get("p50"),
            "p99_ms": latency.get("p99"),
            "behind": _behind(report),
            "state_rows": _state_rows(report),
            "late_rows": self.late_rows,
            "sources": list(run.sources),
            "sink": run.sink,
            "pid": run.pid,
            "host": run.host,
        }

    def since(self, sequence: int) -> dict[str, Any]:
        """Return the epochs and reports that were added after `sequence`."""
        return {
            "run_id": self.run.run_id,
            "sequence": self.sequence,
            "restarts": list(self.restarts),
            "epochs": [epoch_json(epoch) for at, epoch in self.epochs if at > sequence],
            "reports": [report_json(record) for at, record in self.reports if at > sequence],
        }


def epoch_json(epoch: EpochDone) -> dict[str, Any]:
    """An epoch as the timeline draws it.

    Phases are [name, begin, length], in milliseconds since the cut.
    """
    return {
        "epoch": epoch.epoch,
        "attempt": epoch.attempt,
        "started_ms": epoch.started_ms,
        "cut_ms": epoch.cut_ms,
        "committed_ms": epoch.committed_ms,
        "latency_ms": epoch.latency_ms,
        "rows_in": sum(epoch.rows_in),
        "rows_out": epoch.rows_out,
        "phases": [
            [phase.name, round(phase.start_ms - epoch.cut_ms, 2), round(phase.took_ms, 2)]
            for phase in phases_of(epoch)
        ],
    }


def report_json(progress: Progressed) -> dict[str, Any]:
    """A progress report as the charts draw it."""
    report = progress.report
    latency = report.get("epochLatencyMs") or {}
    return {
        "at_ms": progress.at_ms,
        "epoch": report.get("batchId"),
        "input_rate": report.get("inputRowsPerSecond", 0.0),
        "processed_rate": report.get("processedRowsPerSecond", 0.0),
        "rows_in": report.get("numInputRows", 0),
        "rows_out": (report.get("sink") or {}).get("numOutputRows", 0),
        "p50_ms": latency.get("p50"),
        "p99_ms": latency.get("p99"),
        "max_ms": latency.get("max"),
        "behind": _behind(report),
        "behind_ms": _behind_clock(progress.at_ms, report),
        "watermark_ms": _watermark_ms(report),
        "state_rows": _state_rows(report),
        "sources": [_source_json(source) for source in report.get("sources", ())],
        "operators": [
            {
                "name": operator.get("operatorName"),
                "rows": operator.get("numRowsTotal", 0),
                "updated": operator.get("numRowsUpdated", 0),
                "removed": operator.get("numRowsRemoved", 0),
                "partitions": operator.get("numShufflePartitions"),
            }
            for operator in report.get("stateOperators", ())
        ],
    }


def _source_json(source: dict[str, Any]) -> dict[str, Any]:
    at, latest = offset_of(source.get("endOffset")), offset_of(source.get("latestOffset"))
    name = source.get("description")
    lag = behind_latest(source)
    lags = {tp: max(0, end - at.parts[tp]) for tp, end in latest.parts.items() if tp in at.parts}
    parts = [
        {
            "topic": tp[0],
            "partition": tp[1],
            "at": at.parts.get(tp),
            "latest": end,
            "lag": lags.get(tp),
        }
        for tp, end in sorted(latest.parts.items(), key=lambda part: -lags.get(part[0], 0))
    ]
    return {
        "name": name,
        "kind": at.kind,
        "unit": _unit_of_lag(at.kind, str(name)),
        "rate": source.get("inputRowsPerSecond", 0.0),
        "at": at.total,
        "end": source.get("endOffset"),
        "latest": latest.total,
        "lag": lag,
        "partitions": len(latest.parts),
        "parts": parts[:SHOWN_PARTITIONS],
        "why": None if lag is not None else "This source does not report where it ends.",
    }


def _unit_of_lag(kind: str, name: str) -> str:
    if name.partition("[")[0] == "rate":
        return "rows; its position is in seconds"
    return "batches of files" if kind == FILE else UNITS[kind]


def _late_rows(report: dict[str, Any]) -> int:
    operators = report.get("stateOperators") or ()
    return sum(int(operator.get("numRowsDroppedByWatermark") or 0) for operator in operators)


def _watermark_ms(report: dict[str, Any]) -> int | None:
    text = (report.get("eventTime") or {}).get("watermark")
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    # Before the first row there is no watermark, and Spark reports the year 1970.
    return round(moment.timestamp() * 1000) or None if moment else None


def _behind_clock(at_ms: int, report: dict[str, Any]) -> int | None:
    watermark_ms = _watermark_ms(report)
    return None if watermark_ms is None else at_ms - watermark_ms


def _behind(report: dict[str, Any]) -> int | None:
    distances = [behind_latest(source) for source in report.get("sources", ())]
    numbers = [distance for distance in distances if distance is not None]
    return sum(numbers) if numbers else None


def _state_rows(report: dict[str, Any]) -> int | None:
    operators = report.get("stateOperators") or ()
    return sum(operator.get("numRowsTotal", 0) for operator in operators) if operators else None
