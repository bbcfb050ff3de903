"""Turns the key rows of a store into RocksDB's keys and back, whole lists at a time. Pure.

A provider keeps the key as one row, whatever its files look like. Only here is it known that
RocksDB's keys start with a byte that names the encoding, and that a store that scans by prefix
splits its key into two rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from epochal.errors import StateFormatError
from epochal.record_batches import batch_of
from epochal.state.files.rocksdb_keys import ENCODING_VERSION, decode_keys
from epochal.state.files.schema_file import KeyEncoder
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.rows.types import StructType, field_names

VERSION_BYTE = bytes([ENCODING_VERSION])
_LENGTH = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class KeyForm:
    """How one store encodes its keys; `prefix_columns` is 0 for a store without prefix scans."""

    schema: StructType
    prefix_columns: int = 0

    def stored(self, rows: Sequence[bytes]) -> list[bytes]:
        """The keys of these key rows, as RocksDB stores them."""
        if not self.prefix_columns:
            return [VERSION_BYTE + row for row in rows]
        if not rows:
            return []
        columns = decode_rows(spans_of(rows), self.schema).flatten()
        first = self._encoded(columns[: self.prefix_columns], 0, len(rows))
        rest = self._encoded(columns[self.prefix_columns :], self.prefix_columns, len(rows))
        return [
            scanned_part(prefix) + VERSION_BYTE + remaining
            for prefix, remaining in zip(first, rest, strict=True)
        ]

    def rows(self, keys: Sequence[bytes], source: str) -> list[bytes]:
        """The key rows of keys that RocksDB stores."""
        if not self.prefix_columns:
            return [unversioned(key, source) for key in keys]
        if not keys:
            return []
        encoder = KeyEncoder("prefix", prefix_columns=self.prefix_columns)
        columns = decode_keys(spans_of(keys), encoder, self.schema, source)
        return encode_rows(columns, self.schema).to_list()

    def _encoded(self, columns: Sequence[pa.Array[Any]], start: int, rows: int) -> list[bytes]:
        """Encode the columns of the key from `start` on."""
        schema = StructType(self.schema.fields[start : start + len(columns)])
        batch = batch_of(columns, list(field_names(schema)), rows)
        return encode_rows(batch, schema).to_list()


def scanned_part(row: bytes) -> bytes:
    """The beginning of a key that is split into two rows, given the first."""
    return _LENGTH.pack(len(row) + 1) + VERSION_BYTE + row


def unversioned(data: bytes, source: str) -> bytes:
    """A row without the byte in front that names its encoding."""
    if data[:1] != VERSION_BYTE:
        found = f"encoding {data[0]}" if data else "no byte that names its encoding"
        raise StateFormatError(source, 0, f"a row has {found}; only encoding 0 is supported")
    return data[1:]
