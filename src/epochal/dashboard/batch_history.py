"""Derives the history of a query from its checkpoint: what each batch read, and how long it took.

Pure. Spark keeps no statistics in a checkpoint, so these are derived:

    duration   from the batch's timestamp in `offsets` to the modification time of its commit
    input      the difference between the offsets of two batches, in the source's own unit
    state      rows and bytes in all stores after the batch, measured by reading them
    watermark  from `offsets`; its delay counts from the batch's timestamp

Note: a copy of a checkpoint has new modification times. A commit that seems to be later than the
next batch began is such a copy's, and the duration of its batch is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from epochal.metrics.query_metrics import records_behind

KEPT_BATCHES = 300
MAX_MEASURED_BATCHES = 64
SLACK_MS = 1_000
"""How much the clocks of driver and storage may differ."""
SHOWN_PARTITIONS = 64

KAFKA, FILE, RATE, DELTA, OTHER = "kafka", "file", "rate", "delta", "other"
UNITS = {KAFKA: "records", FILE: "files", RATE: "rows", DELTA: "table versions", OTHER: "offsets"}

NOT_ASKED = "The brokers have not answered yet."
NO_BROKER = (
    "The checkpoint does not name the brokers. Start the dashboard with --bootstrap-servers "
    "HOST:PORT to see the lag."
)
WHY_NO_LAG = {
    FILE: "The checkpoint lists the files that were read, but not where new files arrive.",
    RATE: "This source makes its rows itself, when they are due.",
    DELTA: "The checkpoint does not name the table.",
    OTHER: "The checkpoint does not say where this source ends.",
}
COPIED = (
    "The duration of these batches is unknown: the commits have newer modification times than the "
    "batches after them, as in a copy of a checkpoint."
)


@dataclass(frozen=True, slots=True)
class Offset:
    kind: str
    total: int | None
    """As one number: for Kafka, the sum over all partitions."""
    parts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """For Kafka, by topic and partition."""


@dataclass(frozen=True, slots=True)
class BatchFacts:
    batch_id: int
    started_ms: int | None
    watermark_ms: int | None
    offsets: Mapping[str, Offset]
    committed: bool
    committed_ms: int | None = None
    """The modification time of the commit."""

    @property
    def behind_ms(self) -> int | None:
        if not self.watermark_ms or self.started_ms is None:
            return None
        return self.started_ms - self.watermark_ms


@dataclass(frozen=True, slots=True)
class StateSize:
    """The rows of all stores after a batch, and their bytes before compression."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class EndOffset:
    latest: int
    seconds: float | None = None
    """The age of the oldest record that the query has not read; None if unknown."""


def offset_of(value: Any) -> Offset:
    """Recognize a source by the form of its offset."""
    if isinstance(value, bool) or value is None or isinstance(value, str | float | list):
        return Offset(OTHER, None)
    if isinstance(value, int):
        return Offset(OTHER, value)
    if "logOffset" in value:
        return Offset(FILE, _number(value["logOffset"]))
    if "reservoirVersion" in value:
        return Offset(DELTA, _number(value["reservoirVersion"]))
    if {"offset", "timestamp"} == value.keys():
        return Offset(RATE, _number(value["offset"]))
    parts = {
        (str(topic), int(partition)): at
        for topic, partitions in value.items()
        if isinstance(partitions, dict)
        for partition, offset in partitions.items()
        if str(partition).isdecimal() and (at := _number(offset)) is not None
    }
    return Offset(KAFKA, sum(parts.values()), parts) if parts else Offset(OTHER, None)


def history_json(
    batches: Sequence[BatchFacts],
    files_read: Mapping[str, Mapping[int, int]],
    state: Mapping[int, StateSize],
) -> dict[str, Any]:
    """The history of a query, as its page draws it; without lag.

    `files_read` counts the files of each batch of a file source's log, by source. `state` has the
    batches that were measured.
    """
    shown = sorted(batches, key=lambda batch: batch.batch_id)[-KEPT_BATCHES:]
    before = [None, *shown]
    after = [*shown[1:], None]
    took = [duration_ms(batch, following) for batch, following in zip(shown, after, strict=False)]
    copied = any(ms is None and batch.committed_ms for batch, ms in zip(shown, took, strict=True))
    newest = shown[-1] if shown else None
    names = list(newest.offsets) if newest else []
    return {
        "batches": [
            {
                "batch_id": batch.batch_id,
                "started_ms": batch.started_ms,
                "took_ms": ms,
                "watermark_ms": batch.watermark_ms or None,
                "behind_ms": batch.behind_ms,
                "committed": batch.committed,
                "state_rows": size.rows if (size := state.get(batch.batch_id)) else None,
                "state_bytes": size.bytes if size else None,
                "read": [_read(name, batch, previous, files_read) for name in names],
            }
            for batch, previous, ms in zip(shown, before, took, strict=False)
        ],
        "sources": [with_lag(_source_json(name, shown), {}, NOT_ASKED) for name in names],
        "figures": _figures(shown, took),
        "note": COPIED if copied and not any(ms is not None for ms in took) else None,
    }


def _figures(batches: Sequence[BatchFacts], took: Sequence[int | None]) -> dict[str, Any]:
    """The figures of a query as of its newest batch."""
    durations = sorted(ms for ms in took if ms is not None)
    committed = [batch for batch in batches if batch.committed]
    starts = [batch.started_ms for batch in batches if batch.started_ms is not None]
    intervals = sorted(end - start for start, end in pairwise(starts))
    return {
        "newest": batches[-1].batch_id if batches else None,
        "committed": committed[-1].batch_id if committed else None,
        "took_ms": next((ms for ms in reversed(took) if ms is not None), None),
        "took_p50_ms": durations[(len(durations) - 1) // 2] if durations else None,
        "took_p99_ms": durations[min(len(durations) - 1, len(durations) * 99 // 100)]
        if durations
        else None,
        "interval_ms": intervals[(len(intervals) - 1) // 2] if intervals else None,
    }


def batches_to_measure(batch_ids: Sequence[int]) -> list[int]:
    """The batches whose state is worth reading: the newest, then every n-th, newest first.

    n is a power of two, so that the choice stays the same while batches are added.
    """
    step = 1
    while len(batch_ids) / step > MAX_MEASURED_BATCHES:
        step *= 2
    newest = max(batch_ids, default=None)
    return sorted((n for n in batch_ids if n % step == 0 or n == newest), reverse=True)


def duration_ms(batch: BatchFacts, following: BatchFacts | None) -> int | None:
    """From the start of a batch to its commit; None if the commit's time cannot be right."""
    if batch.started_ms is None or batch.committed_ms is None:
        return None
    if batch.committed_ms < batch.started_ms:
        return None
    next_ms = following.started_ms if following else None
    if next_ms is not None and batch.committed_ms > next_ms + SLACK_MS:
        return None
    return batch.committed_ms - batch.started_ms


def with_lag(
    source: dict[str, Any], ends: Mapping[tuple[str, int], EndOffset], why: str | None
) -> dict[str, Any]:
    """A source with its lag, or with the reason why it is unknown."""
    if source["kind"] != KAFKA or why is not None:
        return {**source, "why": why if source["kind"] == KAFKA else WHY_NO_LAG[source["kind"]]}
    parts = []
    for part in source["parts"]:
        end = ends.get((part["topic"], part["partition"]))
        lag = records_behind(part["at"], end and end.latest)
        parts.append({**part, "latest": end.latest if end else None, "lag": lag})
    lags = [part["lag"] for part in parts if part["lag"] is not None]
    mine = {(part["topic"], part["partition"]) for part in parts}
    ages = [end.seconds for tp, end in ends.items() if tp in mine and end.seconds is not None]
    return {
        **source,
        "parts": parts,
        "lag": sum(lags) if lags else None,
        "latest": sum(part["latest"] or 0 for part in parts) if lags else None,
        "seconds": max(ages, default=None),
        "why": None if lags else "The brokers know none of these partitions.",
    }


def _source_json(name: str, batches: Sequence[BatchFacts]) -> dict[str, Any]:
    committed = [batch for batch in batches if batch.committed and name in batch.offsets]
    at = (committed or list(batches))[-1].offsets[name]
    return {
        "name": name,
        "kind": at.kind,
        "unit": UNITS[at.kind],
        "at": at.total,
        "parts": [
            {"topic": topic, "partition": partition, "at": offset}
            for (topic, partition), offset in sorted(at.parts.items())[:SHOWN_PARTITIONS]
        ],
        "partitions": len(at.parts),
    }


def _read(
    name: str,
    batch: BatchFacts,
    previous: BatchFacts | None,
    files_read: Mapping[str, Mapping[int, int]],
) -> int | None:
    """How much a batch read from a source; None if that does not follow from its offsets."""
    if previous is None or previous.batch_id != batch.batch_id - 1:
        return None
    end, start = batch.offsets.get(name), previous.offsets.get(name)
    if end is None or start is None or end.kind != start.kind or end.total is None:
        return None
    if end.kind == KAFKA:
        return sum(max(0, at - start.parts.get(tp, at)) for tp, at in end.parts.items())
    if start.total is None:
        return None
    if end.kind == FILE:
        counts = [files_read.get(name, {}).get(n) for n in range(start.total + 1, end.total + 1)]
        numbers = [count for count in counts if count is not None]
        return sum(numbers) if len(numbers) == len(counts) else None
    return max(0, end.total - start.total)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
