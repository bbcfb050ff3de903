"""Encodes Arrow batches as bytes, for files and for messages between processes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import pyarrow as pa

JOINED_BYTES = 1024 * 1024


def encode_stream(
    schema: pa.Schema,
    batches: Sequence[pa.RecordBatch],
    *,
    compression: Literal["lz4", "zstd"] | None = None,
) -> pa.Buffer:
    """Encode batches as one Arrow IPC stream; `compression` applies to the column buffers."""
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(out, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return out.getvalue()


def decode_stream(data: bytes) -> pa.Table:
    """Read all batches of an Arrow IPC stream."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join neighbours of equal schema, up to `JOINED_BYTES` each.

    Encoding and checking a batch takes about 100 µs even if it has only one row, and costs 400
    bytes. Larger batches are not worth a copy.
    """
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        size += batch.nbytes
        if waiting and (size > JOINED_BYTES or not batch.schema.equals(waiting[0].schema)):
            yield from _join(waiting)
            waiting, size = [], batch.nbytes
        waiting.append(batch)
    yield from _join(waiting)


def _join(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    return pa.Table.from_batches(batches).combine_chunks().to_batches()
