"""Finds, checks and creates the table that a query writes, and the table of markers.

The table is checked when the query starts, before any task runs. It is created if it does not
exist, but only for a query that has not written anything yet: a table that has disappeared would
otherwise come back without its rows, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from epochal.connectors.postgres.postgres_options import (
    PostgresSinkOptions,
    import_psycopg,
    table_name,
)
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
class PostgresTarget:
    """The table that a query writes."""

    name: TableName
    columns: tuple[WrittenColumn, ...]
    keys: tuple[str, ...]
    """The columns of mergeKeys; empty if rows are only added."""
    complete: bool
    """Whether each epoch replaces all rows."""


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table that exists."""

    oid: int
    name: TableName
    columns: tuple[CatalogColumn, ...]
    is_table: bool


def find_table(connection: Any, name: TableName) -> FoundTable | None:
    """Look a table up; None if there is none that the user can see."""
    row = connection.execute(_FIND, [name.identifier.as_string(connection)]).fetchone()
    if row is None:
        return None
    oid, schema, table, relkind = row
    columns = connection.execute(_COLUMNS, [oid]).fetchall()
    is_table = relkind in ("r", "p", b"r", b"p")
    return FoundTable(
        oid, TableName(schema, table), tuple(CatalogColumn(*column) for column in columns), is_table
    )


@dataclass(frozen=True, slots=True)
class TablePreparation:
    """Finds, creates and checks the tables of a query, over one connection."""

    connection: Any
    server: str
    options: PostgresSinkOptions
    schema: pa.Schema
    query_id: str
    replaces: bool
    """Whether each epoch replaces all rows."""

    def target_and_markers(self, name: TableName) -> tuple[PostgresTarget, TableName]:
        """The table and the marker table, which both exist afterwards."""
        existing = find_table(self.connection, name)
        home = existing.name.schema if existing else name.schema
        if home is None:
            (home,) = self.connection.execute("SELECT current_schema()").fetchone()
        markers = self._markers(home)
        written = None if existing else self._written_epoch(markers)
        if written is not None:
            # Another driver of this query may have created the table since the first look.
            existing = find_table(self.connection, name)
        if existing is None:
            if written is not None:
                raise PostgresRejectedError(
                    self.server,
                    f"table {name} does not exist, but the query has written epochs up to "
                    f"{written} to it. It was dropped or renamed, or dbtable names another one. A "
                    f"new table would lack those rows: restore it, or create an empty one yourself "
                    f"to go on without them",
                )
            if not self.options.create_table:
                raise PostgresRejectedError(
                    self.server, f"table {name} does not exist, and createTable is false. Create it"
                )
            self._create_table(TableName(home, name.table))
            existing = find_table(self.connection, TableName(home, name.table))
        assert existing is not None, "the table has just been created"
        return self._checked(existing), markers

    def _markers(self, home: str | None) -> TableName:
        schema, table = table_name(self.options.marker_table, None, "markerTable")
        name = TableName(schema or home, table)
        if find_table(self.connection, name) is None:
            if not self.options.create_table:
                raise PostgresRejectedError(
                    self.server,
                    f"the marker table {name} does not exist, and createTable is false. Create it "
                    f"as docs/tables-postgres.md says",
                )
            self._create(import_psycopg().sql.SQL(_MARKERS).format(name.identifier))
        return name

    def _written_epoch(self, markers: TableName) -> int | None:
        """The newest epoch of the query with rows; None if it has not written any."""
        statement = "SELECT epoch FROM {} WHERE query_id = %s AND token <> ''"
        query = import_psycopg().sql.SQL(statement).format(markers.identifier)
        row = self.connection.execute(query, [self.query_id]).fetchone()
        return None if row is None else int(row[0])

    def _create_table(self, name: TableName) -> None:
        sql, schema = import_psycopg().sql, self.schema
        if len({column.lower() for column in schema.names}) < len(schema):
            raise OptionError("postgres: two columns of the query have the same name. Rename one.")
        columns = new_columns(schema)
        parts = typed_columns(columns)
        keys = key_columns(self.options.merge_keys, schema, columns)
        if keys:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(joined_names(keys)))
        statement = sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})")
        self._create(statement.format(name.identifier, sql.SQL(", ").join(parts)))

    def _create(self, statement: Any) -> None:
        errors = import_psycopg().errors
        # Two processes may create the same table at the same time; then one of them gets these
        # errors in spite of IF NOT EXISTS.
        with suppress(errors.UniqueViolation, errors.DuplicateTable):
            self.connection.execute(statement)

    def _checked(self, existing: FoundTable) -> PostgresTarget:
        """The table as a target. Raises an error if the query's rows do not fit into it."""
        if not existing.is_table:
            raise PostgresRejectedError(
                self.server,
                f"{existing.name} is a view or something else that is not a table. Name a table",
            )
        columns = written_columns(
            f"table {existing.name} at {self.server}", self.schema, existing.columns
        )
        keys = key_columns(self.options.merge_keys, self.schema, columns)
        unique = self.connection.execute(_UNIQUE, [existing.oid]).fetchall() if keys else []
        if keys and set(keys) not in [set(row[0]) for row in unique]:
            named = ", ".join(f'"{key}"' for key in keys)
            raise PostgresRejectedError(
                self.server,
                f"table {existing.name} has no unique index on exactly the columns of mergeKeys "
                f"({', '.join(keys)}), so rows cannot be replaced. Create one: CREATE UNIQUE INDEX "
                f"ON {existing.name} ({named})",
            )
        self._check_privileges(existing, keys)
        return PostgresTarget(existing.name, tuple(columns), tuple(keys), self.replaces)

    def _check_privileges(self, existing: FoundTable, keys: Sequence[str]) -> None:
        needed = ["INSERT", *(("UPDATE", "SELECT") if keys else ())]
        needed += ["DELETE"] if self.replaces else []
        for privilege in needed:
            asked = "has_table_privilege" if privilege == "DELETE" else "has_any_column_privilege"
            query = f"SELECT {asked}(%s::oid, %s), current_user"
            allowed, user = self.connection.execute(query, [existing.oid, privilege]).fetchone()
            if not allowed:
                raise PostgresRejectedError(
                    self.server,
                    f"user {user} lacks {privilege} on table {existing.name}. As its owner: GRANT "
                    f"{', '.join(needed)} ON {existing.name} TO {user}",
                )


def joined_names(names: Iterable[str]) -> Any:
    """Names of columns as part of a statement."""
    sql = import_psycopg().sql
    return sql.SQL(", ").join(map(sql.Identifier, names))


def typed_columns(columns: Iterable[WrittenColumn]) -> list[Any]:
    """Columns as parts of a statement that creates a table."""
    sql = import_psycopg().sql
    return [
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))
        for column in columns
    ]
