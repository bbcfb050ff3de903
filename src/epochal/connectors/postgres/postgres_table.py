"""Finds, checks and creates the table that a query writes, and the table of markers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from epochal.connectors.postgres.postgres_columns import (
    CatalogColumn,
    WrittenColumn,
    key_columns,
    new_columns,
    written_columns,
)
from epochal.connectors.postgres.postgres_options import import_psycopg
from epochal.errors import OptionError, PostgresRejectedError

_FIND = """
SELECT c.oid, n.nspname, c.relname, c.relkind
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s)
"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(b.typname, t.typname),
       a.attnotnull, a.atthasdef OR a.attidentity <> '',
       a.attgenerated <> '' OR a.attidentity = 'a', t.typtype = 'e'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type b ON t.typtype = 'd' AND b.oid = t.typbasetype
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
SELECT array_agg(a.attname::text)
FROM pg_index i JOIN pg_attribute a
  ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""
_MARKERS = """
CREATE TABLE IF NOT EXISTS {} (
  query_id text PRIMARY KEY,
  attempt bigint NOT NULL,
  claim text NOT NULL,
  epoch bigint,
  token text NOT NULL DEFAULT '',
  table_name text NOT NULL,
  updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50)
"""


@dataclass(frozen=True, slots=True)
class TableName:
    """A table and its schema; the schema is None until the server has resolved the name."""

    schema: str | None
    table: str

    @property
    def identifier(self) -> Any:
        """The name as part of a statement."""
        parts = (self.table,) if self.schema is None else (self.schema, self.table)
        return import_psycopg().sql.Identifier(*parts)

    def __str__(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class Target:
    """The table that a query writes."""

    name: TableName
    columns: tuple[WrittenColumn, ...]
    keys: tuple[str, ...]
    """The columns of mergeKeys; empty if rows are only added."""
    complete: bool
    """Whether each epoch replaces all rows."""


@dataclass(frozen=True, slots=True)
class Found:
    """A table that exists."""

    oid: int
    name: TableName
    columns: tuple[CatalogColumn, ...]
    is_table: bool


def find_table(connection: Any, name: TableName) -> Found | None:
    """Look a table up; None if there is none that the user can see."""
    row = connection.execute(_FIND, [name.identifier.as_string(connection)]).fetchone()
    if row is None:
        return None
    oid, schema, table, relkind = row
    columns = connection.execute(_COLUMNS, [oid]).fetchall()
    is_table = relkind in ("r", "p", b"r", b"p")
    return Found(
        oid, TableName(schema, table), tuple(CatalogColumn(*each) for each in columns), is_table
    )


def checked_target(
    connection: Any,
    server: str,
    found: Found,
    schema: pa.Schema,
    merge_keys: Sequence[str],
    *,
    complete: bool,
) -> Target:
    """The table as a target. Raises an error if the query's rows do not fit into it."""
    if not found.is_table:
        raise PostgresRejectedError(
            server, f"{found.name} is a view or something else that is not a table. Name a table"
        )
    columns = written_columns(f"table {found.name} at {server}", schema, found.columns)
    keys = key_columns(merge_keys, schema, columns)
    if keys and set(keys) not in _unique_keys(connection, found.oid):
        named = ", ".join(f'"{key}"' for key in keys)
        raise PostgresRejectedError(
            server,
            f"table {found.name} has no unique index on exactly the columns of mergeKeys "
            f"({', '.join(keys)}), so rows cannot be replaced. Create one: CREATE UNIQUE INDEX ON "
            f"{found.name} ({named})",
        )
    _check_privileges(connection, server, found, keys, complete=complete)
    return Target(found.name, tuple(columns), tuple(keys), complete)


def create_table(
    connection: Any, name: TableName, schema: pa.Schema, merge_keys: Sequence[str]
) -> None:
    """Create a table for a query. It is no error if another process has just done so."""
    sql = import_psycopg().sql
    if len({each.lower() for each in schema.names}) < len(schema):
        raise OptionError("postgres: two columns of the query have the same name. Rename one.")
    columns = new_columns(schema)
    parts = [
        sql.SQL("{} {}").format(sql.Identifier(each.name), sql.SQL(each.type)) for each in columns
    ]
    keys = key_columns(merge_keys, schema, columns)
    if keys:
        parts.append(
            sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, keys)))
        )
    statement = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
    _create(connection, statement.format(name.identifier, sql.SQL(", ").join(parts)))


def create_markers(connection: Any, name: TableName) -> None:
    """Create the table of markers."""
    _create(connection, import_psycopg().sql.SQL(_MARKERS).format(name.identifier))


def _create(connection: Any, statement: Any) -> None:
    errors = import_psycopg().errors
    # Two processes may create the same table at the same time; then one of them gets these errors
    # in spite of IF NOT EXISTS.
    with suppress(errors.UniqueViolation, errors.DuplicateTable):
        connection.execute(statement)


def _unique_keys(connection: Any, oid: int) -> list[set[str]]:
    return [set(row[0]) for row in connection.execute(_UNIQUE, [oid]).fetchall()]


def _check_privileges(
    connection: Any, server: str, found: Found, keys: Sequence[str], *, complete: bool
) -> None:
    needed = ["INSERT", *(("UPDATE", "SELECT") if keys else ()), *(("DELETE",) if complete else ())]
    for privilege in needed:
        asked = "has_table_privilege" if privilege == "DELETE" else "has_any_column_privilege"
        query = f"SELECT {asked}(%s::oid, %s), current_user"
        allowed, user = connection.execute(query, [found.oid, privilege]).fetchone()
        if not allowed:
            raise PostgresRejectedError(
                server,
                f"user {user} lacks {privilege} on table {found.name}. As its owner: GRANT "
                f"{', '.join(needed)} ON {found.name} TO {user}",
            )
