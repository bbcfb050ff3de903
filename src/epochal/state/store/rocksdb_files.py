"""Reads and writes the changelogs and snapshots of one RocksDB-backed store.

The provider above keeps plain rows, as for any other store. Here they get the form that Spark's
RocksDB provider gives them, and lose it again: encoded keys, values with the byte that names their
encoding, and checksums.

Every version is a changelog, also when Spark's own changelogs are switched off: Spark replays them
on the newest snapshot whatever its setting is. Maintenance writes a snapshot now and then, so that
there are never many to replay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from epochal.errors import StateError, StateFormatError
from epochal.files import join_url
from epochal.state.files.chain import (
    ROCKSDB_FILES,
    FileNames,
    checksum_name,
    snapshot_name,
    snapshot_versions,
)
from epochal.state.files.checksum_file import verify_checksum
from epochal.state.files.codecs import compress, decompress
from epochal.state.files.rocksdb_changelog import (
    Change as Operation,
)
from epochal.state.files.rocksdb_changelog import LineageItem, encode_changelog, parse_changelog
from epochal.state.files.rocksdb_key_form import VERSION_BYTE, KeyForm, unversioned
from epochal.state.files.rocksdb_snapshot import SnapshotMetadata, encode_snapshot
from epochal.state.files.rocksdb_values import ValueForm
from epochal.state.rows.byte_spans import spans_of
from epochal.state.store.rocksdb_directory import file_name, read_metadata, read_snapshot
from epochal.state.store.store_files import StoreFiles
from epochal.state.store.versions import Change, Draft


@dataclass(frozen=True, slots=True)
class RocksStoreFiles(StoreFiles):
    """The directory of one RocksDB-backed store without column families."""

    kinds: ClassVar[FileNames] = ROCKSDB_FILES

    def read_snapshot(self, version: int, there: Collection[str] = ()) -> dict[bytes, bytes]:
        """All rows of a snapshot. Verifies its checksum file if that is among `there`."""
        self.verify_snapshot(version, there)
        item = LineageItem(version, "")
        source = join_url(self.files.url, file_name(item, self.kinds.snapshot))
        metadata, entries = read_snapshot(self.files, item)
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
                verify_checksum(self.files.read(name), expected, source=source)

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

    def encode_delta(self, changes: Iterable[Change]) -> bytes:
        """The content of a changelog."""
        listed = list(changes)
        keys = self._key_form.stored([key for key, _ in listed])
        values = [None if value is None else VERSION_BYTE + value for _, value in listed]
        records = map(self._form.record, keys, values)
        return compress(encode_changelog(records, None), self.conf.compression_codec)

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

    def delete_old(self, names: Iterable[str]) -> None:
        """Delete files that no retained version needs, and the tables of deleted snapshots.

        A table is deleted only if a snapshot that is being deleted names it and no other one does.
        Tables that nothing names are left to Spark, which may be about to name them.
        """
        old = list(names)
        dropped = snapshot_versions(old, self.kinds)
        tables: set[str] = set()
        if dropped:
            kept = set(snapshot_versions(self.names(), self.kinds)) - set(dropped)
            tables = self._tables(dropped) - self._tables(kept, strict=True)
        for name in (*old, *sorted(tables)):
            self.files.delete(name)

    def _tables(self, versions: Iterable[int], *, strict: bool = False) -> set[str]:
        found: set[str] = set()
        for version in versions:
            try:
                metadata = read_metadata(self.files, LineageItem(version, ""))
            except StateError:
                if strict:
                    raise
                continue  # its tables stay behind, which costs only space
            found.update(each.path for each in metadata.files)
        return found

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
