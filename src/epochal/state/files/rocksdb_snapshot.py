"""Reads and writes a snapshot of a RocksDB-backed store: the files of a small database.

A snapshot `N.zip` holds RocksDB's small files and an entry `metadata`. That entry lists the large
files, which are stored beside the zip because Spark's snapshots share them. RocksDB itself reads
and writes the database, through `rocksdict` (extra `rocksdb`), in a temporary directory.

Note: a snapshot that we write contains all rows in new files and shares none. Its tables have the
format that the checkpoint pins, so that the RocksDB in Spark can read them even if ours is newer.
"""

from __future__ import annotations

import io
import json
import lzma
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from epochal.errors import EpochalError, OptionError, StateError, StateFormatError
from epochal.files import Room
from epochal.state.files.rocksdb_family import FAMILY_BYTES, INTERNAL, family_prefix

CANNOT_READ_CHECKPOINT = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_CHECKPOINT"
METADATA_ENTRY = "metadata"
BROKEN_ZIP = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(KeyError, ValueError, EOFError, OSError, RuntimeError),
)
"""What `zipfile` raises for bytes that are not a zip. It does not expect hostile input."""
_PIECE_BYTES = 1 << 20
_DATABASE_FILE = re.compile(r"CURRENT|MANIFEST-\d+|OPTIONS-\d+")
_READ_FILE = re.compile(r"CURRENT|MANIFEST-\d+|\d+\.(?:log|sst)")
_OPTIONS = """[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1
[DBOptions]
[CFOptions "default"]
  merge_operator={id=StringAppendOperator;delimiter=%s;}
[TableOptions/BlockBasedTable "default"]
"""
"""The options with which a snapshot is read."""


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file of a snapshot that is stored beside the zip."""

    local_name: str
    """Its name when RocksDB opens the snapshot."""
    path: str
    """Where it is, below the store's directory."""
    size: int


@dataclass(frozen=True, slots=True)
class SnapshotMetadata:
    """The content of the `metadata` entry of a snapshot zip."""

    files: tuple[SharedFile, ...]
    families: Mapping[str, int]
    """Virtual column families and the number that prefixes their keys; empty if unused."""
    keys: int
    internal_keys: int = 0
    internal: Mapping[str, bool] = field(default_factory=dict)
    """Which families are Spark's own and not a user's."""
    highest_family: int = 0
    """The highest number that a family ever had."""


def parse_snapshot_metadata(text: str, source: str) -> SnapshotMetadata:
    head, _, body = text.partition("\n")
    if head != "v1":
        raise StateFormatError(
            source, 0, f"its metadata has version {head!r}, not v1", CANNOT_READ_CHECKPOINT
        )
    try:
        document = json.loads(body)
        files = tuple(
            SharedFile(
                _local(entry["localFileName"]),
                f"{folder}/{_flat(entry[key])}",
                _size(entry["sizeBytes"]),
            )
            for kind, key, folder in (
                ("sstFiles", "dfsSstFileName", "SSTs"),
                ("logFiles", "dfsLogFileName", "logs"),
            )
            for entry in document.get(kind) or ()
        )
        families = {str(k): int(v) for k, v in (document.get("columnFamilyMapping") or {}).items()}
        internal = document.get("columnFamilyTypeMap") or {}
        return SnapshotMetadata(
            files,
            families,
            int(document.get("numKeys", -1)),
            int(document.get("numInternalKeys") or 0),
            {str(k): bool(v) for k, v in internal.items()},
            int(document.get("maxColumnFamilyId") or 0),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateFormatError(source, 0, f"its metadata cannot be read ({error})") from None


def encode_snapshot_metadata(metadata: SnapshotMetadata) -> bytes:
    """Write the `metadata` entry of a snapshot zip whose shared files are all tables."""
    document = {
        "sstFiles": [
            {
                "localFileName": shared.local_name,
                "dfsSstFileName": shared.path.rpartition("/")[2],
                "sizeBytes": shared.size,
            }
            for shared in metadata.files
        ],
        "numKeys": metadata.keys,
        "numInternalKeys": metadata.internal_keys,
        "columnFamilyMapping": dict(metadata.families),
        "columnFamilyTypeMap": dict(metadata.internal),
        "maxColumnFamilyId": metadata.highest_family,
    }
    return f"v1\n{json.dumps(document, separators=(',', ':'))}".encode()


def _flat(name: str) -> str:
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not a valid file name")
    return name


def _local(name: str) -> str:
    if not is_read(name):
        raise ValueError(f"{name!r} is not the name of a file that RocksDB reads")
    return name


def _size(recorded: Any) -> int:
    # What a snapshot lists is bounded by the sum of its sizes, so none may lower that sum.
    if int(recorded) < 0:
        raise ValueError(f"a size cannot be {recorded}")
    return int(recorded)


def is_read(name: str) -> bool:
    """Whether RocksDB needs a file of this name to read a snapshot.

    All others stay in the archive. The options of a prepared snapshot could name directories
    elsewhere (`wal_dir`), and a configuration of `rocksdict` could have it unpickle values.
    """
    return _READ_FILE.fullmatch(name) is not None


def unpack_part(archive: zipfile.ZipFile, name: str, room: Room) -> bytes:
    """The content of one part of a snapshot zip, piece by piece, so that it never exceeds `room`.

    The sizes in a zip may be wrong, and only deflation is unpacked in bounded pieces.
    """
    info = archive.getinfo(name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is packed by method {info.compress_type}, which Spark never uses")
    content = bytearray()
    with archive.open(info) as part:
        while piece := part.read(_PIECE_BYTES):
            room.take(len(piece))
            content += piece
    return bytes(content)


def read_database(
    path: str, delimiter: bytes, source: str, room: Room, prefix: bytes = b""
) -> dict[bytes, bytes]:
    """The entries of a database whose keys begin with `prefix`.

    StorageError if there is no room for them.
    """
    rocksdict = import_rocksdict()
    # Spark joins the values of a list by this delimiter, which no file of a snapshot names.
    Path(path, "OPTIONS-000001").write_text(_OPTIONS % delimiter.decode(), encoding="utf-8")
    entries: dict[bytes, bytes] = {}
    database: Any = None
    try:
        options, _ = rocksdict.Options.load_latest(path)
        database = rocksdict.Rdict(
            path, options=options, access_type=rocksdict.AccessType.read_only()
        )
        cursor = database.iter()
        cursor.seek(prefix)
        while cursor.valid() and (key := cursor.key()).startswith(prefix):
            value = cursor.value()
            room.take(len(key) + len(value))
            entries[key] = value
            cursor.next()
        # A failing cursor just ends. Only its status shows that it did not reach the last key.
        cursor.status()
    except EpochalError:
        raise
    except Exception as error:  # noqa: BLE001 - rocksdict raises bare Exception
        raise StateFormatError(source, 0, f"RocksDB cannot read it ({error})") from None
    finally:
        if database is not None:
            database.close()
    return entries


def describe_entries(
    entries: Collection[bytes],
    families: Mapping[str, int],
    highest: int,
    recorded: Mapping[str, bool] | None = None,
) -> SnapshotMetadata:
    """What the metadata of a snapshot says about its keys and column families.

    `recorded` tells which families are internal, if that is not to be read from their names.
    """
    internal = {name: (recorded or {}).get(name, name.startswith(INTERNAL)) for name in families}
    inner = {family_prefix(number) for name, number in families.items() if internal[name]}
    internal_keys = sum(key[:FAMILY_BYTES] in inner for key in entries) if inner else 0
    keys = len(entries) - internal_keys
    return SnapshotMetadata((), dict(families), keys, internal_keys, internal, highest)


def encode_snapshot(
    name: str, entries: Iterable[tuple[bytes, bytes]], metadata: SnapshotMetadata, table_format: int
) -> dict[str, bytes]:
    """Write a database with these entries; the files of the snapshot `name` by name.

    They are to be written in this order: the last one is the zip, which makes the snapshot visible.
    `metadata` has everything except the names of the files.
    """
    with tempfile.TemporaryDirectory(prefix="epochal-rocksdb-") as scratch:
        _write_database(scratch, entries, table_format)
        paths = sorted(Path(scratch).iterdir())
        tables = [(path.name, path.read_bytes()) for path in paths if path.suffix == ".sst"]
        small = [(p.name, p.read_bytes()) for p in paths if _DATABASE_FILE.fullmatch(p.name)]
    # New names every time: a table that an older snapshot shares is never replaced.
    suffix = uuid4()
    named = tuple(
        SharedFile(table, f"SSTs/{table.removesuffix('.sst')}-{suffix}.sst", len(data))
        for table, data in tables
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, data in small:
            archive.writestr(part, data)
        archive.writestr(METADATA_ENTRY, encode_snapshot_metadata(replace(metadata, files=named)))
    shared = {file.path: data for file, (_, data) in zip(named, tables, strict=True)}
    return {**shared, name: packed.getvalue()}


def _write_database(path: str, entries: Iterable[tuple[bytes, bytes]], table_format: int) -> None:
    rocksdict = import_rocksdict()
    tables = rocksdict.BlockBasedOptions()
    tables.set_format_version(table_format)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(tables)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    # The files are copied after the database is closed, so none may be replaced meanwhile.
    options.set_disable_auto_compactions(True)
    unlogged = rocksdict.WriteOptions()
    unlogged.disable_wal = True
    try:
        database = rocksdict.Rdict(path, options)
        try:
            database.set_write_options(unlogged)
            for key, value in entries:
                database[key] = value
            database.flush()
        finally:
            database.close()
    except Exception as error:  # noqa: BLE001 - rocksdict raises bare Exception
        raise StateError(f"RocksDB cannot write a snapshot in {path} ({error}).") from None


_READING = "This state is kept by the RocksDB provider. Reading and writing its snapshots"


def import_rocksdict(what: str = _READING) -> Any:
    """The `rocksdict` module; OptionError with instructions if it is not installed."""
    try:
        import rocksdict
    except ImportError:
        raise OptionError(
            f"{what} needs the package rocksdict. Run `pip install 'epochal[rocksdb]'`."
        ) from None
    return rocksdict
