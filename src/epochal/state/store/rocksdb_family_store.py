"""Keeps a store with column families, as Spark's RocksDB provider does for transformWithState.

In memory a version is RocksDB's own entries: a key starts with the number of its family. Which
number a family has is recorded only in snapshots. So a version that adds a family is prepared as a
snapshot; all others are changelogs, as in stores without families.

Families that the query does not know are kept as they are: a variable that it no longer declares
may come back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochal.errors import StateUsageError
from epochal.files import join_url
from epochal.state.files.chain import snapshot_name
from epochal.state.files.codecs import compress, decompress
from epochal.state.files.rocksdb_changelog import encode_changelog, parse_changelog
from epochal.state.files.rocksdb_family import Family, Row, RowOrList, family_prefix
from epochal.state.files.rocksdb_snapshot import SnapshotMetadata, describe_entries, encode_snapshot
from epochal.state.files.rocksdb_entries import ValueForm
from epochal.state.files.schema_file import DEFAULT_FAMILY
from epochal.state.rows.types import StructType
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.ids import StateStoreId
from epochal.state.store.prepared import EncodedVersion
from epochal.state.store.rocksdb_directory import read_archive, read_snapshot, replay
from epochal.state.store.rocksdb_files import RocksStoreFiles
from epochal.state.store.rocksdb_provider import RocksDBStateStoreProvider
from epochal.state.store.row_form import FamilyForm, RowForm
from epochal.state.store.versions import Draft, FrozenVersion, RowChange

_NO_COLUMNS = StructType(())


@dataclass(slots=True)
class FamilyNumbers:
    """Which number each family of a store has. Numbers are never used again."""

    known: dict[str, int] = field(default_factory=dict)
    highest: int = 0
    are_stored: bool = True
    """Whether a snapshot records all of them."""

    def take(self, metadata: SnapshotMetadata) -> None:
        """Adopt the numbers of a snapshot."""
        self.known = dict(metadata.families)
        self.highest = max(metadata.highest_family, *self.known.values(), 0)
        self.are_stored = True

    def prefix(self, family: str) -> bytes:
        """What the keys of a family start with."""
        return family_prefix(self.known[family])

    def add(self, names: Iterable[str]) -> None:
        """Number those families that have no number yet."""
        for name in names:
            if name not in self.known:
                self.highest += 1
                self.known[name] = self.highest
                self.are_stored = False


@dataclass(frozen=True, slots=True)
class RocksFamilyFiles(RocksStoreFiles):
    """The directory of one RocksDB-backed store with column families."""

    numbers: FamilyNumbers = field(default_factory=FamilyNumbers)

    @property
    def form(self) -> ValueForm:
        """How values are wrapped."""
        delimiter = b"," if self.conf.merge_operator_version == 1 else b""
        return ValueForm(delimiter, self.conf.row_checksum_enabled)

    def read_snapshot(self, version: int, there: Collection[str] = ()) -> dict[bytes, bytes]:
        """All entries of a snapshot. Adopts the numbers of its families."""
        self.verify_snapshot(version, there)
        metadata, entries = read_snapshot(self.files, self.item(version), self.form.delimiter)
        self.numbers.take(metadata)
        return entries

    def read_archive(self, data: bytes, name: str) -> dict[bytes, bytes]:
        """As `read_snapshot`, given the content of the zip."""
        source = join_url(self.files.url, name)
        metadata, entries = read_archive(self.files, data, self.form.delimiter, source)
        self.numbers.take(metadata)
        return entries

    def apply_bytes(self, data: bytes, name: str, draft: Draft) -> None:
        """Apply a changelog, given its content, to a draft."""
        source = join_url(self.files.url, name)
        raw = decompress(data, self.conf.compression_codec, source=source)
        replay(parse_changelog(raw, source), draft, self.form, source)

    def needs_snapshot(self, version: int) -> bool:
        """Whether a version must be written as a snapshot: also if it adds families."""
        return not self.numbers.are_stored or RocksStoreFiles.needs_snapshot(self, version)

    def encode_delta(self, version: int, changes: Iterable[RowChange]) -> bytes:
        """The content of the changelog of a version."""
        form = self.form
        # Values are complete already. Only the key of a removed entry may need a checksum.
        records = (form.record(k, None) if v is None else (k, v) for k, v in changes)
        raw = encode_changelog(records, self.lineage_of(version), of_families=True)
        return compress(raw, self.conf.compression_codec)

    def encode_snapshot(
        self, version: int, rows: Iterable[tuple[bytes, bytes]]
    ) -> tuple[tuple[str, bytes], ...]:
        """The files of a snapshot, by name. The last one makes it visible."""
        entries = dict(rows)
        metadata = describe_entries(entries, self.numbers.known, self.numbers.highest)
        files = encode_snapshot(entries.items(), metadata, self.conf.rocksdb_table_format)
        return (*files.shared, (snapshot_name(version, self.kinds), files.archive))


class RocksDBFamilyProvider(RocksDBStateStoreProvider):
    """Keeps a store with column families in `N.changelog` and `N.zip` files."""

    files_class = RocksFamilyFiles

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
        if family not in self._family_files.numbers.known:
            return
        form = self._form_of(family)
        for key, value in version.items():
            if key.startswith(form.start):
                yield form.decode_key(key), form.decode_value(key, value)

    def tables(self, version: FrozenVersion) -> Iterator[tuple[str, Iterable[tuple[Row, Any]]]]:
        """The rows of each family."""
        for family in self.families:
            yield family, self.rows_of(family, version)

    def forms(self, scan_columns: int = 0) -> dict[str, RowForm]:
        """How the rows of each family are encoded in versions."""
        self._family_files.numbers.add(self._names())
        return {family: self._form_of(family) for family in self.families}

    def _form_of(self, family: str) -> FamilyForm:
        files = self._family_files
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
        files = self._family_files
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
        numbers = self._family_files.numbers
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

    @property
    def _family_files(self) -> RocksFamilyFiles:
        assert isinstance(self._files, RocksFamilyFiles)
        return self._files
