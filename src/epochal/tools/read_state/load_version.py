"""The rows of one partition of one store at one version, from either provider's files. Reads only.

HDFS-backed: the newest snapshot at or below the version and every delta after it. A file that is
missing or damaged is an error that names it; nothing is left out and no other file is tried in its
place, because state that is quietly incomplete is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochal.errors import StateLoadError
from epochal.files import Files, join_url
from epochal.state.files.chain import delta_name, snapshot_name, snapshot_versions
from epochal.state.files.checksum_file import SUFFIX, verify_checksum
from epochal.state.files.codecs import decompress, decompress_buffer
from epochal.state.files.delta_snapshot import FileKind, scan_records
from epochal.state.files.merge import Rows, SourcedRecords, merge_records
from epochal.state.rows.byte_spans import Spans, spans_of
from epochal.tools.read_state.read_target import Provider, StateSettings, StoreTarget

if TYPE_CHECKING:
    from epochal.tools.read_state.rocksdb import RocksDirectory

MISSING_DELTA = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_DELTA_FILE_NOT_EXISTS"
MISSING_SNAPSHOT = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_MISSING_SNAPSHOT_FILE"


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The files that make a version of an HDFS-backed store."""

    snapshot: int | None
    deltas: tuple[int, ...]


def plan_files(names: Iterable[str], version: int) -> FilePlan:
    """Which snapshot and deltas make `version`, whether they are there or not."""
    base = max((v for v in snapshot_versions(names) if v <= version), default=None)
    return FilePlan(base, tuple(range((base or 0) + 1, version + 1)))


def load_rows(target: StoreTarget, partition: int) -> list[Rows]:
    """The rows as they are stored: whole key rows, or RocksDB's encoded keys and values."""
    files = target.directory(partition)
    if target.settings.provider is Provider.HDFS:
        return load_version(files, target.version, target.settings)
    rocks = open_rocksdb(files, target.settings)
    content = rocks.load(target.version, target.unique_id(partition))
    source = f"{files.url} at version {target.version}"
    return _rocks_rows(list(content.family(target.family)), target, source)


def load_version(files: Files, version: int, settings: StateSettings) -> list[Rows]:
    """One version of an HDFS-backed store."""
    names = {info.name for info in files.list() if not info.is_dir}
    plan = plan_files(names, version)

    def read(name: str) -> SourcedRecords:
        checksums = settings.form.checksummed
        checked = f"{name}{SUFFIX}" in names
        return read_records(
            files, name, settings.codec, row_checksums=checksums, has_checksum_file=checked
        )

    base = None if plan.snapshot is None else read(snapshot_name(plan.snapshot))
    return merge_records(base, [read(delta_name(v)) for v in plan.deltas])


def read_records(
    files: Files,
    name: str,
    codec: str,
    *,
    row_checksums: bool = False,
    has_checksum_file: bool = False,
) -> SourcedRecords:
    """The records of one delta or snapshot file, held to its checksum file if it has one."""
    source = join_url(files.url, name)
    kind = FileKind.SNAPSHOT if name.endswith(".snapshot") else FileKind.DELTA
    try:
        packed = files.read(name)
    except FileNotFoundError:
        condition = MISSING_SNAPSHOT if kind is FileKind.SNAPSHOT else MISSING_DELTA
        raise StateLoadError(source, "the file does not exist", condition) from None
    if has_checksum_file:
        verify_checksum(packed, files.read(f"{name}{SUFFIX}"), source=source)
    data = decompress_buffer(packed, codec, source=source)
    return SourcedRecords(
        scan_records(data, kind, row_checksums=row_checksums, source=source), source
    )


def open_rocksdb(files: Files, settings: StateSettings) -> RocksDirectory:
    """One partition's directory of a RocksDB-backed store."""
    from epochal.tools.read_state.rocksdb import RocksDirectory

    def inflate(data: bytes, source: str) -> bytes:
        return decompress(data, settings.codec, source=source)

    return RocksDirectory(files, inflate, settings.form)


def _rocks_rows(entries: list[tuple[bytes, bytes]], target: StoreTarget, source: str) -> list[Rows]:
    """Encoded keys without their family, and one encoded value for each; lists are unrolled."""
    from epochal.tools.read_state.rocksdb import FAMILY_BYTES

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
    keys = spans_of([key for key, _ in pairs])
    values = spans_of([value for _, value in pairs])
    return [Rows(Spans(keys.buffer, keys.starts + skip, keys.lengths - skip), values, source)]
