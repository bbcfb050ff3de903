"""Checks many rows at a time: large state files, and in deep mode whole RocksDB databases.

For a large file the results are the same as those of `check_content`. A database is opened by
RocksDB in a temporary directory. Every key must fit the schema and belong to its partition, and a
snapshot must have the same content as the snapshot before it and the changelogs since then.

Import this module only when it is needed: it imports numpy and pyarrow, which takes longer than
checking a thousand small files row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from epochal.checkpoint.directory import Checkpoint
from epochal.errors import EpochalError, StateFormatError, StateReadError, StorageError
from epochal.files import Files
from epochal.state.files.delta_snapshot import FileKind, Records, scan_records
from epochal.state.files.merge import Rows
from epochal.state.files.partitioning import places_of
from epochal.state.files.rocksdb_changelog import Changelog, LineageItem
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import validate_rows
from epochal.state.rows.types import StructType
from epochal.state.store.rocksdb_directory import RocksContent, file_name, read_snapshot, replay
from epochal.state.store.versions import FrozenVersion
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.placed_families import PlacedFamily, families_in_store
from epochal.tools.read_state.read_target import StateBatch
from epochal.tools.verify.check_content import NO_VALUE, RowChecker
from epochal.tools.verify.findings import Finding, finding
from epochal.wording import counted


def scan_large(data: bytes, *, is_snapshot: bool, row_checksums: bool, source: str) -> Records:
    """Find the records of an uncompressed file."""
    kind = FileKind.SNAPSHOT if is_snapshot else FileKind.DELTA
    return scan_records(data, kind, row_checksums=row_checksums, source=source)


def check_large(
    checker: RowChecker, records: Records, source: str, partition: int, count: int | None
) -> int:
    """Do what `RowChecker.check` does: raise StateFormatError for the first bad row and return the
    number of misplaced keys."""
    values = records.values.take(~records.deleted)
    validate_rows(records.keys, checker.key, source=f"{source}, key")
    try:
        validate_rows(values, checker.value, source=f"{source}, value")
    except StateFormatError:
        if set(values) != {NO_VALUE}:
            raise
    if count is None or not checker.placing_columns:
        return 0
    placing = StructType(checker.key.fields[: checker.placing_columns])
    rows = Rows(records.keys, records.values, source)
    homes = places_of(rows, checker.key, placing, count)
    return int(np.count_nonzero(homes != partition))


class EntryCheck:
    """Checks the entries of the RocksDB stores of a checkpoint, as of one committed batch."""

    def __init__(self, files: Files, batch_id: int, partitions: Mapping[int, int]) -> None:
        self._files, self._partitions = files, partitions
        self._batch = StateBatch(Checkpoint(files), batch_id)
        self._form = self._batch.settings.form
        self._families: dict[tuple[int, str], list[PlacedFamily]] = {}

    def store(
        self,
        store: StoreListing,
        snapshots: Sequence[LineageItem],
        changelogs: Mapping[LineageItem, Changelog],
    ) -> list[Finding]:
        """Check one store. `snapshots` and `changelogs` are its sound files, in ascending order."""
        found: list[Finding] = []
        numbers: Mapping[str, int] = {}
        last: dict[LineageItem, dict[bytes, bytes]] = {}
        for item in snapshots:
            path = f"{store.path}/{file_name(item, 'zip')}"
            try:
                metadata, entries = read_snapshot(
                    self._files.at(store.path), item, self._form.delimiter
                )
                content = RocksContent(entries, metadata.families)
                found.extend(self._misplaced(store, content, item.version, path))
                found.extend(self._disagreement(item, entries, last, changelogs, path))
            except StorageError as error:
                found.append(finding("FILE_UNREADABLE", path, error.reason))
                continue
            except StateFormatError as error:
                found.append(finding("ROCKSDB_ZIP_UNREADABLE", path, error.reason))
                continue
            numbers = metadata.families
            # With unique ids, there can be several snapshots of a version.
            last = {each: kept for each, kept in last.items() if each.version == item.version}
            last[item] = entries
        for item, changelog in changelogs.items():
            path = f"{store.path}/{file_name(item, 'changelog')}"
            keys = {record.key: b"" for record in changelog.records if record.value is not None}
            try:
                content = RocksContent(keys, numbers)
                found.extend(self._misplaced(store, content, item.version, path))
            except StateFormatError as error:
                found.append(finding("STATE_ROW_INVALID", path, error.reason))
        return found

    def _misplaced(
        self, store: StoreListing, content: RocksContent, version: int, path: str
    ) -> list[Finding]:
        count = self._partitions.get(version)
        if count is None:
            return []
        wrong = 0
        for family in self._families_of(store):
            keys = spans_of([key for key, _ in content.family(family.target.family)])
            decoded = family.keys(keys, path)
            if family.is_placed:
                homes = family.places(decoded, count)
                wrong += int(np.count_nonzero(homes != store.partition))
        if not wrong:
            return []
        said = f"partition {store.partition} of {count} has {counted(wrong, 'key')} of others"
        return [finding("STATE_KEY_WRONG_PARTITION", path, said)]

    def _families_of(self, store: StoreListing) -> list[PlacedFamily]:
        place = (store.operator, store.name)
        if place not in self._families:
            try:
                self._families[place] = families_in_store(self._batch, *place)
            except StateReadError:
                self._families[place] = []  # the finding on the settings or schema says why
        return self._families[place]

    def _disagreement(
        self,
        item: LineageItem,
        entries: dict[bytes, bytes],
        last: Mapping[LineageItem, dict[bytes, bytes]],
        changelogs: Mapping[LineageItem, Changelog],
        path: str,
    ) -> list[Finding]:
        """Compare a snapshot with the one before it and the changelogs since then."""
        own = changelogs.get(item)
        if own is None:
            return []
        before = own.lineage
        if not item.unique_id:
            before = tuple(LineageItem(v, "") for v in range(1, item.version))
        base = max(last.keys() & set(before), key=lambda each: each.version, default=None)
        start = 0 if base is None else base.version
        chain = [*(each for each in before if each.version > start), item]
        if [each.version for each in chain] != list(range(start + 1, item.version + 1)):
            return []
        if not all(each in changelogs for each in chain):
            return []
        draft = FrozenVersion.of({} if base is None else last[base]).draft()
        for each in chain:
            replay(changelogs[each], draft, self._form, path)
        return disagreement(path, entries, dict(draft.items()))


def disagreement(
    path: str, stored: Mapping[bytes, bytes], replayed: Mapping[bytes, bytes]
) -> list[Finding]:
    """Compare the content of a snapshot with a replay of the files before it."""
    if stored == replayed:
        return []
    extra = len(stored.keys() - replayed.keys())
    missing = len(replayed.keys() - stored.keys())
    other = sum(replayed[key] != value for key, value in stored.items() if key in replayed)
    return [
        finding(
            "STATE_SNAPSHOT_DISAGREES",
            path,
            f"compared with the replay of the deltas, {extra} keys are extra, {missing} are "
            f"missing, and {other} have another value",
        )
    ]


def open_entry_check(
    files: Files, batch_id: int, partitions: Mapping[int, int]
) -> EntryCheck | str:
    """The check of a checkpoint's entries, or why they cannot be checked."""
    from epochal.state.files.rocksdb_snapshot import import_rocksdict

    try:
        import_rocksdict("Checking every key")
        return EntryCheck(files, batch_id, partitions)
    except EpochalError as error:
        return str(error)
