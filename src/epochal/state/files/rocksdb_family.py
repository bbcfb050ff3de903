"""Encodes the rows of one column family of a RocksDB-backed store, and of the indexes on it. Pure.

transformWithState keeps all its variables in one store, each in its own family. Some families are
indexes: they repeat what another family holds in an order that Spark can scan, such as timers by
time. An index follows from the rows it is about, so nobody but this module writes one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from epochal.errors import StateFormatError
from epochal.state.files.rocksdb_key_form import VERSION_BYTE, unversioned
from epochal.state.files.rocksdb_keys import NEGATIVE, NULL, POSITIVE
from epochal.state.files.rocksdb_values import ValueForm
from epochal.state.files.schema_file import FamilySchema, KeyEncoder
from epochal.state.rows.types import AtomicType, StructField, StructType
from epochal.state.rows.unsafe_row import decode_row, encode_row

Row: TypeAlias = tuple[Any, ...]
RowOrList: TypeAlias = Any
"""A row, or a list of rows for a family of lists."""

Entry: TypeAlias = Callable[[Row, RowOrList], tuple[Row, Row]]

EMPTY_ROW: Row = (None,)
FAMILY_BYTES = 2
_LENGTH = struct.Struct("<i")
_LONG = struct.Struct(">q")
_PLAIN = KeyEncoder("plain")


@dataclass(frozen=True, slots=True)
class FamilyRows:
    """Encodes keys and values of one family, without the number of the family."""

    schema: FamilySchema
    is_list: bool = False

    @property
    def name(self) -> str:
        return self.schema.name

    def encode_key(self, key: Row) -> bytes:
        fields, encoder = self.schema.key.fields, self.schema.encoder or _PLAIN
        match encoder.kind:
            case "prefix":
                count = encoder.prefix_columns
                rest = encode_row(key[count:], StructType(fields[count:]))
                return self.encode_prefix(key[:count]) + VERSION_BYTE + rest
            case "range":
                self._check_ordering(encoder)
                first = encode_row((_ordered(key[0]),), _ORDERED)
                rest = encode_row(key[1:], StructType(fields[1:]))
            case _:
                return VERSION_BYTE + encode_row(key, self.schema.key)
        return _LENGTH.pack(len(first) + 1) + VERSION_BYTE + first + VERSION_BYTE + rest

    def encode_prefix(self, prefix: Row) -> bytes:
        """What the keys with these first columns start with, if keys are encoded by prefix."""
        fields = self.schema.key.fields[: len(prefix)]
        first = encode_row(prefix, StructType(fields))
        return _LENGTH.pack(len(first) + 1) + VERSION_BYTE + first

    def decode_key(self, data: bytes, source: str) -> Row:
        fields, encoder = self.schema.key.fields, self.schema.encoder or _PLAIN
        if encoder.kind not in ("prefix", "range"):
            return decode_row(unversioned(data, source), self.schema.key)
        size = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else -1
        if not 0 <= size <= len(data) - _LENGTH.size:
            raise StateFormatError(source, 0, "the first part of a key is longer than the key")
        first = unversioned(data[_LENGTH.size : _LENGTH.size + size], source)
        rest = unversioned(data[_LENGTH.size + size :], source)
        if encoder.kind == "prefix":
            count = encoder.prefix_columns
            head = decode_row(first, StructType(fields[:count]))
            return (*head, *decode_row(rest, StructType(fields[count:])))
        self._check_ordering(encoder)
        (number,) = decode_row(first, _ORDERED)
        return (_number(number, source), *decode_row(rest, StructType(fields[1:])))

    def encode_value(self, key: bytes, value: RowOrList, form: ValueForm) -> bytes:
        """A value, or a whole list. `key` is the complete key, which checksums cover."""
        if self.is_list:
            rows = (VERSION_BYTE + encode_row(each, self.schema.value) for each in value)
            return form.joined(key, rows)
        return form.record(key, VERSION_BYTE + encode_row(value, self.schema.value))[1] or b""

    def decode_value(self, key: bytes, data: bytes, form: ValueForm, source: str) -> RowOrList:
        schema = self.schema.value
        if self.is_list:
            found = form.several(key, data, source)
            return [decode_row(unversioned(each, source), schema) for each in found]
        return decode_row(unversioned(form.single(key, data, source), source), schema)

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
    entry: Entry
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
        """The names of this family and of its indexes."""
        yield self.name
        for index in self.indexes:
            yield index.rows.name

    def changes(
        self,
        puts: Iterable[tuple[Row, RowOrList]],
        removes: Iterable[Row],
        number_of: Callable[[str], int],
        get: Callable[[bytes], bytes | None],
        form: ValueForm,
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """The entries that change, with None for one that is removed; earlier ones come first.

        `number_of` gives the number of a family, `get` the present value of an entry.
        """
        number = family_prefix(number_of(self.name))
        numbers = [family_prefix(number_of(index.rows.name)) for index in self.indexes]
        indexes = list(zip(self.indexes, numbers, strict=True))
        changed: list[tuple[Row, RowOrList | None]] = [*((key, None) for key in removes), *puts]
        for key, value in changed:
            at = number + self.rows.encode_key(key)
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


def family_prefix(number: int) -> bytes:
    """What the keys of a family start with."""
    return number.to_bytes(FAMILY_BYTES, "little")


_ORDERED = StructType((StructField("ordered", AtomicType("binary")),))


def _ordered(number: int | None) -> bytes:
    """A long in the form that sorts by its bytes."""
    if number is None:
        return bytes([NULL]) + bytes(_LONG.size)
    return bytes([NEGATIVE if number < 0 else POSITIVE]) + _LONG.pack(number)


def _number(data: bytes, source: str) -> int | None:
    if len(data) != _LONG.size + 1 or data[0] > NULL:
        raise StateFormatError(source, 0, "a time in a key is not nine bytes")
    return None if data[0] == NULL else int(_LONG.unpack(data[1:])[0])
