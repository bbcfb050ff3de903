"""Keeps a table small and fast, on a thread beside the epochs: `TableSink` starts it.

- The sweep, once per attempt: deletes files that earlier attempts wrote and never committed.
- Compaction: small files become larger ones, if the option `compactInterval` is set.
- What else the format needs: checkpoints of its log, expiry of its snapshots.

Nothing here is needed for correct results. A round that fails is logged and repeated later, and any
conflict with another writer ends it. An epoch never waits for it: both commit by compare-and-swap,
and whichever comes second looks again. The thread has its own connection to the table.

A compaction must not be lost or doubled by a rival: another compaction, or the one of a driver that
this attempt has replaced. So each commit of it follows a look at the newest version, in which all
files to be replaced must still be there, and is refused if the table has changed since that look.
In that look, a compactor also finds out that a newer attempt has taken over, and stops: otherwise
it could commit a file that the newer attempt has swept.

Note: the thread starts when the attempt has committed an epoch of its own. Before that, an epoch of
an earlier attempt may still have to be finished, and needs its files.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Protocol

from epochal.checkpoint.entries import OffsetLog
from epochal.checkpoint.layout import OFFSETS
from epochal.connectors.file.part_files import attempt_of, find_leftovers, mark_of
from epochal.connectors.staging.epoch_marker import sink_messages
from epochal.connectors.staging.staged_rows import delete_stale
from epochal.connectors.tables.compaction import Compaction, LiveFile, choose_groups
from epochal.connectors.tables.table_epochs import F, FilesOutput, TableFormat, read_output
from epochal.epoch.manifest import manifest_of
from epochal.errors import EpochalError, SinkConflictError
from epochal.files import Files, join_url

logger = logging.getLogger(__name__)

REPLACE_TRIES = 10
CLOSE_SECONDS = 30.0
DRIVER_TASK = 99_999
"""In place of a task's number, in the names of files that the driver has written."""


class CommitRefusedError(Exception):
    """Another writer was faster. The table is unchanged by us."""


@dataclass(frozen=True, slots=True)
class Job:
    """Something to do for a table now and then."""

    name: str
    run: Callable[[], object]
    every: timedelta | None = None
    """None: only when it is asked for."""
    at_start: bool = False


class MaintainedTable(Protocol[F]):
    """What the maintenance needs of a table. It has a connection of its own, for one thread.

    A class that inherits from it has what is optional, so that it has no effect.
    """

    name: str
    """The table, for the log."""

    def jobs(self) -> Sequence[Job]:
        """What this format needs besides sweep and compaction."""
        return ()

    def errors(self) -> AbstractContextManager[None]:
        """Turns the library's errors into ours, and conflicts into `CommitRefusedError`."""
        return nullcontext()

    def data_files(self) -> Iterable[str]:
        """The paths of all data files in the table's directory."""
        ...

    def known_files(self) -> Set[str] | None:
        """The names of files that a version of the table has; None if they are too many."""
        ...

    def delete(self, paths: Sequence[str]) -> None:
        """Delete some of `data_files`."""
        ...

    def discard(self, files: Sequence[F]) -> None:
        """Delete files that are not part of the table."""
        self.delete([file.path for file in files])

    def live_files(self) -> Sequence[LiveFile]:
        """The files of the newest version that may be replaced by others with the same rows."""
        ...

    def rewrite(self, group: Sequence[LiveFile]) -> Sequence[F]:
        """Write the rows of these files again. The new files are not yet part of the table."""
        ...

    def replace(self, group: Sequence[LiveFile], files: Sequence[F]) -> bool:
        """Commit new files in place of old ones; False if that is not right any more.

        CommitRefusedError if the table has changed since this look. If the answer to the commit was
        lost, the new files may be part of the table: the result is then True.
        """
        ...

    def close(self) -> None:
        return None


class TableMaintenance(Generic[F]):
    """The work of one attempt on one table; `start` begins the thread that does it."""

    def __init__(
        self,
        table: MaintainedTable[F],
        form: TableFormat[F],
        options: Compaction,
        checkpoint: Files,
        query_id: str,
        attempt: int,
    ) -> None:
        self._table, self._form, self._options = table, form, options
        self._checkpoint, self._mark, self._attempt = checkpoint, mark_of(query_id), attempt
        self._jobs = [Job("sweep", self.sweep, at_start=True), *table.jobs()]
        if options.compact_interval is not None:
            # Also at the start: a query that reads what waits, and ends, has no later time for it.
            self._jobs.insert(1, Job("compact", self.compact, options.compact_interval, True))
        self._due: dict[str, float] = {}
        """When jobs are due. Only the thread uses it, once it runs."""
        self._asked: deque[str] = deque()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="epochal-table-maintenance", daemon=True
        )

    def start(self) -> None:
        """Begin the thread, unless it has begun."""
        if self._thread.ident is None:
            now = time.monotonic()
            for job in self._jobs:
                if job.at_start:
                    self._due[job.name] = now
                elif job.every is not None:
                    self._due[job.name] = now + job.every.total_seconds()
            # A process that ends while a thread is inside the table's library would crash.
            atexit.register(self.close)
            self._thread.start()

    def ask(self, names: Iterable[str]) -> None:
        """Have jobs done as soon as possible."""
        self._asked.extend(names)
        if self._asked:
            self._wake.set()

    def run_all(self) -> None:
        """Do everything once, in the calling thread."""
        for job in self._jobs:
            self._try(job)

    def close(self) -> None:
        """End the thread. What is due is finished, for a limited time."""
        atexit.unregister(self.close)
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)

    def sweep(self) -> None:
        """Delete what earlier attempts wrote and never committed."""
        removed = delete_stale(self._checkpoint.at(self._form.staging), before=self._attempt)
        files = [
            (path, attempt_of(path.rpartition("/")[2], self._mark))
            for path in self._table.data_files()
        ]
        if any(wrote is not None and wrote < self._attempt for _, wrote in files):
            # A driver that this attempt has replaced may still commit its last epoch. The log names
            # the files of that epoch, whether the commit comes before this look or after it.
            known = self._table.known_files()
            if known is None:
                logger.info("%s has too many versions to look for leftovers", self._table.name)
                return
            known = known | self._logged_names()
            left = find_leftovers(files, attempt=self._attempt, known=known)
            self._table.delete(left)
            removed += len(left)
        if removed:
            logger.info("%s: removed %d files of failed attempts", self._table.name, removed)

    def compact(self) -> int:
        """Replace small files by larger ones; return how many were replaced."""
        options, replaced = self._options, 0
        files = self._table.live_files()
        for group in choose_groups(files, options.target_file_bytes, options.compact_min_files):
            if replaced and self._stop.is_set():
                break
            # If `_replaced` raises, the commit may have happened, so the files must stay.
            written = self._table.rewrite(group)
            if self._replaced(group, written):
                replaced += len(group)
            else:
                self._table.discard(written)
        if replaced:
            logger.info("%s: compacted %d files", self._table.name, replaced)
        return replaced

    def _replaced(self, group: Sequence[LiveFile], written: Sequence[F]) -> bool:
        for _ in range(REPLACE_TRIES):
            try:
                return self._table.replace(group, written)
            except CommitRefusedError:
                continue
        return False

    def _logged_names(self) -> set[str]:
        """Return the names of all files that epochs in the checkpoint's log name."""
        offsets = OffsetLog(self._checkpoint.at(OFFSETS), read_only=True)
        names: set[str] = set()
        for epoch, entry in offsets.get_range():
            manifest = manifest_of(entry, join_url(offsets.url, str(epoch)))
            try:
                messages = () if manifest is None else sink_messages(manifest.messages)
                output = read_output(self._table.name, self._form, epoch, messages)
            except SinkConflictError:
                continue  # of another sink
            if isinstance(output, FilesOutput):
                names |= {file.path.rpartition("/")[2] for file in output.files}
        return names

    def _run(self) -> None:
        while True:
            self._wake.clear()
            while self._asked:
                self._due[self._asked.popleft()] = time.monotonic()
            for job in self._jobs:
                if self._due.get(job.name, float("inf")) <= time.monotonic():
                    del self._due[job.name]
                    self._try(job)
                    if job.every is not None:
                        self._due[job.name] = time.monotonic() + job.every.total_seconds()
            if self._stop.is_set():
                break
            next_at = min(self._due.values(), default=None)
            if next_at is None:
                self._table.close()  # until something is asked for
            self._wake.wait(None if next_at is None else max(0.0, next_at - time.monotonic()))
        self._table.close()

    def _try(self, job: Job) -> None:
        try:
            with self._table.errors():
                job.run()
        except (CommitRefusedError, EpochalError, OSError) as error:
            logger.warning("%s: %s failed: %r", self._table.name, job.name, error)
        except Exception:
            logger.exception("%s: %s failed", self._table.name, job.name)
