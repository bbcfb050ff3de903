"""Finds the rows of one key: reads only its partition, and of a database only its entries."""

from __future__ import annotations

from typing import Any

from epochal.errors import StateValueError
from epochal.state.files.partitioning import place_of, placing_columns
from epochal.state.files.rocksdb_entries import VERSION_BYTE, scanned_part
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.tagged_json import json_column, json_rows, row_from_json
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import Row, encode_row
from epochal.tools.read_state.read import StoreReader
from epochal.tools.read_state.read_target import load_rows


def rows_with_key(
    reader: StoreReader, key: Any, operator_name: str | None = None
) -> list[dict[str, Any]]:
    """The rows whose key, in JSON form, is `key`. Every field must be given; null means null."""
    target = reader.target
    schema = reader.fields[0][1]
    if not isinstance(schema, StructType):
        raise StateValueError("key", "struct", "the key of this state is not a struct")
    row = row_from_json(key, schema, "key")
    encoded = encode_row(row, schema)
    placing = schema  # transformWithState places rows by the whole grouping key
    if reader.variable is None:
        placing = placing_columns(operator_name, target.family or target.store_name, schema)
    count = target.settings.partitions or len(target.partitions)
    partition = place_of(encoded, schema, placing, count)
    if partition not in target.partitions:
        return []
    wanted = _normal_form(encoded, schema)
    kinds = [kind for _, kind in reader.fields]
    return [
        shown
        for rows in load_rows(target, partition, _stored_prefix(reader, row, encoded))
        for part in json_rows(reader.decode(rows, partition), kinds)
        for shown in part
        if shown["key"] == wanted
    ]


def _stored_prefix(reader: StoreReader, row: Row, encoded: bytes) -> bytes:
    """How the stored keys of a key begin; empty if that does not follow from the key alone."""
    target = reader.target
    if not target.settings.format.is_database:
        return encoded
    if target.avro is not None:
        return b""  # such a key names the schema that it was written with
    match target.encoder.kind:
        case "plain":
            return VERSION_BYTE + encoded
        case "prefix":
            fields = target.schema.key.fields[: target.encoder.prefix_columns]
            # Maps and timers have the grouping key as the first column of their own key.
            columns = row if reader.fields[0][1] == target.schema.key else (row,)
            return scanned_part(encode_row(columns[: len(fields)], StructType(fields)))
    return b""


def _normal_form(encoded: bytes, schema: StructType) -> Any:
    """The key as readers show it, with every field."""
    from epochal.state.rows.column_decoder import decode_rows

    return json_column(decode_rows(spans_of([encoded]), schema, source="key"), schema)[0]
