"""Compares the columns of a query with those of the table that it writes to. Pure.

The rules are the same for every kind of table:

| query and table | result |
|---|---|
| a column of both, with the same type | is written |
| a column of both, with different types | is refused |
| a column of the query only | is added to the table if that is allowed, else refused |
| a column of the table only | stays null, or gets its default; refused if it must have a value |

Names must be equal. Two names that differ only in case are refused, because some readers of tables
treat them as the same column and others do not.

Types are compared as text, in the words of the table's own format. A format in which one type can
take values of another passes its own `fits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from epochal.errors import TableMismatchError


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a query or a table."""

    name: str
    kind: str
    """The type, as users of this kind of table write it."""
    required: bool = False
    """In a table: whether the column takes no nulls."""
    has_default: bool = False
    """In a table: whether a row without a value for the column gets one."""


@dataclass(frozen=True, slots=True)
class ColumnMatch:
    """How a query that fits its table is written."""

    added: tuple[TableColumn, ...]
    """Columns that the table must get first, in the order of the query."""
    required: tuple[str, ...]
    """Columns of the query in which the table takes no nulls."""


def name_columns(
    table: str, schema: pa.Schema, system: str, name_type: Callable[[pa.DataType], str | None]
) -> list[TableColumn]:
    """The columns of a query; TableMismatchError if the table's system has no type for one."""
    kinds = [(field, name_type(field.type)) for field in schema]
    unknown = tuple(
        f"column {field.name} is {field.type}, and {system} has no such type. Cast it in the query."
        for field, kind in kinds
        if kind is None
    )
    if unknown:
        raise TableMismatchError(table, unknown)
    return [TableColumn(field.name, kind) for field, kind in kinds if kind is not None]


def unknown_names(option: str, names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Why an option cannot name these columns; empty if it can."""
    return [
        f"{option} names column {name}, which does not exist. The columns are {', '.join(columns)}."
        for name in names
        if name not in columns
    ]


def partition_reasons(query: Sequence[str], table: Sequence[str]) -> list[str]:
    """Why a query cannot partition a table that exists; empty if it can, or leaves it as it is."""
    if not query or list(query) == list(table):
        return []
    return [
        f"the table is partitioned by ({', '.join(table)}), but the query by "
        f"({', '.join(query)}). Remove partitionBy, or use another table."
    ]


def new_partition_reasons(query: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Why a query cannot partition its own columns; empty if it can."""
    reasons = unknown_names("partitionBy", query, columns)
    if query and len(query) >= len(columns):
        reasons.append(
            f"partitionBy names all columns {', '.join(columns)}, so none is left for the files. "
            f"Partition by fewer columns."
        )
    return reasons


def key_reasons(keys: Sequence[str], columns: Sequence[TableColumn]) -> list[str]:
    """Why these columns cannot identify rows; empty if they can."""
    kinds = {column.name: column.kind for column in columns}
    nested = ("array<", "list<", "map<", "struct<")
    return unknown_names("mergeKeys", keys, list(kinds)) + [
        f"column {name} is {kinds[name]}, which cannot identify rows. Choose other mergeKeys."
        for name in keys
        if kinds.get(name, "").startswith(nested)
    ]


def match_columns(
    table: str,
    query: Sequence[TableColumn],
    columns: Sequence[TableColumn],
    *,
    may_add: bool,
    to_add: str,
    fits: Callable[[str, str], bool] = lambda query, table: query == table,
) -> ColumnMatch:
    """Compare a query's columns with those of `table`; TableMismatchError lists all differences.

    `fits(query_kind, table_kind)` tells whether a column takes values of another type. `to_add`
    says how the user can allow new columns.
    """
    reasons = [*_repeated("query", query), *_repeated("table", columns)]
    held = {column.name: column for column in columns}
    spelled = {column.name.lower(): column.name for column in columns}
    added = []
    for column in query:
        there = held.get(column.name)
        if there is None:
            other = spelled.get(column.name.lower())
            if other is not None:
                reasons.append(
                    f"column {column.name} of the query is {other} in the table. Rename it in the "
                    f"query."
                )
            elif may_add:
                added.append(column)
            else:
                reasons.append(
                    f"column {column.name} ({column.kind}) does not exist in the table. {to_add}"
                )
        elif not fits(column.kind, there.kind):
            reasons.append(
                f"column {column.name} is {column.kind} in the query, but {there.kind} in the "
                f"table. Cast it in the query, or change the table."
            )
    names = {column.name for column in query}
    taken = {column.name.lower() for column in query}
    reasons += [
        f"column {column.name} ({column.kind}) must have a value in the table, but the query has "
        f"no such column. Add it to the query, or let the table take nulls."
        for column in columns
        if column.required and not column.has_default and column.name.lower() not in taken
    ]
    if reasons:
        raise TableMismatchError(table, tuple(reasons))
    needed = [column.name for column in columns if column.required and column.name in names]
    return ColumnMatch(tuple(added), tuple(needed))


def rows_without_values(batch: pa.RecordBatch, required: Sequence[str]) -> dict[int, str]:
    """The rows that have no value in a column that takes no nulls, with the reason."""
    reasons: dict[int, str] = {}
    for name in required:
        column = batch.column(name)
        if column.null_count:
            reason = f"column {name} is null, which the table does not allow"
            for index, is_null in enumerate(column.is_null().to_pylist()):
                if is_null:
                    reasons.setdefault(index, reason)
    return reasons


def _repeated(whose: str, columns: Sequence[TableColumn]) -> list[str]:
    counts = Counter(column.name.lower() for column in columns)
    twice = [column.name for column in columns if counts[column.name.lower()] > 1]
    if not twice:
        return []
    return [
        f"the {whose} has columns with the same name, apart from upper and lower case: "
        f"{', '.join(twice)}. Rename them."
    ]
