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
    snapshot_name,
)
from epochal.state.files.checksum_file import verify_checksum
from epochal.state.files.codecs import compress, decompress
from epochal.state.files.rocksdb_changelog import (
    LineageItem,
    Operation,
    encode_changelog,
    parse_changelog,
    read_lineage,
)
from epochal.state.files.rocksdb_entries import VERSION_BYTE, KeyForm, unversioned
from epochal.state.files.rocksdb_snapshot import SnapshotMetadata, encode_snapshot
from epochal.state.files.rocksdb_entries import ValueForm
from epochal.state.rows.byte_spans import spans_of
from epochal.state.store.prepared import PreparedVersion
from epochal.state.store.rocksdb_directory import (
    RocksDirectory,
    RocksPlan,
    file_name,
    parse_name,
    read_archive,
    read_metadata,
    read_snapshot,
)
from epochal.state.store.store_files import StoreFiles, stage
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
        for later in [other for other in list(self.ids) if other > version]:
            del self.ids[later]
        self.snapshots.difference_update([s for s in list(self.snapshots) if s >= version])
        self.ids[version] = unique_id

    def before(self, version: int) -> tuple[LineageItem, ...]:
        """What the changelog of `version` lists. KeyError if the history has a gap."""
        start = max((s for s in list(self.snapshots) if s < version), default=1)
        return tuple(LineageItem(v, self.ids[v]) for v in range(start, version))

    def forget(self, below: int) -> None:
        """Drop versions whose files are deleted."""
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
    def has_ids(self) -> bool:
        """Whether names contain unique ids."""
        return self.conf.checkpoint_format_version > 1

    @property
    def kinds(self) -> FileNames:
        """How the files are named."""
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
        """Find the history of a prepared version, given its content."""
        target = LineageItem(prepared.version, id_of_prepared(prepared.name))
        if not self.has_ids or self.lineage.ids.get(target.version) == target.unique_id:
            return
        if is_prepared_snapshot(prepared.name):
            self.lineage.adopt(RocksPlan(target, ()))
            return
        source = join_url(self.files.url, prepared.name)
        earlier = read_lineage(self._inflate(data, source), source)
        before = max(earlier, key=lambda item: item.version, default=LineageItem(0, ""))
        self.lineage.adopt(self._directory.plan(before.version, before.unique_id))
        self.lineage.begin(target.version, target.unique_id)

    def advance(
        self, draft: Draft, version: int, name: str, data: bytes, make: MakeVersion
    ) -> Draft:
        """Apply the next version to a draft, given the name and content of its file."""
        parsed = parse_name(name)
        if parsed is None or parsed[0].version != version:
            raise StateFormatError(join_url(self.files.url, name), 0, f"not of version {version}")
        item, kind = parsed
        if kind == self.kinds.snapshot:
            if self.has_ids:
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

    def item(self, version: int) -> LineageItem:
        """A version of the history."""
        return LineageItem(version, self.lineage.ids.get(version, ""))

    def read_snapshot(self, version: int, there: Collection[str] = ()) -> dict[bytes, bytes]:
        """All rows of a snapshot. Verifies its checksum file if that is among `there`."""
        self.verify_snapshot(version, there)
        item = self.item(version)
        source = join_url(self.files.url, file_name(item, self.kinds.snapshot))
        return self._unpacked(*read_snapshot(self.files, item), source)

    def read_archive(self, data: bytes, name: str) -> dict[bytes, bytes]:
        """As `read_snapshot`, given the content of the zip."""
        source = join_url(self.files.url, name)
        return self._unpacked(*read_archive(self.files, data, b"", source), source)

    def _unpacked(
        self, metadata: SnapshotMetadata, entries: dict[bytes, bytes], source: str
    ) -> dict[bytes, bytes]:
        if metadata.families:
            raise StateFormatError(
                source, 0, f"it has the column families {', '.join(metadata.families)}"
            )
        values = [self._form.single(key, value, source) for key, value in entries.items()]
        keys, rows = self._rows(list(entries), values, source)
        return dict(zip(keys, rows, strict=True))

    def verify_snapshot(self, version: int, there: Collection[str]) -> None:
        """Verify the checksum file of a snapshot if that is among `there`."""
        name = snapshot_name(version, self.kinds)
        if checksum_name(name) in there:
            with suppress(FileNotFoundError):
                expected = self.files.read(checksum_name(name))
                source = join_url(self.files.url, name)
                verify_checksum(self.files.read(name, large=True), expected, source=source)

    def apply_bytes(self, data: bytes, name: str, draft: Draft) -> None:
        """Apply a changelog, given its content, to a draft."""
        source = join_url(self.files.url, name)
        raw = decompress(data, self.conf.compression_codec, source=source)
        form = self._form
        # A later record of a key replaces an earlier one, so only the last one is decoded.
        puts: dict[bytes, bytes] = {}
        gone: dict[bytes, None] = {}
        for record in parse_changelog(raw, source).records:
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
        """The content of the changelog of a version."""
        listed = list(changes)
        keys = self._key_form.stored([key for key, _ in listed])
        values = [None if value is None else VERSION_BYTE + value for _, value in listed]
        records = map(self._form.record, keys, values)
        raw = encode_changelog(records, self.lineage_of(version))
        return compress(raw, self.conf.compression_codec)

    def encode_snapshot(
        self, version: int, rows: Iterable[tuple[bytes, bytes]]
    ) -> tuple[tuple[str, bytes], ...]:
        """The files of a snapshot, by name. The last one makes it visible."""
        listed = list(rows)
        keys = self._key_form.stored([key for key, _ in listed])
        form = self._form
        entries = (
            (key, form.record(key, VERSION_BYTE + value)[1] or b"")
            for key, (_, value) in zip(keys, listed, strict=True)
        )
        metadata = SnapshotMetadata((), {}, len(listed))
        files = encode_snapshot(entries, metadata, self.conf.rocksdb_table_format)
        return (*files.shared, (snapshot_name(version, self.kinds), files.archive))

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
        """Write the files of a snapshot, by name, without making them visible."""
        parts = self.encode_snapshot(version, rows)
        return [staged for name, data in parts for staged in stage(self.files, name, (data,))]

    def delete_old(self, names: Iterable[str]) -> None:
        """Delete files that no retained version needs, and the tables of deleted snapshots.

        A table is deleted only if a snapshot that is being deleted names it and no other one does.
        Tables that nothing names are left to Spark, which may be about to name them.
        """
        old = list(names)
        dropped = _snapshots(old)
        tables: set[str] = set()
        if dropped:
            tables = self._tables(dropped) - self._tables(
                _snapshots(self.names()) - dropped, strict=True
            )
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

    def _inflate(self, data: bytes, source: str) -> bytes:
        return decompress(data, self.conf.compression_codec, source=source)

    @property
    def _directory(self) -> RocksDirectory:
        return RocksDirectory(self.files, self._inflate, self._form)

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
    def _form(self) -> ValueForm:
        return ValueForm(checksummed=self.conf.row_checksum_enabled)

    @property
    def _key_form(self) -> KeyForm:
        return KeyForm(self.codec.key_schema, self.codec.num_cols_prefix_key)


def _snapshots(names: Iterable[str]) -> set[LineageItem]:
    return {parsed[0] for parsed in map(parse_name, names) if parsed and parsed[1] == "zip"}
