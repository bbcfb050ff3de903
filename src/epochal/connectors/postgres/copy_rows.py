"""Writes an epoch's rows inside a transaction: append, replace by key, or replace all.

Rows to be replaced by key go through a temporary table, which belongs to the session and is emptied
at each commit. Of several rows with the same key the last one counts.

Note: replacing all rows deletes them, and does not truncate the table. After `TRUNCATE`, readers
with an older snapshot see an empty table, and others wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from epochal.connectors.postgres.postgres_options import import_psycopg
from epochal.connectors.postgres.postgres_table import Target

ROW_NUMBER = "epochal_row"


def write_rows(connection: Any, target: Target, parts: Sequence[bytes]) -> None:
    """Write CSV text with the target's columns."""
    sql = import_psycopg().sql
    columns = _names(each.name for each in target.columns)
    if target.complete:
        connection.execute(sql.SQL("DELETE FROM {}").format(target.name.identifier))
    if not target.keys:
        _copy(connection, target.name.identifier, columns, parts)
        return
    staging, number = sql.Identifier(_staging_name(target)), _row_number(target)
    typed = [
        sql.SQL("{} {}").format(sql.Identifier(each.name), sql.SQL(each.type))
        for each in target.columns
    ]
    connection.execute(
        sql.SQL(
            "CREATE TEMPORARY TABLE IF NOT EXISTS {} "
            "({} bigint GENERATED ALWAYS AS IDENTITY, {}) ON COMMIT DELETE ROWS"
        ).format(staging, number, sql.SQL(", ").join(typed))
    )
    _copy(connection, staging, columns, parts)
    connection.execute(_merge(target, staging, columns, number))


def _copy(connection: Any, into: Any, columns: Any, parts: Sequence[bytes]) -> None:
    sql = import_psycopg().sql
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(into, columns)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for part in parts:
            copy.write(part)


def _merge(target: Target, staging: Any, columns: Any, number: Any) -> Any:
    sql = import_psycopg().sql
    others = [each.name for each in target.columns if each.name not in target.keys]
    changes = sql.SQL(", ").join(
        sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in others
    )
    action = sql.SQL("DO UPDATE SET {}").format(changes) if others else sql.SQL("DO NOTHING")
    return sql.SQL(
        "INSERT INTO {} ({}) SELECT DISTINCT ON ({keys}) {} FROM {} "
        "ORDER BY {keys}, {} DESC ON CONFLICT ({keys}) {}"
    ).format(
        *(target.name.identifier, columns, columns, staging),
        *(number, action),
        keys=_names(target.keys),
    )


def _row_number(target: Target) -> Any:
    """The name of a column that the target does not have."""
    name = ROW_NUMBER
    while any(column.name == name for column in target.columns):
        name += "_"
    return import_psycopg().sql.Identifier(name)


def _names(names: Any) -> Any:
    sql = import_psycopg().sql
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _staging_name(target: Target) -> str:
    """A name that is the same only for the same columns: poolers hand sessions to others."""
    columns = [f"{each.name} {each.type}" for each in target.columns]
    text = "\0".join((str(target.name), *columns))
    return f"epochal_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
