"""The contract of the formats: what they are asked about stored state, and what they answer.

One version of a store is in files that do not describe themselves: codec and checksums are in the
offset log, unique ids in the commit log, and the schema beside the state. All of it comes with the
question.

An operator and an edit see rows: tuples with the columns of a key and of a value. A version holds
bytes, whose form depends on the format of the store: `RowForm`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from epochal.files import Files
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_avro import AvroForm
from epochal.state.files.rocksdb_changelog import LineageItem
from epochal.state.files.rocksdb_family import Family, FamilyRows, Row, RowOrList
from epochal.state.files.rocksdb_entries import ValueForm
from epochal.state.files.schema_file import KeyEncoder
from epochal.state.rows.byte_spans import Flags, Spans
from epochal.state.rows.row_codec import RowCodec
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import decode_row

if TYPE_CHECKING:
    import pyarrow as pa

Edit: TypeAlias = tuple[Row, RowOrList | None]
"""A key, and its new value or None."""


@dataclass(frozen=True, slots=True)
class FileSettings:
    """The facts about the files of a store that only the offset log records."""

    codec: str
    form: ValueForm = field(default_factory=ValueForm)


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


class RowForm(Protocol):
    """How the rows of a store, or of one column family, are encoded in its versions."""

    @property
    def start(self) -> bytes:
        """What all keys start with."""
        ...

    def key(self, key: Row) -> bytes: ...

    def prefix(self, prefix: Row) -> bytes:
        """What a table is scanned by for the keys that start with these columns."""
        ...

    def decode_key(self, key: bytes) -> Row: ...

    def encode_value(self, key: bytes, value: RowOrList) -> bytes:
        """A value, or a whole list, under an encoded key."""
        ...

    def decode_value(self, key: bytes, value: bytes) -> RowOrList: ...


class PlainForm:
    """Rows as they are, without a byte around them. Errors about bad ones name `source`."""

    start = b""

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

    def __init__(self, start: bytes, rows: FamilyRows, form: ValueForm, source: str) -> None:
        self.start = start
        self._rows, self._form, self._source = rows, form, source

    def key(self, key: Row) -> bytes:
        return self.start + self._rows.encode_key(key)

    def prefix(self, prefix: Row) -> bytes:
        return self.start + self._rows.encode_prefix(prefix)

    def decode_key(self, key: bytes) -> Row:
        return self._rows.decode_key(key[len(self.start) :], self._source)

    def encode_value(self, key: bytes, value: RowOrList) -> bytes:
        return self._rows.encode_value(key, value, self._form)

    def decode_value(self, key: bytes, value: bytes) -> RowOrList:
        return self._rows.decode_value(key, value, self._form, self._source)


class StoreContent(Protocol):
    """Everything in one version of a store, in its stored form."""

    @property
    def families(self) -> Mapping[str, int]:
        """The number of each column family; empty in a store without families."""
        ...

    @property
    def highest_family(self) -> int:
        """The highest number that a family ever had."""
        ...

    def __len__(self) -> int: ...

    def parts(self, family: str | None, source: str) -> Sequence[Rows]:
        """The rows of one family. `source` is for messages, if the content does not know better."""
        ...

    def find(self, keys: Collection[bytes], source: str) -> Iterator[tuple[bytes, bytes, str]]:
        """Those of the keys that exist, with their value and source."""
        ...

    def with_rows(self, parts: Sequence[Rows], highest_family: int = 0) -> StoreContent:
        """Other rows, in place of all that are there."""
        ...

    def rewritten(self, parts: Sequence[Rows]) -> StoreContent:
        """The same keys with other values, for all rows of one family."""
        ...

    def changes(
        self, family: Family, edits: Sequence[Edit], form: ValueForm
    ) -> Iterable[tuple[bytes, bytes | None]]:
        """The records that make these edits of one family, and of the indexes on it."""
        ...

    def encode(
        self, item: LineageItem, settings: FileSettings, table_format: int
    ) -> dict[str, bytes]:
        """The files of a snapshot with this content, by name."""
        ...

    def encode_changes(
        self,
        changes: Iterable[tuple[bytes, bytes | None]],
        item: LineageItem,
        lineage: Sequence[LineageItem] | None,
        settings: FileSettings,
    ) -> tuple[str, bytes]:
        """Name and content of the file with the changes that make the next version."""
        ...


class VersionFiles(Protocol):
    """Reads and writes whole versions of stores of one format."""

    @property
    def empty(self) -> StoreContent:
        """The content of a store without rows and families."""
        ...

    def file_names(self, stored: StoredVersion, names: Collection[str]) -> list[str]:
        """The files that make a version, the oldest first, given the names in the directory."""
        ...

    def shared_files(self, stored: StoredVersion, name: str) -> list[str]:
        """What one of `file_names` consists of besides itself."""
        ...

    def read_rows(self, stored: StoredVersion, wanted: Selection) -> list[Rows]:
        """Rows of a version in their stored form, but without the number of their family."""
        ...

    def read_changes(
        self, stored: StoredVersion, first: int, wanted: Selection
    ) -> Iterator[ChangedRows]:
        """What the versions from `first` on changed."""
        ...

    def read_content(self, stored: StoredVersion) -> StoreContent:
        """Everything in a version, to be edited."""
        ...

    def key_columns(
        self, keys: Spans, encoder: KeyEncoder, schema: StructType, source: str
    ) -> pa.StructArray:
        """Decode stored keys."""
        ...

    def unwrap(self, rows: Spans, source: str) -> Spans:
        """The UnsafeRows in stored values, and in stored keys that are not split."""
        ...

    def row_form(self, start: bytes, rows: FamilyRows, form: ValueForm, source: str) -> RowForm:
        """How single rows are encoded. `start` is what the keys of the family start with."""
        ...

    def carried_version(self, stored: StoredVersion, names: Collection[str]) -> CarriedVersion:
        """What later versions without changes are made of, given the names in the directory."""
        ...

    def next_carried(
        self, carried: CarriedVersion, item: LineageItem, codec: str
    ) -> tuple[str, bytes | None, CarriedVersion]:
        """Name and content of the next version's file; None for a copy of the snapshot."""
        ...

    def first_files(
        self, parts: Sequence[Rows], version: int, settings: FileSettings
    ) -> dict[str, bytes]:
        """The files of a store that has these UnsafeRows from `version` on, and none before."""
        ...
