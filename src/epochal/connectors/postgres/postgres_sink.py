"""Opens `write_stream.format("postgres")`: rows and marker of each epoch in one transaction.

The table is checked when the query starts, before any task runs. It is created if it does not
exist, but only for a query that has not written anything yet: a table that has disappeared would
otherwise come back without its rows, and nobody would notice.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from epochal.checkpoint.layout import EPOCHAL
from epochal.clock import SystemClock
from epochal.connectors.formats import SinkRequest
from epochal.connectors.postgres.postgres_columns import kind_of
from epochal.connectors.postgres.postgres_options import (
    PostgresSinkOptions,
    connection_settings,
    import_psycopg,
    table_name,
)
from epochal.connectors.postgres.postgres_rows import CopyRows
from epochal.connectors.postgres.postgres_table import (
    TableName,
    Target,
    checked_target,
    create_markers,
    create_table,
    find_table,
)
from epochal.connectors.postgres.postgres_transactions import PostgresSession, PostgresTransactions
from epochal.connectors.staging.deciding_sink import DecidingSink
from epochal.connectors.staging.epoch_marker import MarkedOutput
from epochal.connectors.staging.staged_rows import StagedWriters
from epochal.connectors.tables.table_epochs import WriteMode, choose_write_mode
from epochal.errors import PostgresRejectedError

STAGING = f"{EPOCHAL}/postgres"
POSTGRES_OUTPUT = MarkedOutput(
    magic=b"EPG1",
    noun="table",
    how_lost="the query's row or the marker table was deleted, or this is not the database that "
    "the query wrote to",
    how_behind="The database was restored from a backup, it has failed over to a replica that "
    "lagged behind, or this is not the database that the query wrote to",
    how_to_look="with a query that only a row of the last epochs can answer",
)


def open_postgres_sink(request: SinkRequest) -> DecidingSink:
    """Open the sink; ask the server whether its table fits, and create it if it is missing."""
    options, schema = request.read_options(PostgresSinkOptions), request.schema
    mode, query_id = request.output_mode, request.query_id
    replaces = choose_write_mode("postgres", mode, options.merge_keys) is WriteMode.OVERWRITE
    for field in schema:
        kind_of(field.type, field.name)
    settings = connection_settings(options)
    name = TableName(*table_name(options.dbtable, options.schema))
    patience = options.server_timeout.total_seconds()
    clock = SystemClock()
    session = PostgresSession(settings, clock, patience=patience)
    try:
        target, markers = session.run(
            lambda each: _prepared(each, session.server, options, schema, replaces, name, query_id),
            name,
        )
    finally:
        session.close()
    transactions = PostgresTransactions(
        *(session, target, markers, query_id),
        lock_seconds=options.lock_timeout.total_seconds(),
        patience=patience,
    )
    rows = CopyRows(target.columns, session.server, str(target.name))
    return DecidingSink(
        transactions,
        StagedWriters(
            *(rows, request.checkpoint.url, STAGING, POSTGRES_OUTPUT.magic), replaces=replaces
        ),
        request.checkpoint,
        POSTGRES_OUTPUT,
        clock,
        reset_marker=options.reset_marker,
    )


def _prepared(
    connection: Any,
    server: str,
    options: PostgresSinkOptions,
    schema: pa.Schema,
    replaces: bool,
    name: TableName,
    query_id: str,
) -> tuple[Target, TableName]:
    """The table and the marker table, which both exist afterwards."""
    found = find_table(connection, name)
    home = found.name.schema if found else name.schema
    if home is None:
        (home,) = connection.execute("SELECT current_schema()").fetchone()
    markers = _markers(connection, options, server, home)
    written = None if found else _written_epoch(connection, markers, query_id)
    if written is not None:
        # Another driver of this query may have created the table since the first look.
        found = find_table(connection, name)
    if found is None:
        if written is not None:
            raise PostgresRejectedError(
                server,
                f"table {name} does not exist, but the query has written epochs up to {written} to "
                f"it. It was dropped or renamed, or dbtable names another one. A new table would "
                f"lack those rows: restore it, or create an empty one yourself to go on without "
                f"them",
            )
        if not options.create_table:
            raise PostgresRejectedError(
                server, f"table {name} does not exist, and createTable is false. Create it"
            )
        create_table(connection, TableName(home, name.table), schema, options.merge_keys)
        found = find_table(connection, TableName(home, name.table))
    assert found is not None, "the table has just been created"
    target = checked_target(
        connection, server, found, schema, options.merge_keys, complete=replaces
    )
    return target, markers


def _markers(
    connection: Any, options: PostgresSinkOptions, server: str, home: str | None
) -> TableName:
    schema, table = table_name(options.marker_table, None, "markerTable")
    name = TableName(schema or home, table)
    found = find_table(connection, name)
    if found is None and not options.create_table:
        raise PostgresRejectedError(
            server,
            f"the marker table {name} does not exist, and createTable is false. Create it as "
            f"docs/tables-postgres.md says",
        )
    if found is None:
        create_markers(connection, name)
    return name


def _written_epoch(connection: Any, markers: TableName, query_id: str) -> int | None:
    """The newest epoch of the query with rows; None if it has not written any."""
    statement = "SELECT epoch FROM {} WHERE query_id = %s AND token <> ''"
    query = import_psycopg().sql.SQL(statement).format(markers.identifier)
    row = connection.execute(query, [query_id]).fetchone()
    return None if row is None else int(row[0])
