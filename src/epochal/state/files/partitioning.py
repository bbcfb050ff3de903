"""Computes which partition a stored row belongs to. Pure.

Spark places rows by a hash of the operator's partitioning expressions. That is not always the whole
stored key: a join numbers or dates the rows of a key in an extra last key column, and a session
window appends the session's start. In the families of transformWithState the grouping key can be a
column of the key. Operators without partitioning columns (a global aggregate, a limit)
keep everything in partition 0.

Note: what computes whole columns is imported where it is used. `verify` needs only to know which
columns place a key, and must start fast.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from epochal.state.rows.types import AtomicType, StructType

if TYPE_CHECKING:
    import pyarrow as pa

    from epochal.state.files.merge import Rows
    from epochal.state.rows.byte_spans import Ints

SESSION_OPERATOR = "sessionWindowStateStoreSaveExec"
LIMIT_OPERATOR = "globalLimit"
_NUMBERED = ("-keyWithIndexToValue", "-keyWithTsToValues", "-tsWithKey")
"""Stores of a join whose last key column is the number or the time of a row."""


def placing_columns(operator_name: str | None, store_name: str, key: StructType) -> StructType:
    """The key columns whose hash places a row; none if everything is in partition 0.

    Spark before 4.0 did not record the operator's name. Then the key's last column shows whether
    it is a session window.
    """
    fields = key.fields
    if store_name.endswith(_NUMBERED):
        return StructType(fields[:-1])
    sessions = operator_name == SESSION_OPERATOR or (
        operator_name is None and len(fields) > 1 and fields[-1].name == "sessionStartTime"
    )
    if sessions:
        return StructType(fields[:-1])
    if operator_name == LIMIT_OPERATOR or all(f.data_type == AtomicType("void") for f in fields):
        return StructType(())
    return key


def places_of(rows: Rows, key: StructType, placing: StructType, partitions: int) -> Ints:
    """The partition of each row of an HDFS-backed store."""
    import numpy as np

    from epochal.state.rows.column_decoder import decode_rows
    from epochal.state.rows.murmur3 import partition_ids

    if not placing.fields:
        return np.zeros(len(rows), np.int64)
    decoded = decode_rows(rows.keys, key, source=rows.source)
    columns = decoded.flatten()[: len(placing.fields)]
    return partition_ids(columns, placing, partitions)


def owner_path(family: str, maps: Collection[str]) -> tuple[int, ...]:
    """Where the grouping key is in a key of transformWithState: the ordinals of nested structs.

    `maps` are the variables that are maps. An empty path means that the grouping key is the key.
    """
    from epochal.state.files.rocksdb_family import INTERNAL, indexed_family

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
    from epochal.state.rows.murmur3 import partition_ids

    owners: Any = keys
    for ordinal in path:
        nested = schema.fields[ordinal].data_type
        assert isinstance(nested, StructType), f"{schema.fields[ordinal].name} is no grouping key"
        owners, schema = owners.field(ordinal), nested
    return partition_ids([owners.field(n) for n in range(len(schema.fields))], schema, partitions)


def place_of(key: bytes, schema: StructType, placing: StructType, partitions: int) -> int:
    """The partition of one encoded key."""
    from epochal.state.files.merge import Rows
    from epochal.state.rows.byte_spans import spans_of

    rows = spans_of([key])
    return int(places_of(Rows(rows, rows, "key"), schema, placing, partitions)[0])
