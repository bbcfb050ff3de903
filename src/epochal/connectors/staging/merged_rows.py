"""Merges rows by key: the last row per key, and the rows that others replace. Pure.

Null is a value like any other: two rows whose keys are null in the same columns have the same key,
as in GROUP BY.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def last_per_key(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Each key's last row, in the order of these rows."""
    (codes,) = _codes([rows], keys)
    _, from_end = np.unique(codes[::-1], return_index=True)
    kept = np.sort(len(codes) - 1 - from_end)
    return rows if len(kept) == len(codes) else rows.take(kept)


def without_keys(rows: pa.Table, replacing: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows whose key no row of `replacing` has."""
    codes, replaced = _codes([rows, replacing], keys)
    kept = ~np.isin(codes, replaced)
    return rows if kept.all() else rows.filter(pa.array(kept))


def _codes(tables: Sequence[pa.Table], keys: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """A number per row of each table, equal exactly for rows with equal keys."""
    codes = np.zeros(sum(table.num_rows for table in tables), dtype=np.int64)
    for key in keys:
        kind = tables[0].schema.field(key).type
        chunks = [chunk for table in tables for chunk in table.column(key).cast(kind).chunks]
        column: Any = pa.chunked_array(chunks, kind)
        if pa.types.is_floating(kind):
            column = pc.add(column, pa.scalar(0.0, kind))  # -0.0 is 0.0, as in GROUP BY
        values = pc.unique(column)
        found = pc.index_in(column, value_set=values).to_numpy()
        # Number the combinations that occur, so that the numbers stay small.
        _, codes = np.unique(codes * len(values) + found, return_inverse=True)
    ends = np.cumsum([table.num_rows for table in tables])[:-1]
    return list(np.split(codes, ends))
