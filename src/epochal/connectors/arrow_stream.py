"""Encodes Arrow batches as bytes, for files and for messages between processes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa


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
