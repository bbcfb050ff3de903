"""Computes which partition a stored row belongs to. Pure.

Spark places rows by a hash of the operator's partitioning expressions. That is not always the whole
stored key: a join numbers the rows of a key in an extra last key column, and a session window
appends the session's start. Operators without partitioning columns (a global aggregate, a limit)
keep everything in partition 0.
"""

from __future__ import annotations

import numpy as np

from epochal.state.files.merge import Rows
from epochal.state.rows.byte_spans import Ints, spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.murmur3 import partition_ids
from epochal.state.rows.types import AtomicType, StructType

SESSION_OPERATOR = "sessionWindowStateStoreSaveExec"
LIMIT_OPERATOR = "globalLimit"


def placing_columns(operator_name: str | None, store_name: str, key: StructType) -> StructType:
    """The key columns whose hash places a row; none if everything is in partition 0.

    Spark before 4.0 did not record the operator's name. Then the key's last column shows whether
    it is a session window.
    """
    fields = key.fields
    if store_name.endswith("-keyWithIndexToValue"):
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
    if not placing.fields:
        return np.zeros(len(rows), np.int64)
    decoded = decode_rows(rows.keys, key, source=rows.source)
    columns = decoded.flatten()[: len(placing.fields)]
    return partition_ids(columns, placing, partitions)


def place_of(key: bytes, schema: StructType, placing: StructType, partitions: int) -> int:
    """The partition of one encoded key."""
    rows = spans_of([key])
    return int(places_of(Rows(rows, rows, "key"), schema, placing, partitions)[0])
