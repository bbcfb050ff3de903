"""Reads and writes the changelogs and snapshots of one RocksDB-backed store.

The provider above keeps plain rows, as for any other store. Here they get the form that Spark's
RocksDB provider gives them, and lose it again: encoded keys, values with the byte that names their
encoding, and checksums.

Every version is a changelog, also when Spark's own changelogs are switched off: Spark replays them
on the newest snapshot whatever its setting is. Maintenance writes a snapshot now and then, so that
there are never many to replay.

With checkpoint format 2 the names contain a unique id for each version. Which ids belong to the
history of the store is known from the commit log and from the changelogs, which list the ids before
them. Such a list must fit into 64 KiB, so a version with too long a list is a snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from epochal.errors import StateError, StateFormatError, StateLoadError
from epochal.files import AtomicFile, join_url
from epochal.state.files.chain import (
    ROCKSDB_FILES,
    FileNames,
    StoreFile,
    checksum_name,
    id_of_prepared,
    is_prepared_snapshot,
)
from epochal.state.files.codecs import compress, decompress
from epochal.state.files.rocksdb_changelog import (
    Changelog,
    LineageItem,
    Operation,
    encode_changelog,
    parse_changelog,
    read_lineage,
)
from epochal.state.files.rocksdb_entries import VERSION_BYTE, KeyForm, ValueWrapper, unversioned
from epochal.state.files.rocksdb_snapshot import SnapshotMetadata, encode_snapshot
from epochal.state.rows.byte_spans import spans_of
from epochal.state.store.contract import FileSettings
from epochal.state.store.rocksdb_directory import (
    RocksDirectory,
    RocksPlan,
    file_name,
    parse_name,
    read_archive,
    read_metadata,
    read_snapshot,
)
from epochal.state.store.store_files import PreparedVersion, StoreFiles, read_checked, stage
from epochal.state.store.versions import Draft, MakeVersion, RowChange

MAX_LINEAGE = 500
"""Versions that a changelog lists at most. Spark can list about 800, and may add some."""


@dataclass(slots=True)
class Lineage:
    """The ids of the versions in the history of a store, back to a snapshot at least.

    A changelog lists the ids of the versions before it, from the newest snapshot on. Maintenance
    writes snapshots while later versions are prepared, so both may use this at the same time.
    """

    ids: dict[int, str] = field(default_factory=dict)
    snapshots: set[int] = field(default_factory=set)
    """Those of the versions that have a snapshot."""

    def adopt(self, plan: RocksPlan) -> None:
        """Follow the history of these files from now on."""
        base = () if plan.snapshot is None else (plan.snapshot,)
        self.ids = {item.version: item.unique_id for item in (*base, *plan.changelogs)}
        self.snapshots = {item.version for item in base}

    def begin(self, version: int, unique_id: str) -> None:
        """Give a new version its id. Versions above it belong to another history."""
        # `list` copies in one step; the other thread may add a snapshot at any time. A snapshot of
        # the version itself goes, too: it has the id that the version had in the other history.
        for later in [other for other in list(self.ids) if other > version]:
            del self.ids[later]
        self.snapshots.difference_update([s for s in list(self.snapshots) if s >= version])
        self.ids[version] = unique_id

    def before(self, version: int) -> tuple[LineageItem, ...]:
        """What the changelog of `version` lists. KeyError if the history has a gap."""
        # Back to a snapshot, where a reader starts. A gap is an error: an id cannot be guessed.
        start = max((s for s in list(self.snapshots) if s < version), default=1)
        return tuple(LineageItem(v, self.ids[v]) for v in range(start, version))

    def forget(self, below: int) -> None:
        for version in [other for other in list(self.ids) if other < below]:
            del self.ids[version]
            self.snapshots.discard(version)


@dataclass(frozen=True, slots=True)
class LineageNames(FileNames):
    """Names with the unique ids of one history: `N_ID.changelog` and `N_ID.zip`."""

    lineage: Lineage = field(default_factory=Lineage)

    def stem(self, version: int) -> str:
        """`VERSION_ID`; only the number for a version that is not part of the history."""
        unique_id = self.lineage.ids.get(version)
        return str(version) if unique_id is None else f"{version}_{unique_id}"

    def parse(self, name: str) -> StoreFile | None:
        """The file of the history that a name stands for; None for any other file."""
        parsed = parse_name(name)
        if parsed is None or self.lineage.ids.get(parsed[0].version) != parsed[0].unique_id:
            return None
        return StoreFile(parsed[0].version, parsed[1] == self.snapshot, self)

    def others(self, names: Iterable[str], below: int) -> list[str]:
        """The files of versions below `below`, of any history."""
        return [name for name in names if (file := parse_name(name)) and file[0].version < below]


@dataclass(frozen=True, slots=True)
class RocksStoreFiles(StoreFiles):
    """The directory of one RocksDB-backed store without column families."""

    lineage: Lineage = field(default_factory=Lineage)
    """Only in use if the names contain unique ids."""

    @property
    def form(self) -> ValueWrapper:
        """How values are wrapped."""
        delimiter = b"," if self.conf.merge_operator_version == 1 else b""
        return ValueWrapper(delimiter, self.conf.row_checksum_enabled)

    @property
    def has_ids(self) -> bool:
        return self.conf.checkpoint_format_version > 1

    @property
    def kinds(self) -> FileNames:
        if not self.has_ids:
            return ROCKSDB_FILES
        return LineageNames(ROCKSDB_FILES.delta, ROCKSDB_FILES.snapshot, self.lineage)

    def open_version(self, version: int, unique_id: str) -> None:
        """Find the history of a version."""
        own_id = self.lineage.ids.get(version)
        if not self.has_ids or (own_id is not None and unique_id in ("", own_id)):
            return
        if not unique_id:
            raise StateLoadError(
                self.store,
                f"version {version} cannot be found by its number alone, because the names of its "
                f"files contain unique ids; the commit log has the right one",
                "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",
            )
        self.lineage.adopt(self._directory.plan(version, unique_id))

    def open_prepared(self, prepared: PreparedVersion, data: bytes) -> None:
        target = LineageItem(prepared.version, id_of_prepared(prepared.name))
        if not self.has_ids or self.lineage.ids.get(target.version) == target.unique_id:
            return
        if is_prepared_snapshot(prepared.name):
            self.lineage.adopt(RocksPlan(target, ()))
            return
        source = join_url(self.files.url, prepared.name)
        raw = decompress(data, self.conf.compression_codec, source=source)
        # The version has no plain name yet, so its own files cannot be looked for. Those of the
        # version before it can, and this one follows them.
        earlier = read_lineage(raw, source)
        before = max(earlier, key=lambda item: item.version, default=LineageItem(0, ""))
        self.lineage.adopt(self._directory.plan(before.version, before.unique_id))
        self.lineage.begin(target.version, target.unique_id)

    def advance(
        self, draft: Draft, version: int, name: str, data: bytes, make: MakeVersion
    ) -> Draft:
        parsed = parse_name(name)
        if parsed is None or parsed[0].version != version:
            raise StateFormatError(join_url(self.files.url, name), 0, f"not of version {version}")
        item, kind = parsed
        if kind == self.kinds.snapshot:
            if self.has_ids:  # a snapshot needs nothing before it: the history begins here
                self.lineage.adopt(RocksPlan(item, ()))
            return make(self.read_archive(data, name)).draft()
        if self.has_ids:
            self.lineage.begin(version, item.unique_id)
        self.apply_bytes(data, name, draft)
        return draft

    def needs_snapshot(self, version: int) -> bool:
        """Whether a version must be written as a snapshot."""
        return self.has_ids and len(self.lineage.before(version)) > MAX_LINEAGE

    def lineage_of(self, version: int) -> tuple[LineageItem, ...] | None:
        """What the changelog of a version lists; None without unique ids."""
        return self.lineage.before(version) if self.has_ids else None

    def read_snapshot(self, version: int, there: Collection[str] = ()) -> dict[bytes, bytes]:
        name = self.kinds.snapshot_name(version)
        if checksum_name(name) in there:
            with suppress(FileNotFoundError):
                read_checked(self.files, name, there)
        item = LineageItem(version, self.lineage.ids.get(version, ""))
        source = join_url(self.files.url, file_name(item, self.kinds.snapshot))
        return self.unpacked(*read_snapshot(self.files, item, self.form.delimiter), source)

    def read_archive(self, data: bytes, name: str) -> dict[bytes, bytes]:
        """As `read_snapshot`, given the content of the zip."""
        source = join_url(self.files.url, name)
        return self.unpacked(*read_archive(self.files, data, self.form.delimiter, source), source)

    def unpacked(
        self, metadata: SnapshotMetadata, entries: dict[bytes, bytes], source: str
    ) -> dict[bytes, bytes]:
        """The rows in the entries of a snapshot."""
        if metadata.families:
            raise StateFormatError(
                source, 0, f"it has the column families {', '.join(metadata.families)}"
            )
        form = self.form
        values = [form.single(key, value, source) for key, value in entries.items()]
        keys, rows = self._rows(list(entries), values, source)
        return dict(zip(keys, rows, strict=True))

    def apply_bytes(self, data: bytes, name: str, draft: Draft) -> None:
        source = join_url(self.files.url, name)
        raw = decompress(data, self.conf.compression_codec, source=source)
        self.replay(parse_changelog(raw, source), draft, source)

    def replay(self, changelog: Changelog, draft: Draft, source: str) -> None:
        """Apply the records of a changelog to a draft."""
        form = self.form
        # A later record of a key replaces an earlier one, so only the last one is decoded.
        puts: dict[bytes, bytes] = {}
        gone: dict[bytes, None] = {}
        for record in changelog.records:
            if record.change is Operation.PUT:
                puts[record.key] = form.single(record.key, record.value or b"", source)
                gone.pop(record.key, None)
            elif record.change is Operation.DELETE:
                key = form.deleted_key(record.key, source)
                puts.pop(key, None)
                gone[key] = None
            else:
                raise StateFormatError(
                    source, 0, f"it has {record.change.name} records, which only lists need"
                )
        draft.changes.update(zip(*self._rows(list(puts), list(puts.values()), source), strict=True))
        draft.changes.update(dict.fromkeys(self._key_form.rows(list(gone), source)))

    def encode_delta(self, version: int, changes: Iterable[RowChange]) -> bytes:
        listed = list(changes)
        keys = self._key_form.stored([key for key, _ in listed])
        values = [None if value is None else VERSION_BYTE + value for _, value in listed]
        records = map(self.form.record, keys, values)
        raw = encode_changelog(records, self.lineage_of(version))
        return compress(raw, self.conf.compression_codec)

    def encode_snapshot(
        self, version: int, rows: Iterable[tuple[bytes, bytes]]
    ) -> dict[str, bytes]:
        """The files of a snapshot, by name. The last one makes it visible."""
        entries, metadata = self.packed(list(rows))
        name, table_format = self.kinds.snapshot_name(version), self.conf.rocksdb_table_format
        return encode_snapshot(name, entries, metadata, table_format)

    def packed(
        self, rows: Sequence[tuple[bytes, bytes]]
    ) -> tuple[Iterable[tuple[bytes, bytes]], SnapshotMetadata]:
        """The entries of a snapshot, and what it says about them."""
        keys, form = self._key_form.stored([key for key, _ in rows]), self.form
        entries = (
            (key, form.record(key, VERSION_BYTE + value)[1] or b"")
            for key, (_, value) in zip(keys, rows, strict=True)
        )
        return entries, SnapshotMetadata((), {}, len(rows))

    def write_snapshot(self, parts: Iterable[tuple[str, bytes]]) -> None:
        """Write the files of a snapshot, replacing an existing one."""
        for name, data in parts:
            self.drop_checksum(name)
            self.files.replace(name, data)

    def snapshot_parts(
        self, version: int, there: Collection[str] = ()
    ) -> Iterator[Iterable[tuple[bytes, bytes]]]:
        """The rows of a snapshot. RocksDB's are read at once."""
        yield self.read_snapshot(version, there).items()

    def stage_snapshot(
        self, version: int, rows: Iterable[tuple[bytes, bytes]]
    ) -> Sequence[tuple[str, AtomicFile]]:
        parts = self.encode_snapshot(version, rows).items()
        return [staged for name, data in parts for staged in stage(self.files, name, (data,))]

    def delete_old(self, names: Iterable[str]) -> None:
        """Delete files that no retained version needs, and the tables of deleted snapshots.

        A table is deleted only if a snapshot that is being deleted names it and no other one does.
        Tables that nothing names are left to Spark, which may be about to name them.
        """
        old = list(names)
        dropped = _snapshots(old)
        tables: set[str] = set()
        # `strict`: if a snapshot that stays cannot be read, it is unknown what it needs. The error
        # comes before anything is deleted.
        if dropped:
            tables = self._tables(dropped) - self._tables(
                _snapshots(self.names()) - dropped, strict=True
            )
        # The zips before their tables: a snapshot that is there has all its tables after any crash.
        for name in (*old, *sorted(tables)):
            self.files.delete(name)
        gone = [parsed[0].version for parsed in map(parse_name, old) if parsed]
        self.lineage.forget(max(gone, default=-1) + 1)

    def _tables(self, snapshots: Iterable[LineageItem], *, strict: bool = False) -> set[str]:
        paths: set[str] = set()
        for item in snapshots:
            try:
                metadata = read_metadata(self.files, item)
            except StateError:
                if strict:
                    raise
                continue  # its tables stay behind, which costs only space
            paths.update(table.path for table in metadata.files)
        return paths

    @property
    def _directory(self) -> RocksDirectory:
        return RocksDirectory(self.files, FileSettings(self.conf.compression_codec, self.form))

    def _rows(
        self, keys: Sequence[bytes], values: Sequence[bytes], source: str
    ) -> tuple[list[bytes], list[bytes]]:
        """Key rows and value rows, checked against the schema."""
        key_rows = self._key_form.rows(keys, source)
        value_rows = [unversioned(value, source) for value in values]
        if self.conf.format_validation_enabled:
            self.validate(spans_of(key_rows), spans_of(value_rows), source)
        return key_rows, value_rows

    @property
    def _key_form(self) -> KeyForm:
        return KeyForm(self.codec.key_schema, self.codec.num_cols_prefix_key)


def _snapshots(names: Iterable[str]) -> set[LineageItem]:
    return {parsed[0] for parsed in map(parse_name, names) if parsed and parsed[1] == "zip"}
