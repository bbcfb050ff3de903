"""Encodes the rows of one column family of a RocksDB-backed store, and of the indexes on it. Pure.

transformWithState keeps all its variables in one store, each in its own family. Some families are
indexes: they repeat what another family holds in an order that Spark can scan, such as timers by
time. An index follows from the rows it is about, so nobody but this module writes one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from epochal.errors import StateFormatError
from epochal.state.files.rocksdb_avro import AvroForm
from epochal.state.files.rocksdb_entries import (
    NULL,
    VERSION_BYTE,
    ValueWrapper,
    ordered_long,
    scanned_part,
    split_key,
    unversioned,
)
from epochal.state.files.schema_file import FamilySchema, KeyEncoder
from epochal.state.rows.row_codec import encode_tuples
from epochal.state.rows.types import AtomicType, StructField, StructType
from epochal.state.rows.unsafe_row import decode_row, encode_row

Row: TypeAlias = tuple[Any, ...]
RowOrList: TypeAlias = Any
"""A row, or a list of rows for a family of lists."""

IndexEntry: TypeAlias = Callable[[Row, RowOrList], tuple[Row, Row]]

EMPTY_ROW: Row = (None,)
FAMILY_BYTES = 2
INTERNAL = "$"
"""What the names of families start with that belong to Spark and not to the user."""
_LONG = struct.Struct(">q")
_PLAIN = KeyEncoder("plain")
_BY_OWNER, _BY_TIME = "_keyToTimestamp", "_timestampToKey"
_INDEXES = ("$ttl_", "$min_", "$count_", "$rowCounter_")


@dataclass(frozen=True, slots=True)
class FamilyRows:
    """Encodes keys and values of one family, without the number of the family."""

    schema: FamilySchema
    is_list: bool = False
    avro: AvroForm | None = None
    """How to encode the rows, if they are stored as Avro and not as UnsafeRows."""

    @property
    def name(self) -> str:
        return self.schema.name

    def encode_key(self, key: Row) -> bytes:
        if self.avro is not None:
            return self.avro.stored_key(key)
        fields, encoder = self.schema.key.fields, self.schema.encoder or _PLAIN
        match encoder.kind:
            case "prefix":
                count = encoder.prefix_columns
                rest = encode_row(key[count:], StructType(fields[count:]))
                return self.encode_prefix(key[:count]) + VERSION_BYTE + rest
            case "range":
                self._check_ordering(encoder)
                first = encode_row((ordered_long(key[0]),), _ORDERED)
                rest = encode_row(key[1:], StructType(fields[1:]))
            case _:
                return VERSION_BYTE + encode_row(key, self.schema.key)
        return scanned_part(first) + VERSION_BYTE + rest

    @property
    def is_plain(self) -> bool:
        """Whether each key and each value is one UnsafeRow."""
        encoder = self.schema.encoder or _PLAIN
        return not self.is_list and self.avro is None and encoder.kind not in ("prefix", "range")

    def encode_prefix(self, prefix: Row) -> bytes:
        """What the keys with these first columns start with, if keys are encoded by prefix."""
        fields = self.schema.key.fields[: len(prefix)]
        return scanned_part(encode_row(prefix, StructType(fields)))

    def decode_key(self, data: bytes, source: str) -> Row:
        if self.avro is not None:
            data = self.avro.plain_key(data, source)
        fields, encoder = self.schema.key.fields, self.schema.encoder or _PLAIN
        if encoder.kind not in ("prefix", "range"):
            return decode_row(unversioned(data, source), self.schema.key)
        first, rest = split_key(data, source)
        first, rest = unversioned(first, source), unversioned(rest, source)
        if encoder.kind == "prefix":
            count = encoder.prefix_columns
            head = decode_row(first, StructType(fields[:count]))
            return (*head, *decode_row(rest, StructType(fields[count:])))
        self._check_ordering(encoder)
        (number,) = decode_row(first, _ORDERED)
        return (_number(number, source), *decode_row(rest, StructType(fields[1:])))

    def encode_value(self, key: bytes, value: RowOrList, form: ValueWrapper) -> bytes:
        """A value, or a whole list. `key` is the complete key, which checksums cover."""
        if self.is_list:
            return form.joined(key, map(self._stored, value))
        return form.record(key, self._stored(value))[1] or b""

    def decode_value(self, key: bytes, data: bytes, form: ValueWrapper, source: str) -> RowOrList:
        if self.is_list:
            return [self._row(row, source) for row in form.several(key, data, source)]
        return self._row(form.single(key, data, source), source)

    def _stored(self, row: Row) -> bytes:
        if self.avro is not None:
            return self.avro.stored_value(row)
        return VERSION_BYTE + encode_row(row, self.schema.value)

    def _row(self, data: bytes, source: str) -> Row:
        if self.avro is not None:
            data = self.avro.plain_value(data, source)
        return decode_row(unversioned(data, source), self.schema.value)

    def _check_ordering(self, encoder: KeyEncoder) -> None:
        first = self.schema.key.fields[0].data_type
        if encoder.ordering != (0,) or first != AtomicType("long"):
            raise StateFormatError(
                self.name, 0, f"its keys are ordered by the columns {encoder.ordering}, not by time"
            )


@dataclass(frozen=True, slots=True)
class Index:
    """A family whose rows follow from those of another."""

    rows: FamilyRows
    entry: IndexEntry
    """Key and value of the index for a key and a value of the other family."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family that an operator reads and writes, and the indexes on it."""

    rows: FamilyRows
    indexes: tuple[Index, ...] = ()
    unused: tuple[FamilySchema, ...] = ()
    """Families that Spark declares in the schema file but does not create."""

    @property
    def name(self) -> str:
        return self.rows.name

    @property
    def schemas(self) -> Iterator[FamilySchema]:
        """What the schema file says about this family and its indexes."""
        yield self.rows.schema
        for index in self.indexes:
            yield index.rows.schema
        yield from self.unused

    @property
    def names(self) -> Iterator[str]:
        yield self.name
        for index in self.indexes:
            yield index.rows.name

    def changes(
        self,
        puts: Sequence[tuple[Row, RowOrList]],
        removes: Iterable[Row],
        prefix_of: Callable[[str], bytes],
        get: Callable[[bytes], bytes | None],
        form: ValueWrapper,
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """The entries that change, with None for one that is removed; earlier ones come first.

        `prefix_of` gives what the keys of a family start with, `get` the present value of an entry.
        """
        start = prefix_of(self.name)
        indexes = [(index, prefix_of(index.rows.name)) for index in self.indexes]
        if puts and not indexes and self.rows.is_plain:
            yield from ((start + self.rows.encode_key(key), None) for key in removes)
            keys, values = zip(*puts, strict=True)
            stored = encode_tuples(values, self.rows.schema.value)
            start += VERSION_BYTE
            for row, data in zip(encode_tuples(keys, self.rows.schema.key), stored, strict=True):
                at = start + row
                yield at, form.record(at, VERSION_BYTE + data)[1] or b""
            return
        changed: list[tuple[Row, RowOrList | None]] = [*((key, None) for key in removes), *puts]
        for key, value in changed:
            at = start + self.rows.encode_key(key)
            old = get(at) if indexes else None
            if old is not None:
                before = self.rows.decode_value(at, old, form, self.name)
                for index, prefix in indexes:
                    yield prefix + index.rows.encode_key(index.entry(key, before)[0]), None
            if value is None:
                yield at, None
                continue
            yield at, self.rows.encode_value(at, value, form)
            for index, prefix in indexes:
                index_key, index_value = index.entry(key, value)
                index_at = prefix + index.rows.encode_key(index_key)
                yield index_at, index.rows.encode_value(index_at, index_value, form)


def indexed_family(name: str) -> str | None:
    """The family that an index is about; None for a family that is no index."""
    if not name.startswith(INTERNAL):
        return None
    if name.endswith(_BY_TIME):
        return name.removesuffix(_BY_TIME) + _BY_OWNER
    return next((name.removeprefix(start) for start in _INDEXES if name.startswith(start)), None)


def index_entry(name: str, *, is_list: bool) -> IndexEntry:
    """How the rows of an index follow from those of the family that it is about."""
    if name.endswith(_BY_TIME):
        return _reversed
    if name.startswith("$ttl_"):
        return _expiry_of_list if is_list else _expiry_of_value
    return _earliest if name.startswith("$min_") else _count


def families_of(
    schemas: Mapping[str, FamilySchema],
    lists: Collection[str],
    there: Collection[str],
    avro: Mapping[str, AvroForm],
) -> dict[str, Family]:
    """The families of a store by name, with those of their indexes that are `there`.

    `lists` are the families of lists, and `avro` has those whose rows are stored as Avro. Spark
    declares some indexes that it does not create.
    """
    families: dict[str, Family] = {}
    for name, schema in schemas.items():
        if indexed_family(name) is not None:
            continue
        is_list = name in lists
        indexes = tuple(
            Index(FamilyRows(own, avro=avro.get(index)), index_entry(index, is_list=is_list))
            for index, own in schemas.items()
            if indexed_family(index) == name and index in there
        )
        families[name] = Family(FamilyRows(schema, is_list, avro.get(name)), indexes)
    return families


def _count(key: Row, value: RowOrList) -> tuple[Row, Row]:
    return key, (len(value),)


def _expiry_of_value(key: Row, value: RowOrList) -> tuple[Row, Row]:
    return (value[1], key), EMPTY_ROW


def _expiry_of_list(key: Row, value: RowOrList) -> tuple[Row, Row]:
    return (min(expires for _, expires in value), key), EMPTY_ROW


def _earliest(key: Row, value: RowOrList) -> tuple[Row, Row]:
    return key, (min(expires for _, expires in value),)


def _reversed(key: Row, value: RowOrList) -> tuple[Row, Row]:
    return (key[1], key[0]), EMPTY_ROW


def family_prefix(number: int) -> bytes:
    return number.to_bytes(FAMILY_BYTES, "little")


_ORDERED = StructType((StructField("ordered", AtomicType("binary")),))


def _number(data: bytes, source: str) -> int | None:
    if len(data) != _LONG.size + 1 or data[0] > NULL:
        raise StateFormatError(source, 0, "a time in a key is not nine bytes")
    return None if data[0] == NULL else int(_LONG.unpack(data[1:])[0])
