"""The frames that tasks exchange: a packed header, and rows as one Arrow IPC message. Pure.

Both ends know the schema of an edge's rows from the plan, so no schema is sent. A frame is one
message, header then body; only data frames have a body. The rows of a data frame are ordered by
state partition, and `runs` has the number of rows per partition, so the receiver need not hash
again.

Note: the checksum does not protect against the network; CURVE does that. It protects Arrow, which
trusts the offsets inside a buffer: a frame from a broken peer must raise an error instead of making
Arrow read beyond the end of the buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeAlias, cast

import google_crc32c
import pyarrow as pa

from epochal.errors import EpochError, FrameError

MAGIC = 0xEC
FRAME_VERSION = 2
MAX_FRAME_BYTES = 256 << 20
"""ZeroMQ closes the connection of a peer that sends more."""

MAX_BODY_BYTES = MAX_FRAME_BYTES - (1 << 20)
"""The largest encoded row that can be sent. The rest is for what CURVE adds."""

SPLIT_BYTES = 16 << 20
"""Rows above this size are sent in several frames. Far above what a turn usually produces, so that
it costs nothing there, and far below the limit, because the size is estimated."""

_HEADER = struct.Struct("<BBBBIIH2xIqQQ")
"""Magic, version, kind, watermarks, attempt, sender, edge, runs, epoch, seq, ack.

The checksum of everything else comes before it. Together they are a multiple of eight bytes, and so
is what follows, because Arrow reads numbers of the body in place."""

_CHECKSUM_BYTES = 4
_FIXED_BYTES = _CHECKSUM_BYTES + _HEADER.size

_MAX_RUNS = 1 << 20

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""(state partition, rows), in the order of the rows."""

Body: TypeAlias = "bytes | memoryview | pa.Buffer"


class FrameKind(IntEnum):
    """The purpose of a frame."""

    DATA = 1
    MARKER = 2
    """The sender's rows of `epoch` end here."""
    CREDIT = 3
    """The sender of this frame has processed everything up to `seq`."""
    PULSE = 4
    """The sender has sent everything up to `seq`: what has not arrived is lost."""


_KINDS = frozenset(FrameKind)


@dataclass(frozen=True, slots=True)
class Frame:
    """One message on the channel between two tasks on one edge."""

    kind: FrameKind
    attempt: int
    edge: int
    """The number of the edge, in the order of `plan.stages.edges_of`."""
    sender: int
    epoch: int
    seq: int
    """Data frames and markers of a channel share one sequence, from 1."""
    highs: tuple[int, ...] = ()
    """Highest event time that the sender has seen, per watermark of the plan; -1 if none."""
    runs: Runs = ()
    batch: pa.RecordBatch | None = None
    size: int = 0
    """Bytes of the rows, as credits count them."""
    ack: int = 0
    """The sender has processed what the receiver sent on this edge up to this number, as a credit
    would say; 0 if the frame says nothing about it."""


def encode_frame(frame: Frame, body: Body = b"") -> bytes:
    """Pack a frame; `body` is its rows as one IPC message, without their schema."""
    flat = [number for run in frame.runs for number in run]
    head = MAGIC, FRAME_VERSION, frame.kind, len(frame.highs), frame.attempt, frame.sender
    tail = frame.edge, len(frame.runs), frame.epoch, frame.seq, frame.ack
    header = _HEADER.pack(*head, *tail)
    header += struct.pack(f"<{len(frame.highs)}q{len(flat)}I", *frame.highs, *flat)
    checksum = google_crc32c.extend(google_crc32c.value(header), body)
    return b"".join((checksum.to_bytes(_CHECKSUM_BYTES, "little"), header, body))


def split_rows(batch: pa.RecordBatch, runs: Runs, limit: int) -> list[tuple[pa.RecordBatch, Runs]]:
    """Split rows, in their order, into parts of at most `limit` bytes or one row. Copies nothing.

    Rows may differ much in size, so a part that is too large is halved until it is not.
    """
    if batch.num_rows <= 1 or batch.nbytes <= limit:
        return [(batch, runs)]
    half = batch.num_rows // 2
    first, second = _split_runs(runs, half)
    return [
        *split_rows(batch.slice(0, half), first, limit),
        *split_rows(batch.slice(half), second, limit),
    ]


def _split_runs(runs: Runs, rows: int) -> tuple[Runs, Runs]:
    """Return the runs of the first `rows` rows, and of the others."""
    first, second = [], []
    for partition, count in runs:
        taken = min(count, rows)
        rows -= taken
        first += [(partition, taken)] * (taken > 0)
        second += [(partition, count - taken)] * (count > taken)
    return tuple(first), tuple(second)


def decode_frame(data: bytes, schemas: Sequence[pa.Schema]) -> Frame:
    """Unpack a frame; `schemas` are those of the edges. FrameError if it is malformed."""
    if len(data) < _FIXED_BYTES:
        raise FrameError(f"it has {len(data)} bytes, but needs at least {_FIXED_BYTES}")
    magic, version, kind, watermarks, attempt, sender, edge, runs, epoch, seq, ack = (
        _HEADER.unpack_from(data, _CHECKSUM_BYTES)
    )
    if magic != MAGIC or version != FRAME_VERSION:
        raise FrameError(
            f"it starts with {magic:#x}, version {version}, not {MAGIC:#x}, version {FRAME_VERSION}"
        )
    if kind not in _KINDS or runs > _MAX_RUNS:
        raise FrameError(f"it is of kind {kind} with {runs} runs")
    start = _FIXED_BYTES + 8 * watermarks + 8 * runs
    if len(data) < start or (len(data) > start and kind != FrameKind.DATA):
        raise FrameError(f"it has {len(data)} bytes, which contradicts its counts")
    # Before Arrow sees the body, whose offsets it trusts. And before the edge is looked up: if its
    # number is wrong now, the sender has another plan.
    whole = pa.py_buffer(data)
    checksum = int.from_bytes(data[:_CHECKSUM_BYTES], "little")
    if google_crc32c.value(whole.slice(_CHECKSUM_BYTES)) != checksum:
        raise FrameError("its checksum does not match")
    if edge >= len(schemas):
        raise FrameError(f"it is for edge {edge}, the query has {len(schemas)}")
    numbers = struct.unpack_from(f"<{watermarks}q{2 * runs}I", data, _FIXED_BYTES)
    highs, flat = numbers[:watermarks], numbers[watermarks:]
    pairs = tuple(zip(flat[::2], flat[1::2], strict=True))
    batch = None
    if kind == FrameKind.DATA:
        batch = _decode_batch(whole.slice(start), schemas[edge], pairs)
    size = len(data) - start
    return Frame(FrameKind(kind), attempt, edge, sender, epoch, seq, highs, pairs, batch, size, ack)


def _decode_batch(body: pa.Buffer, schema: pa.Schema, runs: Runs) -> pa.RecordBatch:
    try:
        batch = pa.ipc.read_record_batch(body, schema)
        batch.validate()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FrameError(f"its rows cannot be read ({error})") from None
    expected = sum(count for _, count in runs)
    if batch.num_rows != expected:
        raise FrameError(f"it has {batch.num_rows} rows, but its runs add up to {expected}")
    return batch


def group_rows(frames: Iterable[Frame]) -> dict[int, list[pa.RecordBatch]]:
    by_partition: dict[int, list[pa.RecordBatch]] = {}
    for frame in frames:
        batch = cast(pa.RecordBatch, frame.batch)
        if len(frame.runs) == 1:
            by_partition.setdefault(frame.runs[0][0], []).append(batch)
            continue
        start = 0
        for partition, rows in frame.runs:
            by_partition.setdefault(partition, []).append(batch.slice(start, rows))
            start += rows
    return by_partition


def join(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the same rows in at most one batch."""
    return batches if len(batches) <= 1 else [cast(Any, pa).concat_batches(batches)]


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch with exactly the schema that its receiver expects, except metadata."""
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names:
        raise EpochError(
            f"An operator returned columns {batch.schema.names}, the plan says {schema.names}: the "
            f"next stage cannot read them. Declare the schema that the operator returns."
        )
    return cast(pa.RecordBatch, cast(Any, batch).cast(schema))
