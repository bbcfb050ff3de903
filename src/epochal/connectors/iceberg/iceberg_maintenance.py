"""The maintenance of an Iceberg table: what the sweep and compaction need, and expiry of snapshots.

**Compaction** is right as long as the files to be replaced are in the table and nothing is deleted
from them; both are checked again before each try. So a second compactor, a driver that was replaced
or somebody else's, finds files missing and gives up. The snapshots of epochs name their attempt,
and a compactor gives up if it finds a later one than its own.

**Expiry** deletes the files that only expired snapshots refer to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pyarrow.fs
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

from epochal.clock import Clock
from epochal.connectors.file.part_files import mark_of
from epochal.connectors.iceberg.iceberg_catalog import catalog_errors, open_catalog
from epochal.connectors.iceberg.iceberg_commits import (
    RETRIES,
    AnswerLostError,
    TableChange,
    branch_history,
    delete_files,
    live_files,
    mark_of_snapshot,
    read_file,
    replace_files,
)
from epochal.connectors.iceberg.iceberg_files import IcebergFiles, WrittenFile, plan_of
from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions
from epochal.connectors.iceberg.iceberg_snapshots import (
    expired_snapshots,
    newest_attempt,
    unreferenced,
)
from epochal.connectors.tables.compaction import LiveFile
from epochal.connectors.tables.table_maintenance import (
    DRIVER_TASK,
    CommitRefusedError,
    Job,
    MaintainedTable,
)

logger = logging.getLogger(__name__)

MAX_SWEPT_SNAPSHOTS = 1000
"""With more snapshots than this, it takes too long to see which files they name."""


class References:
    """Which files snapshots refer to. What was read once is remembered: such files never change."""

    def __init__(self) -> None:
        self._manifests: dict[int, list[ManifestFile]] = {}
        self._files: dict[tuple[str, bool], frozenset[str]] = {}

    def manifests(self, table: Table, snapshots: list[Snapshot]) -> dict[str, ManifestFile]:
        """The manifests of snapshots, by their paths."""
        by_path: dict[str, ManifestFile] = {}
        for snapshot in snapshots:
            if snapshot.snapshot_id not in self._manifests:
                self._manifests[snapshot.snapshot_id] = snapshot.manifests(table.io)
            manifests = self._manifests[snapshot.snapshot_id]
            by_path |= {manifest.manifest_path: manifest for manifest in manifests}
        return by_path

    def files(self, table: Table, manifest: ManifestFile, *, live: bool) -> frozenset[str]:
        """The data and delete files in a manifest, or only those that it does not remove."""
        key = manifest.manifest_path, live
        if key not in self._files:
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=live)
            self._files[key] = frozenset(entry.data_file.file_path for entry in entries)
        return self._files[key]

    def all_files(self, table: Table, snapshots: list[Snapshot]) -> set[str]:
        """Every file that one of the snapshots reads."""
        manifests = self.manifests(table, snapshots).values()
        files: set[str] = set()
        return files.union(*(self.files(table, manifest, live=True) for manifest in manifests))

    def only_of(
        self, table: Table, gone: list[Snapshot], kept: list[Snapshot]
    ) -> tuple[set[str], set[str]]:
        """The manifests, and the files in them, that `gone` refers to and `kept` does not."""
        of_gone, of_kept = self.manifests(table, gone), self.manifests(table, kept)
        manifests = of_gone.keys() - of_kept.keys()
        if not manifests:
            return set(), set()
        files = unreferenced(
            [self.files(table, of_gone[path], live=False) for path in manifests],
            (self.files(table, manifest, live=True) for manifest in of_kept.values()),
        )
        return manifests, files

    def forget(self, kept: list[Snapshot]) -> None:
        """Forget what no kept snapshot refers to."""
        ids = {snapshot.snapshot_id for snapshot in kept}
        self._manifests = {n: manifests for n, manifests in self._manifests.items() if n in ids}
        paths = {m.manifest_path for manifests in self._manifests.values() for m in manifests}
        self._files = {key: files for key, files in self._files.items() if key[0] in paths}


class IcebergMaintained(MaintainedTable[WrittenFile]):
    """The table as it is maintained."""

    def __init__(
        self,
        options: IcebergSinkOptions,
        query_id: str,
        attempt: int,
        columns: Sequence[str],
        clock: Clock,
    ) -> None:
        self._options, self._query_id, self._attempt = options, query_id, attempt
        self._columns, self._clock = columns, clock
        self.name = options.table
        self._catalog: Catalog | None = None
        self._opened: Table | None = None
        self._live: dict[str, DataFile] = {}
        self._references = References()

    def jobs(self) -> Sequence[Job]:
        every = self._options.maintenance_interval
        return (Job("expire", self.expire, every, at_start=True),) if self._options.expires else ()

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            with catalog_errors(self._options):
                yield
        except (CommitFailedException, ValidationException) as error:
            raise CommitRefusedError(str(error)) from error

    def data_files(self) -> Iterator[str]:
        table = self._load()
        if not isinstance(table.io, PyArrowFileIO):
            return
        metadata = table.metadata
        place = load_location_provider(metadata.location, metadata.properties).data_path
        _, _, path = PyArrowFileIO.parse_location(place, table.io.properties)
        selector = pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=True)
        for info in _file_system(table).get_file_info(selector):
            if info.is_file:
                yield info.path

    def known_files(self) -> set[str] | None:
        table = self._table
        if len(table.metadata.snapshots) > MAX_SWEPT_SNAPSHOTS:
            return None
        known = self._references.all_files(table, table.metadata.snapshots)
        return {path.rpartition("/")[2] for path in known}

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            _file_system(self._table).delete_file(path)

    def discard(self, files: Sequence[WrittenFile]) -> None:
        delete_files(self._table, [file.path for file in files])

    def live_files(self) -> Sequence[LiveFile]:
        table = self._load()
        head = table.metadata.snapshot_by_name(self._options.branch)
        if _has_deletes(table, head):
            return ()
        self._live = {file.file_path: file for file in live_files(table, head)}
        return [
            LiveFile(
                path,
                file.file_size_in_bytes,
                tuple(file.partition[n] for n in range(len(file.partition))),
            )
            for path, file in self._live.items()
            if file.spec_id == table.metadata.default_spec_id
        ]

    def rewrite(self, group: Sequence[LiveFile]) -> Sequence[WrittenFile]:
        table = self._table
        rows = read_file(table, *(FileScanTask(self._live[file.path]) for file in group))
        plan = plan_of(table, self.name, mark_of(self._query_id), self._columns)
        return IcebergFiles(plan, self._attempt, DRIVER_TASK).write_fitted(rows)

    def replace(self, group: Sequence[LiveFile], files: Sequence[WrittenFile]) -> bool:
        table, branch = self._table, self._options.branch
        table.refresh()
        if newest_attempt(self._query_id, branch_history(table, branch)) > self._attempt:
            return False
        if any(file.spec != table.metadata.default_spec_id for file in files):
            return False
        if _has_deletes(table, table.metadata.snapshot_by_name(branch)):
            return False
        change = TableChange(files, [self._live[file.path] for file in group])
        try:
            replace_files(table, branch, change)
        except AnswerLostError:
            return True  # the new files may be part of the table
        except ValidationException as error:
            logger.info("%s: another compaction came first: %s", self.name, error)
            return False
        return True

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def expire(self) -> None:
        """Expire snapshots, and delete the files that only they refer to."""
        options, table = self._options, self._load()
        metadata = table.metadata
        now_ms, after = self._clock.now_ms(), options.expire_snapshots_after
        oldest = None if after is None else now_ms - after // timedelta(milliseconds=1)
        refs = metadata.refs
        heads = {n: r.snapshot_id for n, r in refs.items() if r.snapshot_ref_type == "branch"}
        ids = expired_snapshots(
            map(mark_of_snapshot, metadata.snapshots),
            heads,
            {ref.snapshot_id for name, ref in refs.items() if name not in heads},
            branch=options.branch,
            query_id=self._query_id,
            keep=options.expire_snapshots_keep,
            oldest_ms=oldest,
        )
        if not ids:
            return
        gone = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in ids]
        kept = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in ids]
        manifests, files = self._references.only_of(table, gone, kept)
        metadata.properties[RETRIES] = "0"
        change = table.transaction()
        # No branch may have moved: it could have been rolled back to one of these snapshots.
        ends = [{"ref": name, "snapshot-id": ref.snapshot_id} for name, ref in refs.items()]
        change._apply(
            (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": ids}),),
            tuple(AssertRefSnapshotId.model_validate(end) for end in ends),
        )
        change.commit_transaction()
        lists = [snapshot.manifest_list for snapshot in gone]
        delete_files(table, [*files, *manifests, *lists])
        self._references.forget(kept)
        logger.info("%s: expired %d snapshots and %d files", self.name, len(ids), len(files))

    @property
    def _table(self) -> Table:
        """The table as it was loaded last."""
        return self._load() if self._opened is None else self._opened

    def _load(self) -> Table:
        if self._catalog is None:
            self._catalog = open_catalog(self._options)
        self._opened = self._catalog.load_table(self.name)
        return self._opened


def _has_deletes(table: Table, head: Snapshot | None) -> bool:
    """Whether rows are deleted by files of their own. Such tables are not compacted."""
    manifests = () if head is None else head.manifests(table.io)
    return any(manifest.content == ManifestContent.DELETES for manifest in manifests)


def _file_system(table: Table) -> Any:
    assert isinstance(table.io, PyArrowFileIO)
    scheme, host, _ = PyArrowFileIO.parse_location(table.metadata.location, table.io.properties)
    return table.io.fs_by_scheme(scheme, host)
