"""Makes record batches and tables that have a number of rows even without columns. Pure.

A query may need no column at all: `df.groupBy().count()` counts rows and looks at none of their
values. Some of Arrow's functions take the number of rows from the columns, so without columns they
return no rows. The functions below return them. Elsewhere the tests forbid Arrow's own ones.

Note: Arrow keeps the number in `select`, `slice`, `filter`, `take` and IPC of batches, and in
`Table.from_batches`, `combine_chunks` and `to_batches`. It loses it in `slice` and `take` of a
table, and when a batch or table is pickled: `with_a_column` makes a table that can be.

It also says up to how many rows a batch is small. A call of Arrow's compute functions takes 5 to
20 µs, whatever the number of rows, and a batch takes about ten of them. Between turns of a task the
thread sleeps, and the caches of the processor are cold when it wakes up: then each different
function of NumPy or Arrow costs about 10 µs. So small batches avoid them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import pyarrow as pa

Names: TypeAlias = pa.Schema | list[str]

_EMPTY_STRUCT = pa.struct([])

FEW_ROWS = 64
"""Below this number of rows, plain Python takes a small part of what Arrow's functions take."""

FEW_KEYS = 128
"""Up to this number of rows, partitions of keys are looked up: to hash ten rows by columns costs as
much as to hash a thousand."""

FEW_TO_GROUP = 128
"""Below this number of rows, Python groups them faster than Arrow does."""

FEW_SLICES = 16
"""Up to this number of rows, it is faster to join slices of one row each than to `take` them."""


def batch_of(columns: Sequence[Any], schema: Names, rows: int) -> pa.RecordBatch:
    """Return the columns as a batch of `rows` rows; `schema` may be names only."""
    if not columns:
        return without_columns(rows)
    if isinstance(schema, pa.Schema):
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    else:
        batch = pa.RecordBatch.from_arrays(columns, names=schema)
    assert batch.num_rows == rows, f"the columns have {batch.num_rows} rows, not {rows}"
    return batch


def without_columns(rows: int) -> pa.RecordBatch:
    """Return a batch of rows that have no columns."""
    return pa.RecordBatch.from_struct_array(struct_of([], [], rows))


def struct_of(columns: Sequence[Any], fields: list[Any], rows: int) -> pa.StructArray:
    """Return a column of structs, none of them null."""
    if columns:
        return pa.StructArray.from_arrays(columns, fields=fields)
    structs = pa.Array.from_buffers(_EMPTY_STRUCT, rows, [None], children=[])
    return cast(pa.StructArray, structs)


def batch_of_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return dicts by column as a batch."""
    if not len(schema):
        return without_columns(len(rows))
    return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)


def batch_of_frame(frame: Any, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a pandas DataFrame that the schema names as a batch."""
    if not len(schema):
        return without_columns(len(frame))
    chosen = frame[schema.names]
    return pa.RecordBatch.from_pandas(chosen, schema=schema, preserve_index=False)


def table_of(columns: Sequence[Any], schema: Names, rows: int) -> pa.Table:
    """Return the columns, which may be in chunks, as a table of `rows` rows."""
    if not columns:
        return pa.Table.from_batches([without_columns(rows)])
    if isinstance(schema, pa.Schema):
        return pa.Table.from_arrays(columns, schema=schema)
    return pa.Table.from_arrays(columns, names=schema)


def joined_tables(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return the rows of all tables, which have the same schema."""
    parts = [part for table in tables for part in table.to_batches()]
    return pa.Table.from_batches(parts, schema) if parts else schema.empty_table()


def cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table with the schema's types; its columns must have the schema's names."""
    return table.cast(schema) if len(schema) else table


def with_a_column(table: pa.Table) -> pa.Table:
    """Return the table with a column of nulls if it has no column, so that it can be pickled."""
    if table.num_columns:
        return table
    return table_of([pa.nulls(table.num_rows)], ["_"], table.num_rows)
