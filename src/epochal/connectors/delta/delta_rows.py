"""What happens to rows before a Delta table gets them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from epochal.errors import TableRowError


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
