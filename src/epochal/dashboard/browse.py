"""Offsets and state at any version, a page at a time. Reads a checkpoint, never writes to one.

What a request names, a store or a variable, is looked up among those that the checkpoint lists
before anything is opened by that name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from epochal.checkpoint.directory import Checkpoint
from epochal.clock import Clock
from epochal.errors import EpochalError, OptionError
from epochal.files import Files
from epochal.tools.inspect.view_models import offsets_of
from epochal.tools.read_state.export import json_batches
from epochal.tools.read_state.overview import StoreView, overview
from epochal.tools.read_state.read import StateReader, open_batch, open_reader
from epochal.tools.read_state.stats import state_stats

PAGE_ROWS = 50
MAX_PAGE_ROWS = 500
STATS_SHARE = 0.1
MIN_STATS_SECONDS = 1.0
MAX_KEPT_STATS = 64
NEWEST_TRIES = 2


@dataclass(frozen=True, slots=True)
class Place:
    """Which state of a checkpoint."""

    operator: int = 0
    store: str = "default"
    batch: int | None = None
    """None for the newest that is committed."""
    partition: int | None = None


def offsets_page(files: Files, before: int | None, limit: int) -> dict[str, Any]:
    """Batches, newest first, below `before`; entries that cannot be read say why."""
    checkpoint = Checkpoint(files)
    ids = checkpoint.offsets.batch_ids()
    committed = set(checkpoint.commits.batch_ids())
    wanted = [each for each in reversed(ids) if before is None or each < before]
    shown = wanted[: max(1, min(limit, MAX_PAGE_ROWS))]
    return {
        "batches": [_batch(checkpoint, each, each in committed) for each in shown],
        "older": shown[-1] if len(wanted) > len(shown) else None,
        "newest": ids[-1] if ids else None,
        "oldest": ids[0] if ids else None,
        "count": len(ids),
    }


def stores(files: Files, batch: int | None) -> dict[str, Any]:
    """Operators with their stores and variables as of a batch; none if nothing is committed."""
    kept = _range(Checkpoint(files))
    if batch is None and kept["newest"] is None:
        return {"batch_id": None, "stores": [], **kept}

    def read() -> dict[str, Any]:
        return {**overview(open_batch(files, batch)).as_json(), **_range(Checkpoint(files))}

    return _again(read, batch)


def state_page(files: Files, place: Place, page: int, size: int) -> dict[str, Any]:
    """Some rows of a store."""
    return _again(lambda: _state_page(files, place, page, size), place.batch)


def _state_page(files: Files, place: Place, page: int, size: int) -> dict[str, Any]:
    reader, batch = _reader(files, place)
    size = max(1, min(size, MAX_PAGE_ROWS))
    first = max(0, page) * size
    rows = (row for rows in json_batches(reader, place.partition) for row in rows)
    found = list(islice(rows, first, first + size + 1))
    return {
        "batch_id": batch,
        "columns": ["partition_id", *(n for n, _ in reader.fields if n != "partition_id")],
        "rows": found[:size],
        "page": max(0, page),
        "more": len(found) > size,
        "partitions": list(reader.target.partitions),
    }


def stats(files: Files, place: Place) -> dict[str, Any]:
    """Rows and bytes per partition, and how evenly they lie."""

    def read() -> dict[str, Any]:
        reader, batch = _reader(files, place)
        return {"batch_id": batch, **state_stats(reader, largest=1).as_json()}

    return _again(read, place.batch)


def _again(read: Callable[[], dict[str, Any]], batch: int | None) -> dict[str, Any]:
    """Read. A query may purge what was newest while it is read: then the newest is another."""
    for _ in range(NEWEST_TRIES if batch is None else 0):
        try:
            return read()
        except OptionError:
            raise
        except (EpochalError, OSError):
            continue
    return read()


@dataclass(slots=True)
class StatsCache:
    """Keeps figures for as long as they are cheap to have: all state is read for them."""

    clock: Clock
    _kept: dict[tuple[str, Place], tuple[float, dict[str, Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, files: Files, place: Place) -> dict[str, Any]:
        """The figures, not older than is fair."""
        name = (files.url, place)
        with self._lock:  # one at a time: a second page must not read it all again
            until, found = self._kept.get(name, (0.0, {}))
            now = self.clock.monotonic()
            if now < until:
                return found
            found = stats(files, place)
            took = self.clock.monotonic() - now
            if len(self._kept) >= MAX_KEPT_STATS:
                self._kept.clear()
            until = now + took + max(MIN_STATS_SECONDS, took / STATS_SHARE)
            self._kept[name] = (until, found)
            return found


def _batch(checkpoint: Checkpoint, batch_id: int, committed: bool) -> dict[str, Any]:
    try:
        entry = checkpoint.offsets.get(batch_id)
    except (EpochalError, OSError) as error:
        return {"batch_id": batch_id, "committed": committed, "problem": str(error)}
    if entry is None:
        return {"batch_id": batch_id, "committed": committed, "problem": "it was purged just now"}
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


def _reader(files: Files, place: Place) -> tuple[StateReader, int]:
    opened = open_batch(files, place.batch)
    found = [
        each
        for each in overview(opened).stores
        if each.operator_id == place.operator and each.name == place.store
    ]
    if not found:
        raise OptionError(f"Operator {place.operator} of this checkpoint has no {place.store!r}.")
    return _open(opened, found[0]), opened.batch_id


def _open(opened: Any, store: StoreView) -> StateReader:
    if store.kind in ("store", "family"):
        return open_reader(opened, store.operator_id, store.name)
    if store.kind == "TimerState":
        return open_reader(opened, store.operator_id, timers=True)
    return open_reader(opened, store.operator_id, state_variable=store.name)
