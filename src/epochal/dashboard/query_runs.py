"""Collects the records of one run as the JSON that the page shows, and names queries. Pure.

Spark does not write the name of a query into its checkpoint. A query without a run that reports its
name is therefore called after its directory. Each query has a name, a place and one status.

Note: the same record may arrive twice. A journal that is full is rewritten with its newest records
and then read from its start. Epochs and times only grow within a run, so a record that is not newer
than the last one is already known.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from epochal.dashboard.batch_history import FILE, SHOWN_PARTITIONS, UNITS, offset_of
from epochal.metrics.query_metrics import behind_latest, records_behind
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
ACTIVE = "active"
"""The state of a query without a run whose checkpoint was written to a moment ago."""
CHECKPOINT = "checkpoint"
"""The state of any other query without a run."""
HEALTHY, UNHEALTHY, UNREADABLE, UNKNOWN = "healthy", "unhealthy", "unreadable", "unknown"
MISSING = "missing"
"""There is no such directory."""

ATTENTION, AT_WORK, AT_REST, UNCHECKED = "attention", "running", "idle", "unchecked"
"""The groups of statuses, in the order in which the page lists them."""

_GENERIC = frozenset(
    f"{prefix}{name}{suffix}"
    for prefix in ("", "_")
    for name in ("checkpoint", "ckpt", "chk", "cp")
    for suffix in ("", "s")
)
"""Directory names that do not tell one query from another."""


@dataclass(slots=True)
class RunView:
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
                operators = record.report.get("stateOperators") or ()
                late = [operator.get("numRowsDroppedByWatermark") for operator in operators]
                self.late_rows += sum(int(rows or 0) for rows in late)
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
    watermark_ms = _watermark_ms(report)
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
        "behind_ms": None if watermark_ms is None else progress.at_ms - watermark_ms,
        "watermark_ms": watermark_ms,
        "state_rows": _state_rows(report),
        "sources": [_source_json(source) for source in report.get("sources", ())],
        "operators": [
            {
                "name": operator.get("operatorName"),
                "rows": operator.get("numRowsTotal", 0),
                "updated": operator.get("numRowsUpdated", 0),
                "partitions": operator.get("numShufflePartitions"),
            }
            for operator in report.get("stateOperators", ())
        ],
    }


def _source_json(source: dict[str, Any]) -> dict[str, Any]:
    at, latest = offset_of(source.get("endOffset")), offset_of(source.get("latestOffset"))
    name = source.get("description")
    unit = "batches of files" if at.kind == FILE else UNITS[at.kind]
    if str(name).partition("[")[0] == "rate":
        unit = "rows; its position is in seconds"
    lag = behind_latest(source)
    lags = {tp: records_behind(at.parts.get(tp), end) for tp, end in latest.parts.items()}
    parts = [
        {"topic": tp[0], "partition": tp[1], "at": at.parts.get(tp), "latest": end, "lag": lags[tp]}
        for tp, end in sorted(latest.parts.items(), key=lambda part: -(lags[part[0]] or 0))
    ]
    return {
        "name": name,
        "kind": at.kind,
        "unit": unit,
        "rate": source.get("inputRowsPerSecond", 0.0),
        "at": at.total,
        "end": source.get("endOffset"),
        "latest": latest.total,
        "lag": lag,
        "partitions": len(latest.parts),
        "parts": parts[:SHOWN_PARTITIONS],
        "why": None if lag is not None else "This source does not report where it ends.",
    }


def _watermark_ms(report: dict[str, Any]) -> int | None:
    text = (report.get("eventTime") or {}).get("watermark")
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    # Before the first row there is no watermark, and Spark reports the year 1970.
    return round(moment.timestamp() * 1000) or None if moment else None


def _behind(report: dict[str, Any]) -> int | None:
    distances = [behind_latest(source) for source in report.get("sources", ())]
    numbers = [distance for distance in distances if distance is not None]
    return sum(numbers) if numbers else None


def _state_rows(report: dict[str, Any]) -> int | None:
    operators = report.get("stateOperators") or ()
    return sum(operator.get("numRowsTotal", 0) for operator in operators) if operators else None


def status_of(state: str, health: str) -> str:
    """The one word to show first: what needs attention, then what the query does.

    Of a query that has ended and whose checkpoint was removed there is nothing to rescue.
    """
    if state in (STOPPED, LOST) and health == MISSING:
        return MISSING
    if state in (FAILED, LOST):
        return state
    if health in (UNHEALTHY, UNREADABLE, MISSING):
        return UNREADABLE if health == MISSING else health
    if state in (RUNNING, ACTIVE):
        return state
    return HEALTHY if health == HEALTHY else UNKNOWN


def group_of(status: str) -> str:
    if status in (FAILED, LOST, UNHEALTHY, UNREADABLE):
        return ATTENTION
    if status in (RUNNING, ACTIVE):
        return AT_WORK
    return AT_REST if status in (HEALTHY, MISSING) else UNCHECKED


def place_of(url: str) -> str:
    """The directory that contains a checkpoint, for grouping.

    If the checkpoint's own directory has a general name such as `checkpoint`, the directory around
    it belongs to the query as well.
    """
    parts = _parts(url)
    around = parts[: -len(_own(parts))]
    return "/".join(around) or "/"


def names_of(urls: Sequence[str]) -> dict[str, str]:
    """A short name for each checkpoint: its directory, with parents where two are the same."""
    parts = {url: _parts(url) for url in urls}
    own = {url: len(_own(path)) for url, path in parts.items()}
    depth = dict.fromkeys(urls, 0)
    while True:
        names = {url: _name(parts[url], own[url], depth[url]) for url in depth}
        counted = Counter(names.values())
        same = [url for url, name in names.items() if counted[name] > 1]
        longer = [url for url in same if own[url] + depth[url] < len(parts[url])]
        if not longer:
            return names
        for url in longer:
            depth[url] += 1


def _name(parts: list[str], own: int, more: int) -> str:
    """The directory's name; a general last part is shown only if parents must tell."""
    first = max(0, len(parts) - own - more)
    last = len(parts) - 1 if own > 1 else len(parts)
    return "/".join(part for part in parts[first:last] if part) or "/".join(parts)


def _own(parts: list[str]) -> list[str]:
    """The last parts of a path that belong to one query."""
    generic = len(parts) > 1 and parts[-1].lower() in _GENERIC and parts[-2] != ""
    return parts[-2:] if generic else parts[-1:]


def _parts(url: str) -> list[str]:
    return url.rstrip("/").split("/")
