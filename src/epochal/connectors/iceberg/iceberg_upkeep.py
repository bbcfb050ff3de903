"""Keeps a table small, beside the epochs: sweeps leftovers, compacts files, expires snapshots.

All of it runs in one thread of the driver with its own connection to the catalog. An epoch never
waits for it: both commit by compare-and-swap, and whichever comes second looks again. The thread
gives up after a few conflicts and tries again at the next interval.

**Compaction** replaces files by one with the same rows. It is right as long as these files are in
the table and nothing is deleted from them; both are checked again before each try. So a second
compactor, a driver that was replaced or somebody else's, finds files missing and gives up.

**Expiry** deletes the files that only expired snapshots refer to.

Note: a driver that was replaced must not commit a file that the new driver may have swept. The
snapshots of epochs name their attempt, and a compactor gives up if it finds a later one than its
own. The sweep starts only after the new attempt has committed an epoch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.fs
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

from epochal.clock import Clock
from epochal.connectors.file.file_sink import attempt_of, mark_of
from epochal.connectors.iceberg.iceberg_catalog import catalog_errors, open_catalog
from epochal.connectors.iceberg.iceberg_commits import (
    RETRIES,
    Answer,
    TableChange,
    branch_history,
    delete_files,
    live_files,
    replace_files,
)
from epochal.connectors.iceberg.iceberg_files import WrittenFile
from epochal.connectors.iceberg.iceberg_marks import newest_attempt
from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions
from epochal.connectors.iceberg.iceberg_upkeep_rules import (
    ExpiryRule,
    SmallFile,
    compaction_groups,
    expired_snapshots,
    known_snapshot,
    leftovers,
    unreferenced,
)
from epochal.errors import EpochalError

logger = logging.getLogger(__name__)

WriteRows: TypeAlias = Callable[[pa.Table], list[WrittenFile]]

TRIES = 5
CLOSE_SECONDS = 10.0
COMPACTED_TIMES = 2
"""A compacted file is at most this many times as large as one that counts as small."""
MAX_SWEPT_SNAPSHOTS = 1000
"""With more snapshots than this, it takes too long to see which files they name."""


class References:
    """Which files snapshots refer to. What was read once is remembered: such files never change."""

    def __init__(self) -> None:
        self._manifests: dict[int, list[ManifestFile]] = {}
        self._files: dict[tuple[str, bool], frozenset[str]] = {}

    def manifests(self, table: Table, snapshot: Snapshot) -> list[ManifestFile]:
        """The manifests of a snapshot."""
        found = self._manifests.get(snapshot.snapshot_id)
        if found is None:
            found = self._manifests[snapshot.snapshot_id] = snapshot.manifests(table.io)
        return found

    def files(self, table: Table, manifest: ManifestFile, *, live: bool) -> frozenset[str]:
        """The data and delete files in a manifest, or only those that it does not remove."""
        key = manifest.manifest_path, live
        found = self._files.get(key)
        if found is None:
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=live)
            found = self._files[key] = frozenset(each.data_file.file_path for each in entries)
        return found

    def all_files(self, table: Table, snapshots: list[Snapshot]) -> set[str]:
        """Every file that one of the snapshots reads."""
        manifests = {m.manifest_path: m for s in snapshots for m in self.manifests(table, s)}
        found: set[str] = set()
        return found.union(*(self.files(table, m, live=True) for m in manifests.values()))

    def only_of(
        self, table: Table, gone: list[Snapshot], kept: list[Snapshot]
    ) -> tuple[set[str], set[str]]:
        """The manifests, and the files in them, that `gone` refers to and `kept` does not."""
        of_gone = {m.manifest_path: m for s in gone for m in self.manifests(table, s)}
        of_kept = {m.manifest_path: m for s in kept for m in self.manifests(table, s)}
        manifests = unreferenced([of_gone.keys()], [of_kept.keys()])
        if not manifests:
            return set(), set()
        files = unreferenced(
            [self.files(table, of_gone[path], live=False) for path in manifests],
            (self.files(table, m, live=True) for m in of_kept.values()),
        )
        return manifests, files

    def forget(self, kept: list[Snapshot]) -> None:
        """Forget what no kept snapshot refers to."""
        ids = {snapshot.snapshot_id for snapshot in kept}
        self._manifests = {n: found for n, found in self._manifests.items() if n in ids}
        paths = {m.manifest_path for found in self._manifests.values() for m in found}
        self._files = {key: found for key, found in self._files.items() if key[0] in paths}


class TableUpkeep:
    """The work on one table for one query. Only one thread at a time may use it."""

    def __init__(self, options: IcebergSinkOptions, query_id: str, clock: Clock) -> None:
        self._options, self._query_id, self._clock = options, query_id, clock
        self._catalog: Catalog | None = None
        self._references = References()
        self._swept = -1

    def run_once(self, attempt: int, write: WriteRows) -> None:
        """Do everything that is due. Failures are logged; the next run tries again.

        `attempt` has committed an epoch of its own. `write` writes rows as files of it.
        """
        for work in (
            partial(self._sweep, attempt),
            partial(self._compact, attempt, write),
            self._expire,
        ):
            try:
                with catalog_errors(self._options):
                    work()
            except (EpochalError, CommitFailedException, ValidationException) as error:
                logger.info("iceberg upkeep: %s", error)
            except Exception:
                logger.exception("iceberg upkeep failed; it is tried again later")

    def close(self) -> None:
        """Close the connection to the catalog."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _open_table(self) -> Table:
        if self._catalog is None:
            self._catalog = open_catalog(self._options)
        return self._catalog.load_table(self._options.table)

    def _sweep(self, attempt: int) -> None:
        """Delete files that earlier attempts have written and never committed."""
        if self._swept >= attempt:
            return
        self._swept = attempt
        table = self._open_table()
        if not isinstance(table.io, PyArrowFileIO):
            return
        names = {info.base_name: info.path for info in _listed(table)}
        if len(table.metadata.snapshots) > MAX_SWEPT_SNAPSHOTS:
            logger.info("iceberg upkeep: too many snapshots to look for leftovers; expire some")
            return
        known = self._references.all_files(table, table.metadata.snapshots)
        left = leftovers(
            ((name, attempt_of(name, mark_of(self._query_id))) for name in names),
            attempt=attempt,
            known={path.rpartition("/")[2] for path in known},
        )
        system = _file_system(table)
        for name in left:
            system.delete_file(names[name])
        if left:
            logger.info("iceberg sink: removed %d files of failed attempts", len(left))

    def _compact(self, attempt: int, write: WriteRows) -> None:
        options = self._options
        if not options.compact:
            return
        table = self._open_table()
        head = table.metadata.snapshot_by_name(options.branch)
        if _has_deletes(table, head):
            return
        files = {file.file_path: file for file in live_files(table, head)}
        groups = compaction_groups(
            (
                SmallFile(
                    path,
                    file.file_size_in_bytes,
                    tuple(file.partition[n] for n in range(len(file.partition))),
                    file.spec_id,
                )
                for path, file in files.items()
            ),
            spec=table.metadata.default_spec_id,
            below=options.compact_below,
            min_files=options.compact_min_files,
            max_bytes=options.compact_below * COMPACTED_TIMES,
        )
        for group in groups:
            removed = [files[path] for path in group]
            scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
            added = write(scan.to_table([FileScanTask(file) for file in removed]))
            self._replace(table, TableChange(added, removed), attempt)

    def _replace(self, table: Table, change: TableChange, attempt: int) -> None:
        for _ in range(TRIES):
            table.refresh()
            if not self._may_replace(table, change, attempt):
                break
            try:
                answer = replace_files(table, self._options.branch, change)
            except ValidationException as error:
                logger.info("iceberg upkeep: another compaction came first: %s", error)
                break
            if answer is not Answer.REFUSED:
                return  # after a lost answer, the files may be part of the table
        delete_files(table, [file.path for file in change.added])

    def _may_replace(self, table: Table, change: TableChange, attempt: int) -> bool:
        branch = self._options.branch
        if newest_attempt(self._query_id, branch_history(table, branch)) > attempt:
            return False
        if any(file.spec != table.metadata.default_spec_id for file in change.added):
            return False
        return not _has_deletes(table, table.metadata.snapshot_by_name(branch))

    def _expire(self) -> None:
        options = self._options
        if not options.expires:
            return
        table = self._open_table()
        metadata = table.metadata
        now_ms, after = self._clock.now_ms(), options.expire_snapshots_after
        oldest = None if after is None else now_ms - after // timedelta(milliseconds=1)
        refs = metadata.refs
        heads = {n: r.snapshot_id for n, r in refs.items() if r.snapshot_ref_type == "branch"}
        ids = expired_snapshots(
            (
                known_snapshot(
                    each.snapshot_id,
                    each.parent_snapshot_id,
                    each.timestamp_ms,
                    {} if each.summary is None else each.summary.additional_properties,
                )
                for each in metadata.snapshots
            ),
            heads,
            {ref.snapshot_id for name, ref in refs.items() if name not in heads},
            branch=options.branch,
            query_id=self._query_id,
            rule=ExpiryRule(options.expire_snapshots_keep, oldest),
        )
        if not ids:
            return
        gone = [each for each in metadata.snapshots if each.snapshot_id in ids]
        kept = [each for each in metadata.snapshots if each.snapshot_id not in ids]
        manifests, files = self._references.only_of(table, gone, kept)
        metadata.properties[RETRIES] = "0"
        change = table.transaction()
        # No branch may have moved: it could have been rolled back to one of these snapshots.
        ends = [{"ref": name, "snapshot-id": ref.snapshot_id} for name, ref in refs.items()]
        change._apply(
            (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}),),
            tuple(AssertRefSnapshotId.model_validate(each) for each in ends),
        )
        change.commit_transaction()
        delete_files(table, [*files, *manifests, *(each.manifest_list for each in gone)])
        self._references.forget(kept)
        logger.info("iceberg upkeep: expired %d snapshots and %d files", len(ids), len(files))


def _has_deletes(table: Table, head: Snapshot | None) -> bool:
    """Whether rows are deleted by files of their own. Such tables are not compacted."""
    manifests = () if head is None else head.manifests(table.io)
    return any(each.content == ManifestContent.DELETES for each in manifests)


def _listed(table: Table) -> Iterator[Any]:
    """The files below the table's directory of data."""
    metadata = table.metadata
    place = load_location_provider(metadata.location, metadata.properties).data_path
    _, _, path = PyArrowFileIO.parse_location(place, table.io.properties)
    selector = pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=True)
    for info in _file_system(table).get_file_info(selector):
        if info.is_file:
            yield info


def _file_system(table: Table) -> Any:
    assert isinstance(table.io, PyArrowFileIO)
    scheme, host, _ = PyArrowFileIO.parse_location(table.metadata.location, table.io.properties)
    return table.io.fs_by_scheme(scheme, host)


class UpkeepThread:
    """Runs the upkeep now and then. Nothing happens before `begin`."""

    def __init__(self, upkeep: TableUpkeep, *, interval_seconds: float | None) -> None:
        """Without an interval, the upkeep runs once per attempt."""
        self._upkeep, self._interval_seconds = upkeep, interval_seconds
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._begun: tuple[int, WriteRows] | None = None

    def begin(self, attempt: int, write: WriteRows) -> None:
        """This attempt has committed an epoch of its own."""
        with self._lock:
            self._begun = attempt, write
            if self._thread is None and not self._ending.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="epochal-iceberg-upkeep", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Let the thread end. What it has begun is finished first."""
        with self._lock:
            self._ending.set()
            thread = self._thread
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            with self._lock:
                begun = self._begun
            assert begun is not None
            self._upkeep.run_once(*begun)
            if self._interval_seconds is None:
                self._upkeep.close()
            with self._lock:
                if self._interval_seconds is None and self._begun == begun:
                    self._thread = None
                    return
            if self._ending.wait(self._interval_seconds or 0):
                self._upkeep.close()
                return
