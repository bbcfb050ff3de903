"""Arrow batches as bytes, for files and messages between processes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def to_ipc(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    """One Arrow stream of these batches."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return out.getvalue().to_pybytes()


def from_ipc(data: bytes) -> pa.Table:
    """All batches of an Arrow stream."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
