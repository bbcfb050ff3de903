"""The providers of state that Spark has, and with which of them a store is opened.

A store in the files of Spark's RocksDB provider is kept without a RocksDB that stays open. The rows
of a version are in memory, as with the HDFS-backed provider; only the files differ. RocksDB itself,
through `rocksdict`, is needed just to read and write snapshots.

A store with column families is kept as Spark's RocksDB provider does for transformWithState. In
memory a version is RocksDB's own entries: a key starts with the number of its family. Which number
a family has is recorded only in snapshots. So a version that adds a family is prepared as a
snapshot; all others are changelogs, as in stores without families. Families that the query does not
know are kept as they are: a variable that it no longer declares may come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from epochal.checkpoint.restart import (
    HDFS_PROVIDER_CLASS,
    ROCKSDB_PROVIDER_CLASS,
    STATE_ENCODING,
    STATE_FORMAT,
)
from epochal.errors import StateUsageError
from epochal.files import AtomicFile
from epochal.state.files.chain import is_prepared_snapshot
from epochal.state.files.codecs import compress
from epochal.state.files.rocksdb_changelog import Changelog, encode_changelog
from epochal.state.files.rocksdb_family import Family, Row, RowOrList, family_prefix
from epochal.state.files.rocksdb_snapshot import (
    SnapshotMetadata,
    describe_entries,
    import_rocksdict,
)
from epochal.state.files.schema_file import DEFAULT_FAMILY
from epochal.state.rows.types import StructType
from epochal.state.store.conf import StateStoreConf, StateStoreId
from epochal.state.store.contract import FamilyForm, RowForm
from epochal.state.store.provider import StateStoreProvider
from epochal.state.store.rocksdb_directory import replay
from epochal.state.store.rocksdb_files import RocksStoreFiles
from epochal.state.store.store_files import (
    EncodedVersion,
    PreparedVersion,
    StoreFiles,
    read_prepared,
)
from epochal.state.store.versions import Draft, FrozenVersion, RowChange

UNSAFE_ROW = "unsaferow"
_IDS = UUID("5d3c1a0e-6c52-4f0a-9b54-0d2f6c1b7e21")
"""The namespace of the unique ids that we give to versions."""
_NO_COLUMNS = StructType(())


class HDFSBackedStateStoreProvider(StateStoreProvider):
    """Keeps a store in `N.delta` and `N.snapshot` files, as Spark's default provider does."""

    files_class = StoreFiles

    @classmethod
    def check(cls, store_id: StateStoreId, conf: StateStoreConf) -> None:
        """Raise StateUsageError unless this provider can keep state with these settings."""
        if conf.provider_class != HDFS_PROVIDER_CLASS:
            raise StateUsageError(
                str(store_id),
                f"the query keeps its state with {conf.provider_class}; this is the provider for "
                f"{HDFS_PROVIDER_CLASS}. Convert the state with `epochal state convert`.",
                "STATE_STORE_INVALID_PROVIDER",
            )
        if conf.checkpoint_format_version > 1:
            raise StateUsageError(
                str(store_id),
                f"HDFSBackedStateStoreProvider does not support checkpointFormatVersion "
                f"{conf.checkpoint_format_version}, only 1.",
                "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED",
            )


class RocksDBStateStoreProvider(StateStoreProvider):
    """Keeps a store in `N.changelog` and `N.zip` files, as Spark's RocksDB provider does."""

    files_class = RocksStoreFiles
    _files: RocksStoreFiles

    @classmethod
    def check(cls, store_id: StateStoreId, conf: StateStoreConf) -> None:
        """Raise unless this provider can keep state with these settings, and can run here."""
        if conf.provider_class != ROCKSDB_PROVIDER_CLASS:
            raise StateUsageError(
                str(store_id),
                f"the query keeps its state with {conf.provider_class}; this is the provider for "
                f"{ROCKSDB_PROVIDER_CLASS}.",
                "STATE_STORE_INVALID_PROVIDER",
            )
        if conf.checkpoint_format_version > 2:
            raise StateUsageError(
                str(store_id),
                f"{STATE_FORMAT} is {conf.checkpoint_format_version}; Epochal knows 1 and 2. Run "
                f"the query with Spark.",
                "STATE_STORE_CHECKPOINT_IDS_NOT_SUPPORTED",
            )
        if conf.encoding_format.lower() != UNSAFE_ROW:
            raise StateUsageError(
                str(store_id),
                f"the state's rows are encoded as {conf.encoding_format} ({STATE_ENCODING}); "
                f"Epochal reads such state but writes only {UNSAFE_ROW}. Run the query with Spark.",
                "STATE_STORE_UNSUPPORTED_OPERATION",
            )
        import_rocksdict()

    def encode_version(self, version: int, draft: Draft, attempt: str) -> EncodedVersion:
        """The file of the next version; some must be whole snapshots.

        If names contain unique ids, that of the version follows from the run and the attempt.
        """
        files = self._files
        if files.has_ids:
            # An attempt that repeats its work writes the same names again. Another attempt, or
            # another run, never writes them: a decided file is not overwritten by a late task.
            unique_id = uuid5(_IDS, f"{self.provider_id} {version} {attempt}")
            files.lineage.begin(version, str(unique_id))
        if not files.needs_snapshot(version):
            return super().encode_version(version, draft, attempt)
        rows = draft.freeze()
        # The tables are written now. The zip, which makes the version, is written by the caller.
        *shared, (name, archive) = files.encode_snapshot(version, rows.items()).items()
        files.write_snapshot(shared)
        files.lineage.snapshots.add(version)
        return EncodedVersion(name, archive, rows, is_snapshot=True)

    def commit(
        self, version: int, draft: Draft, delta: AtomicFile, *, force_snapshot: bool
    ) -> None:
        """Publish a changelog. Refused if names contain unique ids: nothing would name this one."""
        if self._files.has_ids:
            raise StateUsageError(
                str(self.store_id),
                "a store whose files have unique ids is written by `prepare` and `publish`.",
                "STATE_STORE_UNSUPPORTED_OPERATION",
            )
        super().commit(version, draft, delta, force_snapshot=force_snapshot)

    def _load_prepared(self, prepared: PreparedVersion) -> FrozenVersion:
        if not is_prepared_snapshot(prepared.name):
            return super()._load_prepared(prepared)
        with self._lock:
            rows = self._prepared.get(prepared.name)
            if rows is None:
                files = self._files
                data = read_prepared(files.files, prepared, str(self.store_id))
                files.open_prepared(prepared, data)
                rows = self._version_of(files.read_archive(data, prepared.name))
                self._prepared[prepared.name] = rows
            return rows

    def _publish_snapshot(self, version: int, staged: Iterable[tuple[str, AtomicFile]]) -> None:
        super()._publish_snapshot(version, staged)
        self._files.lineage.snapshots.add(version)


@dataclass(slots=True)
class FamilyNumbers:
    """Which number each family of a store has. Numbers are never used again."""

    by_name: dict[str, int] = field(default_factory=dict)
    highest: int = 0
    are_stored: bool = True
    """Whether a snapshot records all of them."""

    def take(self, metadata: SnapshotMetadata) -> None:
        self.by_name = dict(metadata.families)
        self.highest = max(metadata.highest_family, *self.by_name.values(), 0)
        self.are_stored = True

    def prefix(self, family: str) -> bytes:
        return family_prefix(self.by_name[family])

    def add(self, names: Iterable[str]) -> None:
        """Number those families that have no number yet."""
        for name in names:
            if name not in self.by_name:
                self.highest += 1
                self.by_name[name] = self.highest
                self.are_stored = False


@dataclass(frozen=True, slots=True)
class RocksFamilyFiles(RocksStoreFiles):
    """The directory of one RocksDB-backed store with column families."""

    numbers: FamilyNumbers = field(default_factory=FamilyNumbers)

    def unpacked(
        self, metadata: SnapshotMetadata, entries: dict[bytes, bytes], source: str
    ) -> dict[bytes, bytes]:
        """All entries of a snapshot. Adopts the numbers of its families."""
        self.numbers.take(metadata)
        return entries

    def replay(self, changelog: Changelog, draft: Draft, source: str) -> None:
        replay(changelog, draft, self.form, source)

    def needs_snapshot(self, version: int) -> bool:
        """Whether a version must be written as a snapshot: also if it adds families."""
        return not self.numbers.are_stored or RocksStoreFiles.needs_snapshot(self, version)

    def encode_delta(self, version: int, changes: Iterable[RowChange]) -> bytes:
        form = self.form
        # Values are complete already. Only the key of a removed entry may need a checksum.
        records = (form.record(k, None) if v is None else (k, v) for k, v in changes)
        raw = encode_changelog(records, self.lineage_of(version), of_families=True)
        return compress(raw, self.conf.compression_codec)

    def packed(
        self, rows: Sequence[tuple[bytes, bytes]]
    ) -> tuple[Iterable[tuple[bytes, bytes]], SnapshotMetadata]:
        keys = [key for key, _ in rows]
        return rows, describe_entries(keys, self.numbers.by_name, self.numbers.highest)


class RocksDBFamilyProvider(RocksDBStateStoreProvider):
    """Keeps a store with column families in `N.changelog` and `N.zip` files."""

    files_class = RocksFamilyFiles
    _files: RocksFamilyFiles

    def __init__(
        self,
        store_id: StateStoreId,
        families: Sequence[Family],
        conf: StateStoreConf,
        **options: Any,
    ) -> None:
        super().__init__(store_id, _NO_COLUMNS, _NO_COLUMNS, conf, **options)
        self.families = {family.name: family for family in families}

    def rows_of(self, family: str, version: FrozenVersion) -> Iterator[tuple[Row, RowOrList]]:
        """Keys and values of one family; a value of a family of lists is a whole list."""
        if family not in self._files.numbers.by_name:
            return
        form = self._form_of(family)
        for key, value in version.items():
            if key.startswith(form.start):
                yield form.decode_key(key), form.decode_value(key, value)

    def tables(self, version: FrozenVersion) -> Iterator[tuple[str, Iterable[tuple[Row, Any]]]]:
        for family in self.families:
            yield family, self.rows_of(family, version)

    def forms(self, scan_columns: int = 0) -> dict[str, RowForm]:
        """How the rows of each family are encoded in versions."""
        self._files.numbers.add(self._names())
        return {family: self._form_of(family) for family in self.families}

    def _form_of(self, family: str) -> FamilyForm:
        files = self._files
        rows, start = self.families[family].rows, files.numbers.prefix(family)
        return FamilyForm(start, rows, files.form, str(self.store_id))

    def apply(
        self,
        draft: Draft,
        table: str,
        puts: Sequence[tuple[Row, RowOrList]],
        removes: Iterable[Row],
    ) -> None:
        """Change rows of one family, and the indexes on it."""
        files = self._files
        files.numbers.add(self._names())
        changes = self.families[table].changes(
            puts, removes, files.numbers.prefix, draft.get, files.form
        )
        for key, value in changes:
            if value is None:
                draft.remove(key)
            else:
                draft.put(key, value)

    def encode_version(self, version: int, draft: Draft, attempt: str) -> EncodedVersion:
        """The file of the next version: a snapshot if the version adds families."""
        numbers = self._files.numbers
        # Only a snapshot records numbers, so a changelog must have none that no snapshot has.
        numbers.add(self._names())
        encoded = super().encode_version(version, draft, attempt)
        numbers.are_stored = True
        return encoded

    def commit(self, *_: Any, **__: Any) -> None:
        """Refused: a version of this store is prepared, then published."""
        raise StateUsageError(
            str(self.store_id),
            "a store with column families is written by `prepare` and `publish`.",
            "STATE_STORE_UNSUPPORTED_OPERATION",
        )

    def _names(self) -> Iterator[str]:
        yield DEFAULT_FAMILY
        for family in self.families.values():
            yield from family.names


def provider_class(conf: StateStoreConf) -> type[StateStoreProvider]:
    """The provider that the settings name. Providers of other vendors are refused when opened."""
    if conf.provider_class == ROCKSDB_PROVIDER_CLASS:
        return RocksDBStateStoreProvider
    return HDFSBackedStateStoreProvider


def open_provider(
    store_id: StateStoreId,
    key_schema: StructType,
    value_schema: StructType,
    conf: StateStoreConf,
    *,
    families: Sequence[Family] | None = None,
    num_cols_prefix_key: int = 0,
    **options: Any,
) -> StateStoreProvider:
    """Open a store. One with column families has the schemas of those."""
    if families is not None:
        return RocksDBFamilyProvider(store_id, families, conf, **options)
    options["num_cols_prefix_key"] = num_cols_prefix_key
    return provider_class(conf)(store_id, key_schema, value_schema, conf, **options)
