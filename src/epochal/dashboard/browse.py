"""Reads offsets and state of any version, one page at a time. It never writes.

A request names a store or a variable. The name is first looked up in what the checkpoint lists, and
only then used to open something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from epochal.checkpoint.directory import Checkpoint
from epochal.errors import EpochalError, OptionError
from epochal.files import Files
from epochal.tools.inspect.view_models import offsets_of
from epochal.tools.read_state.export import json_batches
from epochal.tools.read_state.overview import StoreOverview, overview
from epochal.tools.read_state.read import StateReader, open_batch, open_reader
from epochal.tools.read_state.stored_rows import measure_store

PAGE_ROWS = 50
MAX_PAGE_ROWS = 500
NEWEST_TRIES = 2


@dataclass(frozen=True, slots=True)
class StateSelection:
    """Names a part of a checkpoint's state."""

    operator: int = 0
    store: str = "default"
    batch: int | None = None
    """None for the newest committed batch."""
    partition: int | None = None


def offsets_page(files: Files, before: int | None, limit: int) -> dict[str, Any]:
    """List batches below `before`, newest first. Unreadable entries have a `problem` instead."""
    checkpoint = Checkpoint(files)
    ids = checkpoint.offsets.batch_ids()
    committed = set(checkpoint.commits.batch_ids())
    wanted = [batch_id for batch_id in reversed(ids) if before is None or batch_id < before]
    shown = wanted[: max(1, min(limit, MAX_PAGE_ROWS))]
    return {
        "batches": [_batch(checkpoint, batch_id, batch_id in committed) for batch_id in shown],
        "older": shown[-1] if len(wanted) > len(shown) else None,
        "newest": ids[-1] if ids else None,
        "oldest": ids[0] if ids else None,
        "count": len(ids),
    }


def stores(files: Files, batch: int | None) -> dict[str, Any]:
    """List the stores and variables as of a batch; none if no batch is committed."""
    batches = _range(Checkpoint(files))
    if batch is None and batches["newest"] is None:
        return {"batch_id": None, "stores": [], **batches}

    def read() -> dict[str, Any]:
        return {**overview(open_batch(files, batch)).as_json(), **_range(Checkpoint(files))}

    return _with_retries(read, batch)


def state_page(files: Files, selection: StateSelection, page: int, size: int) -> dict[str, Any]:
    """Return one page of the rows of a store."""
    return _with_retries(lambda: _state_page(files, selection, page, size), selection.batch)


def _state_page(files: Files, selection: StateSelection, page: int, size: int) -> dict[str, Any]:
    reader, batch = _reader(files, selection)
    size = max(1, min(size, MAX_PAGE_ROWS))
    first = max(0, page) * size
    rows = (row for rows in json_batches(reader, selection.partition) for row in rows)
    shown = list(islice(rows, first, first + size + 1))
    return {
        "batch_id": batch,
        "columns": ["partition_id", *(n for n, _ in reader.fields if n != "partition_id")],
        "rows": shown[:size],
        "page": max(0, page),
        "more": len(shown) > size,
        "partitions": list(reader.target.partitions),
    }


def stats(files: Files, selection: StateSelection) -> dict[str, Any]:
    """Return the rows and bytes of each partition, and the skew."""

    def read() -> dict[str, Any]:
        reader, batch = _reader(files, selection)
        return {"batch_id": batch, **measure_store(reader, largest=1).as_json()}

    return _with_retries(read, selection.batch)


def measure_state(files: Files, batch: int) -> tuple[int, int]:
    """Return the rows and bytes of all stores together, after a batch."""
    opened = open_batch(files, batch)
    sizes = [measure_store(_open(opened, store), largest=0) for store in overview(opened).stores]
    return sum(size.rows for size in sizes), sum(size.bytes for size in sizes)


def _with_retries(read: Callable[[], dict[str, Any]], batch: int | None) -> dict[str, Any]:
    """Call `read`, and again if it fails on the newest batch.

    The query may purge that batch's files meanwhile; then there is a newer batch to read. A batch
    that the user named is not read again.
    """
    for _ in range(NEWEST_TRIES if batch is None else 0):
        try:
            return read()
        except OptionError:
            raise
        except (EpochalError, OSError):
            continue
    return read()


def _batch(checkpoint: Checkpoint, batch_id: int, committed: bool) -> dict[str, Any]:
    try:
        entry = checkpoint.offsets.get(batch_id)
    except (EpochalError, OSError) as error:
        return {"batch_id": batch_id, "committed": committed, "problem": str(error)}
    if entry is None:
        return {"batch_id": batch_id, "committed": committed, "problem": "it was just purged"}
    offsets = offsets_of(entry)
    return {
        "batch_id": batch_id,
        "committed": committed,
        "offsets": list(offsets) if isinstance(offsets, tuple) else offsets,
        "timestamp_ms": entry.timestamp_ms,
        "watermark_ms": entry.watermark_ms,
        "conf": dict(entry.conf),
    }


def _range(checkpoint: Checkpoint) -> dict[str, Any]:
    ids = checkpoint.commits.batch_ids()
    return {"oldest": ids[0] if ids else None, "newest": ids[-1] if ids else None}


def _reader(files: Files, selection: StateSelection) -> tuple[StateReader, int]:
    opened = open_batch(files, selection.batch)
    views = [
        store
        for store in overview(opened).stores
        if store.operator_id == selection.operator and store.name == selection.store
    ]
    if not views:
        raise OptionError(
            f"Operator {selection.operator} of this checkpoint has no store {selection.store!r}."
        )
    return _open(opened, views[0]), opened.batch_id


def _open(opened: Any, store: StoreOverview) -> StateReader:
    if store.kind in ("store", "family"):
        return open_reader(opened, store.operator_id, store.name)
    if store.kind == "TimerState":
        return open_reader(opened, store.operator_id, timers=True)
    return open_reader(opened, store.operator_id, state_variable=store.name)
