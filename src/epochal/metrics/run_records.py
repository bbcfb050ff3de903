"""The records that a run emits about its progress. Pure data.

The engine creates them. Three outputs consume them: the journal that the dashboard reads, the
metrics and the traces. A dashboard may be newer or older than the query that it shows. Fields may
therefore be added with a default, but never renamed or removed.
"""

from __future__ import annotations

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
    rows_out: int = 0
    prepare_ms: float = 0
    """From the cut until every task had made its part of the epoch durable."""
    state_ms: float = 0
    """Of that, the time of the slowest task for writing state."""
    stage_ms: float = 0
    """Of that, the time of the slowest task for staging output."""
    queue_ms: float = 0
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


class Output(Protocol):
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
    """Encode a record as one line of JSON."""
    return _encoder.encode(record) + b"\n"


def decode(line: bytes) -> Record | None:
    """Decode a line; None for a record that this release does not know."""
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError:
        return None
