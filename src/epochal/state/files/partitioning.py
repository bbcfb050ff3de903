"""Computes which partition a stored row belongs to. Pure.

Spark places rows by a hash of the operator's partitioning expressions, which `placing_columns`
finds. In the families of transformWithState the grouping key can be a column of the key.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_family import INTERNAL, indexed_family
from epochal.state.rows.byte_spans import Ints, spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.murmur3 import partition_ids
from epochal.state.rows.types import StructType


def places_of(rows: Rows, key: StructType, placing: StructType, partitions: int) -> Ints:
    """The partition of each row of an HDFS-backed store."""
    if not placing.fields:
        return np.zeros(len(rows), np.int64)
    decoded = decode_rows(rows.keys, key, source=rows.source)
    columns = decoded.flatten()[: len(placing.fields)]
    return partition_ids(columns, placing, partitions)


def owner_path(family: str, maps: Collection[str]) -> tuple[int, ...]:
    """Where the grouping key is in a key of transformWithState: the ordinals of nested structs.

    `maps` are the variables that are maps. An empty path means that the grouping key is the key.
    """
    about = indexed_family(family)
    if about is None:
        return (0,) if family in maps or family.startswith(INTERNAL) else ()
    if about.startswith(INTERNAL):
        return (1,)
    if family.startswith("$ttl_"):
        return (1, 0) if about in maps else (1,)
    return ()


def places_of_owners(
    keys: pa.StructArray, schema: StructType, path: tuple[int, ...], partitions: int
) -> Ints:
    """The partition of each decoded key of transformWithState."""
    owners: Any = keys
    for ordinal in path:
        nested = schema.fields[ordinal].data_type
        assert isinstance(nested, StructType), f"{schema.fields[ordinal].name} is no grouping key"
        owners, schema = owners.field(ordinal), nested
    return partition_ids([owners.field(n) for n in range(len(schema.fields))], schema, partitions)


def place_of(key: bytes, schema: StructType, placing: StructType, partitions: int) -> int:
    """The partition of one encoded key."""
    rows = spans_of([key])
    return int(places_of(Rows(rows, rows, "key"), schema, placing, partitions)[0])
