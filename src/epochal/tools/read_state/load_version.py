"""Loads the rows of one partition of one store at one version, for both providers. Read-only.

`state.files.chain` decides which files make the version. A missing or damaged file is an error that
names the file. No file is skipped and none is replaced by another, because state that is silently
incomplete is worse than none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochal.errors import StateLoadError
from epochal.files import Files, join_url
from epochal.state.files.chain import (
    MISSING_DELTA,
    MISSING_SNAPSHOT,
    checksum_name,
    delta_name,
    delta_versions,
    files_to_load,
    snapshot_name,
    snapshot_versions,
)
from epochal.state.files.checksum_file import verify_checksum
from epochal.state.files.codecs import decompress, decompress_buffer
from epochal.state.files.delta_snapshot import FileKind, scan_records
from epochal.state.files.merge import Rows, SourcedRecords, merge_records
from epochal.state.rows.byte_spans import Spans, spans_of
from epochal.tools.read_state.read_target import Provider, StateSettings, StoreTarget

if TYPE_CHECKING:
    from epochal.state.store.rocksdb_directory import RocksDirectory


def load_rows(target: StoreTarget, partition: int, prefix: bytes = b"") -> list[Rows]:
    """The rows in their stored form: whole key rows, or RocksDB's encoded keys and values.

    With a `prefix` only the rows of RocksDB whose keys begin so.
    """
    files = target.directory(partition)
    if target.settings.provider is Provider.HDFS:
        return load_version(files, target.version, target.settings)
    rocks = open_rocksdb(files, target.settings)
    content = rocks.load(target.version, target.unique_id(partition), target.family, prefix)
    source = f"{files.url} at version {target.version}"
    return _rocks_rows(list(content.family(target.family)), target, source)


def load_version(files: Files, version: int, settings: StateSettings) -> list[Rows]:
    """The rows of one version of an HDFS-backed store."""
    names = {info.name for info in files.list() if not info.is_dir}
    chain = files_to_load(version, snapshot_versions(names), delta_versions(names))

    def read(name: str) -> SourcedRecords:
        checksums = settings.form.checksummed
        checked = checksum_name(name) in names
        return read_records(
            files, name, settings.codec, row_checksums=checksums, has_checksum_file=checked
        )

    # Every delta of the chain is read, the missing ones too: `read` fails and names the file.
    base = read(snapshot_name(chain.snapshot)) if chain.snapshot else None
    return merge_records(base, [read(delta_name(v)) for v in chain.deltas])


def read_records(
    files: Files,
    name: str,
    codec: str,
    *,
    row_checksums: bool = False,
    has_checksum_file: bool = False,
) -> SourcedRecords:
    """The records of one delta or snapshot file; verifies its checksum file if it has one."""
    source = join_url(files.url, name)
    kind = FileKind.SNAPSHOT if name.endswith(".snapshot") else FileKind.DELTA
    try:
        packed = files.read(name, large=True)
    except FileNotFoundError:
        condition = MISSING_SNAPSHOT if kind is FileKind.SNAPSHOT else MISSING_DELTA
        raise StateLoadError(source, "the file does not exist", condition) from None
    if has_checksum_file:
        verify_checksum(packed, files.read(checksum_name(name)), source=source)
    data = decompress_buffer(packed, codec, source=source, bounds=files.bounds)
    return SourcedRecords(
        scan_records(data, kind, row_checksums=row_checksums, source=source), source
    )


def open_rocksdb(files: Files, settings: StateSettings) -> RocksDirectory:
    """Open the directory of one partition of a RocksDB-backed store."""
    from epochal.state.store.rocksdb_directory import RocksDirectory

    def inflate(data: bytes, source: str) -> bytes:
        return decompress(data, settings.codec, source=source, bounds=files.bounds)

    return RocksDirectory(files, inflate, settings.form)


def _rocks_rows(entries: list[tuple[bytes, bytes]], target: StoreTarget, source: str) -> list[Rows]:
    """Encoded keys without their family, with one encoded value each. A list gives many rows."""
    from epochal.state.store.rocksdb_directory import FAMILY_BYTES

    form = target.settings.form
    skip = 0 if target.family is None else FAMILY_BYTES
    if target.has_lists:
        pairs = [
            (key, value) for key, joined in entries for value in form.several(key, joined, source)
        ]
    elif form.checksummed:
        pairs = [(key, form.single(key, value, source)) for key, value in entries]
    else:
        pairs = entries
    if not pairs:
        return []
    return [encoded_rows(target, pairs, skip, source)]


def encoded_rows(
    target: StoreTarget, pairs: Sequence[tuple[bytes, bytes | None]], skip: int, source: str
) -> Rows:
    """Encoded keys, without their first `skip` bytes, and values as rows; None is no value.

    Rows in Avro become UnsafeRows here, so that all that follows sees only those.
    """
    if target.avro is not None:
        keys = spans_of([target.avro.plain_key(key[skip:], source) for key, _ in pairs])
        plain = target.avro.plain_value
        values = spans_of([b"" if v is None else plain(v, source) for _, v in pairs])
        return Rows(keys, values, source)
    keys = spans_of([key for key, _ in pairs])
    values = spans_of([value or b"" for _, value in pairs])
    return Rows(Spans(keys.buffer, keys.starts + skip, keys.lengths - skip), values, source)
