"""The records that a run emits about its progress, and the phases of an epoch in them. Pure.

The engine creates them. Three outputs consume them: the journal that the dashboard reads, the
metrics and the traces. A dashboard may be newer or older than the query that it shows. Fields may
therefore be added with a default, but never renamed or removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec


class RunStarted(msgspec.Struct, frozen=True, tag="run", tag_field="kind"):
    """The first record of a run, and of every file of its journal."""

    query_id: str
    run_id: str
    name: str | None
    checkpoint: str
    sources: tuple[str, ...]
    sink: str
    started_ms: int
    pid: int
    host: str
    operators: tuple[str, ...] = ()
    version: str = ""


class EpochDone(msgspec.Struct, frozen=True, tag="epoch", tag_field="kind"):
    """An epoch is committed. Times of day and durations are in milliseconds."""

    epoch: int
    started_ms: int
    cut_ms: int
    """When the coordinator announced the end of the epoch."""
    committed_ms: int
    rows_in: tuple[int, ...] = ()
    """Per source."""
    rows_out: int = 0
    prepare_ms: float = 0
    """From the cut until every task had made its part of the epoch durable."""
    state_ms: float = 0
    """Of that, the time of the slowest task for writing state."""
    stage_ms: float = 0
    """Of that, the time of the slowest task for staging output."""
    queue_ms: float = 0
    """How long the epoch then waited for earlier epochs."""
    wal_ms: float = 0
    sink_ms: float = 0
    publish_ms: float = 0
    commit_ms: float = 0
    ack_ms: float | None = None
    """None if the sources had not confirmed when the record was written."""
    attempt: int = 0
    dead_letters: int = 0
    """Rows that the sink refused; not in `rows_out`."""

    @property
    def latency_ms(self) -> int:
        """From the cut to the commit: the latency of a row on top of the length of the epoch."""
        return max(0, self.committed_ms - self.cut_ms)


class Progressed(msgspec.Struct, frozen=True, tag="progress", tag_field="kind"):
    """A progress report, with Spark's keys."""

    at_ms: int
    report: dict[str, Any]


class StatusChanged(msgspec.Struct, frozen=True, tag="status", tag_field="kind"):
    """The current activity of the run."""

    at_ms: int
    message: str
    epoch: int
    attempt: int
    restarts: int
    degraded: str = ""
    """Why a source cannot be reached; empty if all can. Runs of release 0.1 do not record it."""


class RunEnded(msgspec.Struct, frozen=True, tag="end", tag_field="kind"):
    """The last record. Without an error, the run was stopped."""

    at_ms: int
    error: str | None = None


Record: TypeAlias = RunStarted | EpochDone | Progressed | StatusChanged | RunEnded


class RecordOutput(Protocol):
    """A consumer of records. Called from one thread at a time; may raise OSError."""

    def write(self, records: list[Record]) -> None:
        """Process records, oldest first."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    return _encoder.encode(record) + b"\n"


def decode(line: bytes) -> Record | None:
    """Decode a line; None for a record that this release does not know."""
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None


PHASES = ("cut", "state", "prepare", "log", "commit", "ack")
"""The steps of the protocol in an epoch, for timelines and traces. They follow each other without
gaps from the cut to the commit, even if clocks disagree.

    cut       markers travel through the plan and are aligned; starts when the cut is announced
    state     tasks write the state that the epoch changed
    prepare   tasks stage the epoch's output
    log       the offset entry is written, after waiting for earlier epochs
    commit    the sink commits, the state is published, the commit entry is written
    ack       sources are acknowledged, after the commit
"""


@dataclass(frozen=True, slots=True)
class EpochPhase:
    """One step of one epoch."""

    name: str
    start_ms: float
    """In milliseconds since the Unix epoch."""
    took_ms: float

    @property
    def end_ms(self) -> float:
        return self.start_ms + self.took_ms


def phases_of(epoch: EpochDone) -> tuple[EpochPhase, ...]:
    """The phases of an epoch in order; `ack` only if its time is known."""
    # Tasks work in parallel, so `state` and `prepare` are the times of the slowest task, and `cut`
    # is the rest of the time until all tasks were done.
    whole = max(0.0, epoch.prepare_ms)
    # These times come from other hosts and threads, so none may exceed the time it is part of.
    state = min(max(0.0, epoch.state_ms), whole)
    stage = min(max(0.0, epoch.stage_ms), whole - state)
    total = max(0.0, float(epoch.committed_ms - epoch.cut_ms), whole)
    log = min(max(0.0, epoch.queue_ms) + max(0.0, epoch.wal_ms), total - whole)
    took = [whole - state - stage, state, stage, log, total - whole - log]
    if epoch.ack_ms is not None:
        took.append(max(0.0, epoch.ack_ms))
    phases: list[EpochPhase] = []
    at = float(epoch.cut_ms)
    for name, length in zip(PHASES, took, strict=False):
        phases.append(EpochPhase(name, at, length))
        at += length
    return tuple(phases)
