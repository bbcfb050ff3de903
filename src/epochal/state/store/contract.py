"""What the formats of stored state are asked, and what they answer.

One version of a store is in files that do not describe themselves: codec and checksums are in the
offset log, unique ids in the commit log, and the schema beside the state. All of it comes with the
question.

An operator and an edit see rows: tuples with the columns of a key and of a value. A version holds
bytes, whose form depends on the format of the store: `RowForm`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from epochal.files import Files
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_avro import AvroForm
from epochal.state.files.rocksdb_changelog import LineageItem
from epochal.state.files.rocksdb_entries import ValueWrapper
from epochal.state.files.rocksdb_family import FamilyRows, Row, RowOrList
from epochal.state.rows.byte_spans import Flags
from epochal.state.rows.row_codec import RowCodec
from epochal.state.rows.unsafe_row import decode_row

if TYPE_CHECKING:
    from epochal.state.store.hdfs_versions import HdfsContent, HdfsVersions
    from epochal.state.store.rocksdb_directory import RocksContent
    from epochal.state.store.rocksdb_versions import RocksVersions

Edit: TypeAlias = tuple[Row, RowOrList | None]
"""A key, and its new value or None."""


@dataclass(frozen=True, slots=True)
class FileSettings:
    """The facts about the files of a store that only the offset log records."""

    codec: str
    form: ValueWrapper = field(default_factory=ValueWrapper)


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One version of the store in a directory."""

    files: Files
    version: int
    unique_id: str
    """The id in the names of its files; empty if names have none."""
    settings: FileSettings

    @property
    def item(self) -> LineageItem:
        """How a lineage names it."""
        return LineageItem(self.version, self.unique_id)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of a database to read. A store of plain rows is always read as a whole."""

    family: str | None = None
    has_lists: bool = False
    """Whether a key can have several values, joined by the merge operator."""
    avro: AvroForm | None = None
    prefix: bytes = b""
    """How the keys begin."""


@dataclass(frozen=True, slots=True, eq=False)
class ChangedRows:
    """The records of one version, in the order in which they were written."""

    version: int
    rows: Rows
    """A record without a value has an empty one."""
    deleted: Flags
    names: list[str]
    """`update`, `delete` or `append`."""


@dataclass(frozen=True, slots=True)
class CarriedVersion:
    """A version that later ones repeat, because nothing changed in them."""

    item: LineageItem
    snapshot: str | None = None
    """The snapshot to copy; None if each version gets a file without changes."""
    layout: int = 0
    lineage: tuple[LineageItem, ...] = ()


class PlainForm:
    """Rows as they are, without a byte around them. Errors about bad ones name `source`."""

    start = b""
    """What all keys start with."""

    def __init__(self, codec: RowCodec, source: str = "state row") -> None:
        self.key, self.prefix = codec.encode_key, codec.encode_prefix
        self.decode_key = partial(decode_row, schema=codec.key_schema, source=source)
        self._encode_value = codec.encode_value
        self._decode_value = partial(decode_row, schema=codec.value_schema, source=source)

    def encode_value(self, key: bytes, value: RowOrList) -> bytes:
        return self._encode_value(value)

    def decode_value(self, key: bytes, value: bytes) -> RowOrList:
        return self._decode_value(value)


class FamilyForm:
    """Entries of a database: `start` is what the keys of the column family start with."""

    def __init__(self, start: bytes, rows: FamilyRows, form: ValueWrapper, source: str) -> None:
        self.start = start
        self._rows, self._form, self._source = rows, form, source

    def key(self, key: Row) -> bytes:
        return self.start + self._rows.encode_key(key)

    def prefix(self, prefix: Row) -> bytes:
        """What a table is scanned by for the keys that start with these columns."""
        return self.start + self._rows.encode_prefix(prefix)

    def decode_key(self, key: bytes) -> Row:
        return self._rows.decode_key(key[len(self.start) :], self._source)

    def encode_value(self, key: bytes, value: RowOrList) -> bytes:
        """A value, or a whole list, under an encoded key."""
        return self._rows.encode_value(key, value, self._form)

    def decode_value(self, key: bytes, value: bytes) -> RowOrList:
        return self._rows.decode_value(key, value, self._form, self._source)


RowForm: TypeAlias = PlainForm | FamilyForm
"""How the rows of a store, or of one column family, are encoded in its versions."""
StoreContent: TypeAlias = "HdfsContent | RocksContent"
"""Everything in one version of a store, in its stored form."""
VersionFiles: TypeAlias = "HdfsVersions | RocksVersions"
"""Reads and writes whole versions of stores of one format."""
