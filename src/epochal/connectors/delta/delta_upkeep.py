"""Keeps a table fast to read and to write, on a thread beside the epochs: `DeltaSink` starts it.

- Checkpoints of the table's log, every `CHECKPOINT_VERSIONS` versions.
- Clean-up of the log, by the rules of the table (`delta.logRetentionDuration`).
- Compaction: small files become larger ones, if the option `compactInterval` is set.

Nothing here is needed for correct results. A round that fails is logged and repeated later, and any
conflict with another writer ends it.

A compaction must not be lost or doubled by a rival: another compaction, or the one of a driver that
this attempt has replaced. So each commit of it follows a look at the newest version, in which all
files to be replaced must still be there, and is refused if the table has changed since that look.
A new attempt first takes over a marker, `<query id>#compact` with the attempt's number. An older
attempt finds it in its next look and stops. Only therefore may files of older attempts be deleted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from epochal.checkpoint.metadata_log import storage_errors
from epochal.connectors.delta.delta_bins import LiveFile, choose_bins
from epochal.connectors.delta.delta_rules import DataFile, TableShape
from epochal.connectors.delta.delta_table import (
    CommitRefusedError,
    TableGoneError,
    TableHandle,
)
from epochal.connectors.delta.delta_writer import DeltaWriters, TableFiles
from epochal.connectors.file.file_sink import attempt_of, mark_of
from epochal.errors import EpochalError
from epochal.files import Files, join_url

logger = logging.getLogger(__name__)

CHECKPOINT_VERSIONS = 100
COMMIT_TRIES = 10
COMPACTED_BY = 99_999
"""In place of a task's number, in the names of files that a compaction has written."""
JOIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class UpkeepPlan:
    """What is done how often."""

    compact_interval: timedelta | None
    target_file_bytes: int
    log_cleanup_interval: timedelta | None


class Upkeep:
    """The work of one attempt; `start` begins a thread that does it when it is due."""

    def __init__(
        self, plan: UpkeepPlan, files: Files, query_id: str, attempt: int, writers: DeltaWriters
    ) -> None:
        self._plan, self._files, self._attempt = plan, files, attempt
        self._application, self._mark = compactor_of(query_id), mark_of(query_id)
        self._writers, self._version = writers, 0
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="epochal-delta-upkeep", daemon=True)

    def start(self) -> None:
        """Begin the thread."""
        self._thread.start()

    def committed(self, version: int) -> None:
        """Note that the table has this version. Now and then one needs a checkpoint."""
        if version // CHECKPOINT_VERSIONS > self._version // CHECKPOINT_VERSIONS:
            self._wake.set()
        self._version = version

    def close(self) -> None:
        """End the thread. What it has begun is finished, for a limited time."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(JOIN_SECONDS)

    def checkpoint(self) -> None:
        """Write a checkpoint of the table's log."""
        self._loaded().create_checkpoint()

    def clean_log(self) -> None:
        """Remove log files that are older than the table wants to keep them."""
        self._loaded().clean_log()

    def compact(self) -> int:
        """Replace small files of this query by larger ones; return how many were replaced."""
        handle = self._loaded()
        if "deletionVectors" in handle.shape().writer_features:
            return 0  # a file could have rows that are deleted
        ours = [
            each
            for each in handle.live_files()
            if attempt_of(_name(each.path), self._mark) is not None
        ]
        replaced = 0
        for group in choose_bins(ours, self._plan.target_file_bytes):
            if self._stop.is_set():
                break
            replaced += len(group) if self._compact_group(handle, group) else 0
        if replaced:
            logger.info("%s: compacted %d files", self._files.url, replaced)
        return replaced

    def _compact_group(self, handle: TableHandle, group: Sequence[LiveFile]) -> bool:
        shape, tables = handle.shape(), []
        for each in group:
            with storage_errors(join_url(self._files.url, each.path)):
                tables.append(pq.read_table(pa.BufferReader(self._files.read(each.path))))
        rows = pa.concat_tables(tables, promote_options="default")
        writer = TableFiles(self._writers, COMPACTED_BY, self._attempt, rows.schema)
        directory = group[0].path.rpartition("/")[0]
        merged = replace(writer.write_one(directory, rows), partition=dict(group[0].partition))
        # If this raises, the commit may have happened, so the file must stay.
        if self._replace(handle, group, merged, shape):
            return True
        self._files.delete(merged.path)
        return False

    def _replace(
        self, handle: TableHandle, group: Sequence[LiveFile], merged: DataFile, shape: TableShape
    ) -> bool:
        """Commit the replacement; False if the table does not allow it any more."""
        wanted = {each.path for each in group}
        for _ in range(COMMIT_TRIES):
            handle.refresh()
            if handle.marker(self._application) != self._attempt or handle.shape() != shape:
                return False
            if not wanted <= {each.path for each in handle.live_files()}:
                return False
            try:
                handle.replace_files(group, merged, self._application, self._attempt)
                return True
            except CommitRefusedError:
                continue
        return False

    def _loaded(self) -> TableHandle:
        handle = TableHandle(self._files)
        if not handle.load():
            raise TableGoneError
        return handle

    def _run(self) -> None:
        plan, began = self._plan, time.monotonic()
        due: dict[Callable[[], object], tuple[float, float]] = {
            action: (began + interval.total_seconds(), interval.total_seconds())
            for action, interval in (
                (self.compact, plan.compact_interval),
                (self.clean_log, plan.log_cleanup_interval),
            )
            if interval is not None
        }
        while not self._stop.is_set():
            next_at = min((at for at, _ in due.values()), default=None)
            pause = None if next_at is None else max(0.0, next_at - time.monotonic())
            if self._wake.wait(pause) and not self._stop.is_set():
                self._wake.clear()
                self._try(self.checkpoint)
            for action, (at, seconds) in list(due.items()):
                if at <= time.monotonic() and not self._stop.is_set():
                    self._try(action)
                    due[action] = (time.monotonic() + seconds, seconds)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (CommitRefusedError, TableGoneError, EpochalError, OSError, pa.ArrowException) as e:
            name = getattr(action, "__name__", "upkeep")
            logger.warning("%s: %s failed and is tried again later: %r", self._files.url, name, e)


def compactor_of(query_id: str) -> str:
    """Return the application under which a query's compactions are marked."""
    return f"{query_id}#compact"


def _name(path: str) -> str:
    return path.rpartition("/")[2]
