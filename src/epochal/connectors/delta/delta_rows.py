"""What happens to rows before a Delta table gets them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from epochal.errors import TableRowError

_PLACE = "\0place"
"""A column name that no query has."""


def check_required(table: str, rows: pa.Table, required: Sequence[str]) -> None:
    """Raise TableRowError if a column that takes no nulls has one."""
    for name in required:
        nulls = rows.column(name).null_count
        if nulls:
            raise TableRowError(
                table,
                f"column {name} takes no nulls, but is null in {nulls} of {rows.num_rows} rows",
            )


def in_microseconds(rows: pa.Table) -> pa.Table:
    """Return the rows with times in microseconds, as Delta has them; an error if that loses."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit != "us":
            wanted: Any = pa.timestamp("us", field.type.tz)
            column = rows.column(index).cast(wanted)
            rows = rows.set_column(index, field.with_type(wanted), column)
    return rows


def last_per_key(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last row of each key, in the order of the rows. Nulls are equal to each other."""
    places = pa.array(np.arange(rows.num_rows))
    keyed = rows.select(list(keys)).append_column(_PLACE, places)
    last = keyed.group_by(list(keys)).aggregate([(_PLACE, "max")])
    chosen = np.sort(last.column(f"{_PLACE}_max").to_numpy())
    return rows if len(chosen) == rows.num_rows else rows.take(chosen)
