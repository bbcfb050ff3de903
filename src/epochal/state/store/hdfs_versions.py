"""Reads and writes whole versions of a store of plain rows: deltas and snapshots of UnsafeRows.

`state.files.chain` decides which files make a version. A missing or damaged file is an error that
names the file. No file is skipped and none is replaced by another, because state that is silently
incomplete is worse than none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from epochal.errors import StateLoadError
from epochal.files import join_url
from epochal.state.files.chain import HDFS_FILES, MISSING_DELTA, MISSING_SNAPSHOT, files_to_load
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
from epochal.state.files.rocksdb_entries import ValueWrapper
from epochal.state.files.rocksdb_family import Family, FamilyRows
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
    PlainForm,
    RowForm,
    Selection,
    StoredVersion,
)
from epochal.state.store.store_files import read_checked


@dataclass(frozen=True, slots=True, eq=False)
class HdfsContent:
    """The rows of one version of a store of plain rows."""

    rows: Sequence[Rows] = ()
    families: ClassVar[Mapping[str, int]] = {}
    """The number of each column family; empty in a store without families."""
    highest_family: ClassVar[int] = 0
    """The highest number that a family ever had."""

    def __len__(self) -> int:
        return sum(map(len, self.rows))

    def parts(self, family: str | None, source: str) -> Sequence[Rows]:
        """The rows of one family. `source` is for messages, if the content does not know better."""
        return self.rows

    def find(self, keys: Collection[bytes], source: str) -> Iterator[tuple[bytes, bytes, str]]:
        """Those of the keys that exist, with their value and source."""
        for rows in self.rows:
            for key, value in zip(rows.keys, rows.values, strict=True):
                if key in keys:
                    yield key, value, rows.source

    def with_rows(self, parts: Sequence[Rows], highest_family: int = 0) -> HdfsContent:
        """Other rows, in place of all that are there."""
        return HdfsContent(parts)

    def rewritten(self, parts: Sequence[Rows]) -> HdfsContent:
        """The same keys with other values, for all rows of one family."""
        return HdfsContent(parts)

    def changes(
        self, family: Family, edits: Sequence[Edit], form: ValueWrapper
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """The records that make these edits of one family, and of the indexes on it."""
        schema = family.rows.schema
        for key, value in edits:
            yield (
                encode_row(key, schema.key),
                None if value is None else encode_row(value, schema.value),
            )

    def encode(
        self, item: LineageItem, settings: FileSettings, table_format: int
    ) -> dict[str, bytes]:
        """The files of a snapshot with this content, by name."""
        checksums = settings.form.checksummed
        pieces = [
            encode_spans(rows.keys, rows.values, row_checksums=checksums)[: -len(END_MARK)]
            for rows in self.rows
        ]
        data = compress(b"".join((*pieces, END_MARK)), settings.codec)
        return {HDFS_FILES.snapshot_name(item.version): data}

    def encode_changes(
        self,
        changes: Iterable[tuple[bytes, bytes | None]],
        item: LineageItem,
        lineage: Sequence[LineageItem] | None,
        settings: FileSettings,
    ) -> tuple[str, bytes]:
        """Name and content of the file with the changes that make the next version."""
        data = encode_records(changes, row_checksums=settings.form.checksummed)
        return HDFS_FILES.delta_name(item.version), compress(data, settings.codec)


class HdfsVersions:
    """Reads and writes whole versions of a store of plain rows: deltas and snapshots."""

    empty = HdfsContent()
    """The content of a store without rows and families."""

    def file_names(self, stored: StoredVersion, names: Collection[str]) -> list[str]:
        """The files that make a version, the oldest first, given the names in the directory."""
        snapshots, deltas = HDFS_FILES.snapshot_versions(names), HDFS_FILES.delta_versions(names)
        chain = files_to_load(stored.version, snapshots, deltas)
        snapshot = [HDFS_FILES.snapshot_name(chain.snapshot)] if chain.snapshot else []
        return snapshot + [HDFS_FILES.delta_name(version) for version in chain.deltas]

    def shared_files(self, stored: StoredVersion, name: str) -> list[str]:
        """What one of `file_names` consists of besides itself."""
        return []

    def read_rows(self, stored: StoredVersion, wanted: Selection) -> list[Rows]:
        """Rows of a version in their stored form, but without the number of their family."""
        names = {info.name for info in stored.files.list() if not info.is_dir}
        # Every file of the chain is read, the missing ones too: reading fails and names the file.
        records = [_read_records(stored, name, names) for name in self.file_names(stored, names)]
        is_based = bool(records) and records[0].source.endswith(HDFS_FILES.snapshot)
        parts = merge_records(records[0] if is_based else None, records[is_based:])
        return [_with_prefix(part, wanted.prefix) for part in parts] if wanted.prefix else parts

    def read_changes(
        self, stored: StoredVersion, first: int, wanted: Selection
    ) -> Iterator[ChangedRows]:
        """What the versions from `first` on changed."""
        names = {info.name for info in stored.files.list()}
        for version in range(first, stored.version + 1):
            changed = _read_records(stored, HDFS_FILES.delta_name(version), names)
            kinds = np.where(changed.deleted, "delete", "update").tolist()
            yield ChangedRows(version, puts_of(changed), changed.deleted, kinds)

    def read_content(self, stored: StoredVersion) -> HdfsContent:
        """Everything in a version, to be edited."""
        return HdfsContent(self.read_rows(stored, Selection()))

    def key_columns(
        self, keys: Spans, encoder: KeyEncoder, schema: StructType, source: str
    ) -> pa.StructArray:
        return decode_rows(keys, schema, source=source)

    def unwrap(self, rows: Spans, source: str) -> Spans:
        """The UnsafeRows in stored values, and in stored keys that are not split."""
        return rows

    def row_form(self, start: bytes, rows: FamilyRows, form: ValueWrapper, source: str) -> RowForm:
        """How single rows are encoded. `start` is what the keys of the family start with."""
        return PlainForm(RowCodec(rows.schema.key, rows.schema.value, 0), source)

    def carried_version(self, stored: StoredVersion, names: Collection[str]) -> CarriedVersion:
        """What later versions without changes are made of, given the names there."""
        return CarriedVersion(stored.item)

    def next_carried(
        self, carried: CarriedVersion, item: LineageItem, codec: str
    ) -> tuple[str, bytes | None, CarriedVersion]:
        """Name and content of the next version's file; None for a copy of the snapshot."""
        data = compress(encode_records(()), codec)
        return HDFS_FILES.delta_name(item.version), data, CarriedVersion(item)

    def first_files(
        self, parts: Sequence[Rows], version: int, settings: FileSettings
    ) -> dict[str, bytes]:
        """The files of a store that has these UnsafeRows from `version` on, and none before."""
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
