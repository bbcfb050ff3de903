"""Turns single rows of a store into the keys and values that its versions hold, and back.

An operator and an edit see rows: tuples with the columns of a key and of a value. A version holds
bytes, whose form depends on the format of the store.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol, TypeAlias

from epochal.state.files.rocksdb_family import FamilyRows, RowOrList
from epochal.state.files.rocksdb_entries import ValueForm
from epochal.state.rows.row_codec import RowCodec
from epochal.state.rows.unsafe_row import decode_row

Row: TypeAlias = tuple[Any, ...]


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
