"""Finds the rows of one key. In an HDFS-backed store this reads only the key's partition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.errors import StateValueError
from epochal.state.files.partitioning import place_of, placing_columns
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.tagged_json import json_column, row_from_json
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import encode_row
from epochal.tools.read_state.export import json_batches
from epochal.tools.read_state.raw_rows import load_stored
from epochal.tools.read_state.read import StateReader, StoreReader
from epochal.tools.read_state.read_target import Provider


def rows_with_key(
    reader: StateReader, key: Any, operator_name: str | None = None
) -> list[dict[str, Any]]:
    """The rows whose key, in JSON form, is `key`. Every field must be given; null means null."""
    schema = reader.fields[0][1]
    if not isinstance(schema, StructType):
        raise StateValueError("key", "struct", "the key of this state is not a struct")
    encoded = encode_row(row_from_json(key, schema, "key"), schema)
    if isinstance(reader, StoreReader) and reader.target.settings.provider is Provider.HDFS:
        return _in_its_partition(reader, encoded, operator_name)
    wanted = _normal_form(encoded, schema)
    return [row for rows in json_batches(reader) for row in rows if row["key"] == wanted]


def _in_its_partition(
    reader: StoreReader, encoded: bytes, operator_name: str | None
) -> list[dict[str, Any]]:
    target = reader.target
    schema = target.schema.key
    placing = placing_columns(operator_name, target.store_name, schema)
    count = target.settings.partitions or len(target.partitions)
    partition = place_of(encoded, schema, placing, count)
    if partition not in target.partitions:
        return []
    stored = load_stored(reader, partition)
    equal: Any = pc.equal(stored.keys, pa.scalar(encoded, pa.large_binary()))
    return stored.decoded(np.flatnonzero(equal.to_numpy(zero_copy_only=False)))


def _normal_form(encoded: bytes, schema: StructType) -> Any:
    """The key as readers show it, with every field."""
    from epochal.state.rows.column_decoder import decode_rows

    return json_column(decode_rows(spans_of([encoded]), schema, source="key"), schema)[0]
