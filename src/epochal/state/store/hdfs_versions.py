"""Reads and writes whole versions of a store of plain rows: deltas and snapshots of UnsafeRows.

`state.files.chain` decides which files make a version. A missing or damaged file is an error that
names the file. No file is skipped and none is replaced by another, because state that is silently
incomplete is worse than none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from epochal.errors import StateLoadError
from epochal.files import join_url
from epochal.state.files.chain import (
    HDFS_FILES,
    MISSING_DELTA,
    MISSING_SNAPSHOT,
    delta_name,
    delta_versions,
    files_to_load,
    snapshot_name,
    snapshot_versions,
)
from epochal.state.files.codecs import compress, decompress_buffer
from epochal.state.files.delta_snapshot import (
    END_MARK,
    FileKind,
    Records,
    encode_records,
    encode_spans,
    scan_records,
)
from epochal.state.files.merge import Rows, merge_records, puts_of
from epochal.state.files.rocksdb_changelog import LineageItem
from epochal.state.files.rocksdb_family import Family, FamilyRows
from epochal.state.files.rocksdb_entries import ValueForm
from epochal.state.files.schema_file import KeyEncoder
from epochal.state.rows.byte_spans import Spans
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.row_codec import RowCodec
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import encode_row
from epochal.state.store.contract import (
    CarriedVersion,
    ChangedRows,
    Edit,
    FileSettings,
    Selection,
    StoredVersion,
)
from epochal.state.store.contract import PlainForm, RowForm
from epochal.state.store.store_files import read_checked


@dataclass(frozen=True, slots=True, eq=False)
class HdfsContent:
    """The rows of one version."""

    rows: Sequence[Rows] = ()

    @property
    def families(self) -> Mapping[str, int]:
        return {}

    @property
    def highest_family(self) -> int:
        return 0

    def __len__(self) -> int:
        return sum(map(len, self.rows))

    def parts(self, family: str | None, source: str) -> Sequence[Rows]:
        return self.rows

    def find(self, keys: Collection[bytes], source: str) -> Iterator[tuple[bytes, bytes, str]]:
        for rows in self.rows:
            for key, value in zip(rows.keys, rows.values, strict=True):
                if key in keys:
                    yield key, value, rows.source

    def with_rows(self, parts: Sequence[Rows], highest_family: int = 0) -> HdfsContent:
        return HdfsContent(parts)

    def rewritten(self, parts: Sequence[Rows]) -> HdfsContent:
        return HdfsContent(parts)

    def changes(
        self, family: Family, edits: Sequence[Edit], form: ValueForm
    ) -> Iterator[tuple[bytes, bytes | None]]:
        schema = family.rows.schema
        for key, value in edits:
            yield (
                encode_row(key, schema.key),
                None if value is None else encode_row(value, schema.value),
            )

    def encode(
        self, item: LineageItem, settings: FileSettings, table_format: int
    ) -> dict[str, bytes]:
        checksums = settings.form.checksummed
        pieces = [
            encode_spans(rows.keys, rows.values, row_checksums=checksums)[: -len(END_MARK)]
            for rows in self.rows
        ]
        data = compress(b"".join((*pieces, END_MARK)), settings.codec)
        return {snapshot_name(item.version): data}

    def encode_changes(
        self,
        changes: Iterable[tuple[bytes, bytes | None]],
        item: LineageItem,
        lineage: Sequence[LineageItem] | None,
        settings: FileSettings,
    ) -> tuple[str, bytes]:
        data = encode_records(changes, row_checksums=settings.form.checksummed)
        return delta_name(item.version), compress(data, settings.codec)


class HdfsVersions:
    """Reads and writes whole versions."""

    empty = HdfsContent()

    def file_names(self, stored: StoredVersion, names: Collection[str]) -> list[str]:
        chain = files_to_load(stored.version, snapshot_versions(names), delta_versions(names))
        snapshot = [snapshot_name(chain.snapshot)] if chain.snapshot else []
        return snapshot + [delta_name(version) for version in chain.deltas]

    def shared_files(self, stored: StoredVersion, name: str) -> list[str]:
        return []

    def read_rows(self, stored: StoredVersion, wanted: Selection) -> list[Rows]:
        names = {info.name for info in stored.files.list() if not info.is_dir}
        # Every file of the chain is read, the missing ones too: reading fails and names the file.
        records = [_read_records(stored, name, names) for name in self.file_names(stored, names)]
        is_based = bool(records) and records[0].source.endswith(HDFS_FILES.snapshot)
        parts = merge_records(records[0] if is_based else None, records[is_based:])
        return [_with_prefix(part, wanted.prefix) for part in parts] if wanted.prefix else parts

    def read_changes(
        self, stored: StoredVersion, first: int, wanted: Selection
    ) -> Iterator[ChangedRows]:
        names = {info.name for info in stored.files.list()}
        for version in range(first, stored.version + 1):
            changed = _read_records(stored, delta_name(version), names)
            kinds = np.where(changed.deleted, "delete", "update").tolist()
            yield ChangedRows(version, puts_of(changed), changed.deleted, kinds)

    def read_content(self, stored: StoredVersion) -> HdfsContent:
        return HdfsContent(self.read_rows(stored, Selection()))

    def key_columns(
        self, keys: Spans, encoder: KeyEncoder, schema: StructType, source: str
    ) -> pa.StructArray:
        return decode_rows(keys, schema, source=source)

    def unwrap(self, rows: Spans, source: str) -> Spans:
        return rows

    def row_form(self, start: bytes, rows: FamilyRows, form: ValueForm, source: str) -> RowForm:
        return PlainForm(RowCodec(rows.schema.key, rows.schema.value, 0), source)

    def carried_version(self, stored: StoredVersion, names: Collection[str]) -> CarriedVersion:
        return CarriedVersion(stored.item)

    def next_carried(
        self, carried: CarriedVersion, item: LineageItem, codec: str
    ) -> tuple[str, bytes | None, CarriedVersion]:
        return delta_name(item.version), compress(encode_records(()), codec), CarriedVersion(item)

    def first_files(
        self, parts: Sequence[Rows], version: int, settings: FileSettings
    ) -> dict[str, bytes]:
        return HdfsContent(parts).encode(LineageItem(version, ""), settings, 0)


def _with_prefix(rows: Rows, prefix: bytes) -> Rows:
    # Imported here: importing Arrow's functions takes longer than reading a lone snapshot.
    from pyarrow import compute

    starts: Any = compute.starts_with(rows.keys.to_arrow(), cast(Any, prefix))
    return rows.take(np.flatnonzero(starts.to_numpy(zero_copy_only=False)))


def _read_records(stored: StoredVersion, name: str, names: Collection[str]) -> Records:
    """The records of one file; verifies its checksum file if that is among `names`."""
    files, settings = stored.files, stored.settings
    source = join_url(files.url, name)
    kind = FileKind.SNAPSHOT if name.endswith(".snapshot") else FileKind.DELTA
    try:
        packed = read_checked(files, name, names)
    except FileNotFoundError:
        condition = MISSING_SNAPSHOT if kind is FileKind.SNAPSHOT else MISSING_DELTA
        raise StateLoadError(source, "the file does not exist", condition) from None
    data = decompress_buffer(packed, settings.codec, source=source, bounds=files.bounds)
    return scan_records(data, kind, row_checksums=settings.form.checksummed, source=source)
