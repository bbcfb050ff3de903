"""Reads and writes the delta and snapshot files of one store. It makes no decisions.

Every row that is read is checked against the schema; Spark checks only the first. So a file that
was written for another schema is refused instead of being read as garbage. Before a file is
replaced, the visible checksum file that Spark 4.1 may have written beside it is deleted: Spark 4.1
refuses a file with a stale checksum, and accepts one without.

Such a `<name>.crc` is one line of JSON: the CRC-32C of the whole state file as a signed number, and
the state file's size. (Hadoop's hidden `.<name>.crc` files are something else.)

An engine that decides an epoch after its state is durable first writes the state under a name that
contains the attempt. Once the epoch is decided, it publishes the state under Spark's plain name. So
a reader of plain names never sees an undecided version, and a task that outlived its attempt never
overwrites a decided one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import google_crc32c

from epochal.errors import OptionError, StateFormatError, StateLoadError
from epochal.files import AtomicFile, FileInfo, Files, join_url
from epochal.state.files.chain import (
    HDFS_FILES,
    MISSING_DELTA,
    MISSING_SNAPSHOT,
    FileNames,
    checksum_name,
    id_of_prepared,
    kinds_of_prepared,
    prepared_label,
    published_name,
)
from epochal.state.files.codecs import (
    compress,
    compress_pieces,
    decompress_buffer,
    decompress_pieces,
)
from epochal.state.files.delta_snapshot import (
    FileKind,
    Records,
    encode_pieces,
    encode_records,
    scan_parts,
    scan_records,
)
from epochal.state.rows.byte_spans import Spans
from epochal.state.rows.column_decoder import validate_rows
from epochal.state.rows.row_codec import RowCodec
from epochal.state.rows.unsafe_row import validate_row
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.versions import Draft, FrozenVersion, MakeVersion, RowChange

MISMATCH = "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"
_ATTEMPT = re.compile(r"[A-Za-z0-9_-]+")
_LISTED_AT_ONCE = 1 << 13
_WORTH_A_BATCH = 64
"""Below this many rows, validating one at a time is faster."""


class FileChecksum(NamedTuple):
    """The content of a checksum file."""

    value: int
    """CRC-32C as Java's signed int."""
    size: int


def checksum_of(data: bytes) -> FileChecksum:
    """The checksum and size of a state file's content."""
    value = google_crc32c.value(data)
    return FileChecksum(value - (1 << 32) if value >> 31 else value, len(data))


def parse_checksum_file(content: bytes, *, source: str = "checksum file") -> FileChecksum:
    """Read a checksum file; StateFormatError if it is malformed or its algorithm is unknown."""
    try:
        match json.loads(content):
            case {"algorithm": "CRC32C", "value": int(value), "mainFileSize": int(size)}:
                return FileChecksum(value, size)
    except (ValueError, RecursionError):
        pass
    raise StateFormatError(source, 0, f"{content[:80]!r} is not a CRC32C checksum", MISMATCH)


def verify_checksum(data: bytes, content: bytes, *, source: str = "state file") -> None:
    """Raise StateFormatError unless the state file is the one the checksum file describes."""
    expected, actual = parse_checksum_file(content, source=checksum_name(source)), checksum_of(data)
    if expected != actual:
        raise StateFormatError(
            source,
            0,
            f"its checksum file expects {expected.size} bytes with CRC32C {expected.value}, but it "
            f"has {actual.size} bytes with {actual.value}",
            MISMATCH,
        )


def read_checked(files: Files, name: str, there: Collection[str]) -> bytes:
    """Read a state file, and verify it by its checksum file if that is among `there`."""
    data = files.read(name, large=True)
    if checksum_name(name) in there:
        # A writer that replaces the file deletes its checksum first. So a checksum file that has
        # disappeared since the listing means nothing.
        with suppress(FileNotFoundError):
            expected = files.read(checksum_name(name))
            verify_checksum(data, expected, source=join_url(files.url, name))
    return data


@dataclass(frozen=True, slots=True)
class PreparedVersion:
    """The file of an undecided version, and the CRC-32C of its content."""

    version: int
    name: str
    checksum: int


@dataclass(frozen=True, slots=True, eq=False)
class EncodedVersion:
    """A version and the file that makes it from the one before: a delta or a whole snapshot."""

    name: str
    """The name that Spark gives to the file."""
    data: bytes
    rows: FrozenVersion
    is_snapshot: bool = False


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """The directory of one store, and how to read its files."""

    files: Files
    codec: RowCodec
    conf: StateStoreConf
    store: str
    """The store's name in messages."""

    @property
    def kinds(self) -> FileNames:
        return HDFS_FILES

    def open_version(self, version: int, unique_id: str) -> None:
        """Note which files make `version`. Only files with unique ids need that."""

    def open_prepared(self, prepared: PreparedVersion, data: bytes) -> None:
        """Note which files come before a prepared version, given its content."""

    def names(self) -> list[str]:
        """The names of the store's files, without hidden ones."""
        return [info.name for info in self.files.list() if not info.is_dir and not info.hidden]

    def delta_info(self, version: int) -> FileInfo | None:
        """Size and time of a delta; they change when the delta is written again."""
        return self.files.info(self.kinds.delta_name(version))

    def read_snapshot(self, version: int, there: Collection[str] = ()) -> dict[bytes, bytes]:
        """All rows of a snapshot. Verifies its checksum file if that is among `there`."""
        rows: dict[bytes, bytes] = {}
        for part in self.snapshot_parts(version, there):
            rows.update(part)
        return rows

    def snapshot_parts(
        self, version: int, there: Collection[str] = ()
    ) -> Iterator[Iterable[tuple[bytes, bytes]]]:
        """The rows of a snapshot, some thousand at a time."""
        name = self.kinds.snapshot_name(version)
        source = join_url(self.files.url, name)
        try:
            data = read_checked(self.files, name, there)
        except FileNotFoundError:
            reason = f"snapshot {source} does not exist"
            raise StateLoadError(self.store, reason, MISSING_SNAPSHOT) from None
        pieces = decompress_pieces(data, self.conf.compression_codec, source=source)
        for records in scan_parts(
            pieces, FileKind.SNAPSHOT, row_checksums=self.conf.row_checksum_enabled, source=source
        ):
            self._validate(records, source)
            for part in _parts(records):
                yield zip(part.keys.to_list(), part.values.to_list(), strict=True)

    def apply_delta(self, version: int, draft: Draft, there: Collection[str] = ()) -> None:
        """Apply a delta to a draft. Verifies its checksum file if that is among `there`."""
        name = self.kinds.delta_name(version)
        try:
            data = read_checked(self.files, name, there)
        except FileNotFoundError:
            reason = f"delta {join_url(self.files.url, name)} does not exist"
            raise StateLoadError(self.store, reason, MISSING_DELTA) from None
        self.apply_bytes(data, name, draft)

    def apply_bytes(self, data: bytes, name: str, draft: Draft) -> None:
        source, changes = join_url(self.files.url, name), draft.changes
        raw = decompress_buffer(data, self.conf.compression_codec, source=source)
        checksums = self.conf.row_checksum_enabled
        records = scan_records(raw, FileKind.DELTA, row_checksums=checksums, source=source)
        self._validate(records, source)
        for part in _parts(records):
            keys, values = part.keys.to_list(), part.values.to_list()
            if not part.deleted.any():
                changes.update(zip(keys, values, strict=True))
                continue
            for key, value, gone in zip(keys, values, part.deleted.tolist(), strict=True):
                changes[key] = None if gone else value

    def advance(
        self, draft: Draft, version: int, name: str, data: bytes, make: MakeVersion
    ) -> Draft:
        """Apply the next version to a draft, given the name and content of its file.

        `make` makes a version of the rows of a whole snapshot.
        """
        self.apply_bytes(data, name, draft)
        return draft

    def encode_delta(self, version: int, changes: Iterable[RowChange]) -> bytes:
        raw = encode_records(changes, row_checksums=self.conf.row_checksum_enabled)
        return compress(raw, self.conf.compression_codec)

    def start_delta(self, version: int) -> AtomicFile:
        """Open a delta for writing; closing it publishes it and replaces an existing one."""
        return self.files.create_atomic(self.kinds.delta_name(version), overwrite=True)

    def drop_checksum(self, name: str) -> None:
        """Delete the visible checksum of a file that is about to be replaced."""
        self.files.delete(checksum_name(name))

    def stage_snapshot(
        self, version: int, rows: Iterable[tuple[bytes, bytes]]
    ) -> Sequence[tuple[str, AtomicFile]]:
        """Write the files of a snapshot, by name, without making them visible."""
        pieces = encode_pieces(rows, row_checksums=self.conf.row_checksum_enabled)
        name = self.kinds.snapshot_name(version)
        return stage(self.files, name, compress_pieces(pieces, self.conf.compression_codec))

    def publish_snapshot(self, staged: Iterable[tuple[str, AtomicFile]]) -> None:
        """Make the files of a snapshot visible, replacing an existing one."""
        for name, file in staged:
            self.drop_checksum(name)
            file.close()

    def delete_old(self, names: Iterable[str]) -> None:
        for name in names:
            self.files.delete(name)

    def _validate(self, records: Records, source: str) -> None:
        if self.conf.format_validation_enabled:
            self.validate(records.keys, records.values.take(~records.deleted), source)

    def validate(self, keys: Spans, values: Spans, source: str) -> None:
        for what, rows, schema in (
            ("KEY", keys, self.codec.key_schema),
            ("VALUE", values, self.codec.value_schema),
        ):
            try:
                if len(rows) < _WORTH_A_BATCH:
                    for row in rows:
                        validate_row(row, schema, source=source)
                else:
                    validate_rows(rows, schema, source=source)
            except StateFormatError as error:
                condition = f"CANNOT_LOAD_STATE_STORE.{what}_ROW_FORMAT_VALIDATION_FAILURE"
                raise StateFormatError(
                    error.source, error.offset, error.reason, condition
                ) from None


def stage(files: Files, name: str, pieces: Iterable[bytes]) -> list[tuple[str, AtomicFile]]:
    file = files.create_atomic(name, overwrite=True)
    try:
        for piece in pieces:
            file.write(piece)
    except BaseException:
        file.cancel()
        raise
    return [(name, file)]


def cancel(staged: Iterable[tuple[str, AtomicFile]]) -> None:
    for _, file in staged:
        file.cancel()


def _parts(records: Records) -> Iterator[Records]:
    """The records in parts: lists of all rows at once would double the memory of the map."""
    for start in range(0, len(records), _LISTED_AT_ONCE):
        yield records.slice(start, start + _LISTED_AT_ONCE)


def write_prepared(
    files: Files,
    version: int,
    attempt: str,
    data: bytes,
    kinds: FileNames = HDFS_FILES,
    *,
    is_snapshot: bool = False,
) -> PreparedVersion:
    """Write a delta, or a snapshot in its place, under a name that contains the attempt."""
    if not _ATTEMPT.fullmatch(attempt):
        raise OptionError(
            f"The attempt {attempt!r} becomes part of a file name: use only letters, digits, - "
            f"and _."
        )
    plain = kinds.snapshot_name if is_snapshot else kinds.delta_name
    name = f"{plain(version)}{prepared_label(attempt)}"
    files.replace(name, data)
    return PreparedVersion(version, name, google_crc32c.value(data))


def read_prepared(files: Files, prepared: PreparedVersion, store: str) -> bytes:
    """The delta that was prepared, from its own name or, if already published, the plain one.

    Its checksum must match, so a delta of another attempt is never returned.
    """
    for name in (prepared.name, published_name(prepared.name)):
        try:
            data = files.read(name, large=True)
        except FileNotFoundError:
            continue
        if google_crc32c.value(data) == prepared.checksum:
            return data
        if name == prepared.name:
            raise StateFormatError(
                join_url(files.url, name), 0, "its checksum is not that of the prepared version"
            )
    raise StateLoadError(
        store, f"prepared delta {join_url(files.url, prepared.name)} does not exist", MISSING_DELTA
    )


def publish_prepared(files: Files, prepared: PreparedVersion, store: str) -> None:
    """Give a prepared version Spark's plain name. Safe to repeat, also after a crash."""
    data = read_prepared(files, prepared, store)
    if files.info(prepared.name) is None:
        return  # deleting that name is the last step, so all others are done
    kinds, name = kinds_of_prepared(prepared.name), published_name(prepared.name)
    if not id_of_prepared(prepared.name):
        # Another file of this version can only come from an undecided history. Loaders would prefer
        # a snapshot to the delta, so it is deleted first. The same holds for checksums of former
        # files. Under a unique id there is no other file.
        both = {kinds.snapshot_name(prepared.version), kinds.delta_name(prepared.version)}
        for stale in (*sorted(both - {name}), *map(checksum_name, sorted(both, reverse=True))):
            files.delete(stale)
    files.replace(name, data)
    files.delete(prepared.name)
