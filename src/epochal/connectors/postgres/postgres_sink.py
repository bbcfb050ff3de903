"""Writes each epoch of a query to PostgreSQL in one transaction, together with its marker.

The marker is the query's row in the marker table. Every transaction first locks that row, so the
transactions of two drivers never overlap:

    claim    lock the row; stop if a newer attempt has it; write this attempt and a random claim
    write    lock the row; stop if the claim is not ours; return if it has the epoch already;
             rows; epoch and token

A write is repeated after an outage. Whether the server has committed a transaction whose answer was
lost shows in the row, and the lock waits for a transaction that still runs.

Note: a driver that hangs inside a transaction holds the lock. After `lock_timeout` the next driver
ends that session. The system column `xmax` of the locked row is the transaction that locked it, and
`pg_locks` has its process.

Note: a server may lose transactions that it has confirmed: with `synchronous_commit=off`, by a
failover to a replica that lagged, or when a backup is restored. The row is then older than the last
one this driver wrote, and the query stops.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from epochal.checkpoint.layout import EPOCHAL
from epochal.clock import Clock, SystemClock
from epochal.connectors.formats import SinkRequest
from epochal.connectors.postgres.postgres_columns import CopyRows, kind_of
from epochal.connectors.postgres.postgres_failures import failure
from epochal.connectors.postgres.postgres_options import (
    PostgresSinkOptions,
    connection_settings,
    import_psycopg,
    server_name,
    table_name,
)
from epochal.connectors.postgres.postgres_table import (
    PostgresTarget,
    TableName,
    TablePreparation,
    joined_names,
    typed_columns,
)
from epochal.connectors.staging.deciding_sink import DecidingSink, Transactions
from epochal.connectors.staging.epoch_marker import MarkedOutput, Marker, Staged, has_output
from epochal.connectors.staging.staged_rows import StagedWriters, staged_bytes
from epochal.connectors.tables.table_epochs import WriteMode, choose_write_mode
from epochal.errors import (
    MarkerError,
    PostgresFencedError,
    PostgresRejectedError,
    PostgresUnavailableError,
)
from epochal.files import Files

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
IDLE_IN_TRANSACTION = "60s"
"""How long the server keeps a transaction whose driver says nothing, its host being dead."""

_SETTINGS = """
SELECT set_config('lock_timeout', %s, true),
       set_config('idle_in_transaction_session_timeout', %s, true),
       set_config('synchronous_commit',
                  CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
                       ELSE current_setting('synchronous_commit') END, true)
"""
_CREATE = """
INSERT INTO {} (query_id, attempt, claim, table_name) VALUES (%s, -1, '', %s)
ON CONFLICT (query_id) DO NOTHING
"""
_PEEK = "SELECT attempt FROM {} WHERE query_id = %s"
_LOCK = "SELECT attempt, claim, epoch, token FROM {} WHERE query_id = %s FOR UPDATE"
_CLAIM = "UPDATE {} SET attempt = %s, claim = %s, updated_at = now() WHERE query_id = %s"
_MARK = """
UPDATE {} SET epoch = %s, token = %s, table_name = %s, updated_at = now() WHERE query_id = %s
"""
_END_HOLDER = """
SELECT l.pid, pg_terminate_backend(l.pid)
FROM {} m JOIN pg_locks l
  ON l.locktype = 'transactionid' AND l.transactionid = m.xmax AND l.granted
WHERE m.query_id = %s AND l.pid <> pg_backend_pid()
"""

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
            lambda connection: TablePreparation(
                *(connection, session.server, options, schema, query_id, replaces)
            ).target_and_markers(name),
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


class PostgresSession:
    """A connection that is opened when it is needed, and again after an outage."""

    def __init__(self, settings: Mapping[str, str], clock: Clock, *, patience: float) -> None:
        """`patience` is how many seconds an outage may last."""
        self._psycopg, self._settings, self._clock = import_psycopg(), settings, clock
        self._patience = patience
        self._connection: Any = None
        self.server = server_name(settings)

    def run(self, work: Callable[[Any], T], table: object) -> T:
        """Run `work(connection)`, again after an outage. `table` is what the work is about."""
        began, pause = self._clock.monotonic(), 0.0
        while True:
            try:
                return work(self._connected())
            except self._psycopg.Error as error:
                self.close()
                problem = failure(error, self.server, str(table))
                if not isinstance(problem, PostgresUnavailableError):
                    raise problem from error
                left = began + self._patience - self._clock.monotonic()
                if left <= 0:
                    raise problem from error
                if not pause:
                    logger.warning("%s It is tried again for up to %.0f s", problem, left)
                self._clock.sleep(min(pause, left))
                pause = min(max(FIRST_PAUSE_SECONDS, 2 * pause), LONGEST_PAUSE_SECONDS)

    def close(self) -> None:
        """Close the connection; an open transaction ends with it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> Any:
        if self._connection is None or self._connection.closed:
            # Poolers between us and the server share its sessions, so nothing may stay behind in
            # one: neither prepared statements nor settings.
            self._connection = self._psycopg.connect(
                **self._settings, autocommit=True, prepare_threshold=None
            )
        return self._connection


class PostgresTransactions(Transactions):
    """The transactions of one query, one after the other."""

    def __init__(
        self,
        session: PostgresSession,
        target: PostgresTarget,
        markers: TableName,
        query_id: str,
        *,
        lock_seconds: float,
        patience: float,
    ) -> None:
        self._session, self._target, self._markers = session, target, markers
        self._query = query_id
        self._lock_ms, self._patience_ms = f"{lock_seconds * 1000:.0f}", f"{patience * 1000:.0f}"
        self._claim = ""
        self._last: Marker | None = None
        """The marker that the row must have: this driver has read or written it."""

    @property
    def place(self) -> str:
        return f"table {self._markers} at {self._session.server}, query_id {self._query!r}"

    def claim(self, attempt: int) -> Marker | None:
        self._claim = uuid4().hex
        self._last = self._session.run(
            lambda connection: self._claimed(connection, attempt), self._markers
        )
        return self._last

    def write(self, marker: Marker, staging: Files, staged: Sequence[Staged]) -> None:
        # Before the transaction, which holds the lock, and once, however often it is tried.
        parts = [staged_bytes(staging, report) for report in staged if report.rows]
        writes = has_output(staged)
        self._session.run(
            lambda connection: self._written(connection, marker, parts, writes=writes),
            self._target.name,
        )
        self._last = marker

    def close(self) -> None:
        self._session.close()

    def _claimed(self, connection: Any, attempt: int) -> Marker | None:
        self._execute(connection, _CREATE, self._query, str(self._target.name))
        # Without the lock, and again under it: an attempt that is outdated must not wait for the
        # lock of a newer one, and then end its session.
        self._check_newest(self._execute(connection, _PEEK, self._query).fetchone()[0], attempt)
        try:
            with connection.transaction():
                connection.execute(_SETTINGS, [self._lock_ms, IDLE_IN_TRANSACTION])
                newest, _, epoch, token = self._execute(connection, _LOCK, self._query).fetchone()
                self._check_newest(newest, attempt)
                self._execute(connection, _CLAIM, attempt, self._claim, self._query)
        except import_psycopg().errors.LockNotAvailable:
            self._end_holder(connection)
            raise  # and the session tries again
        return None if epoch is None else Marker(epoch, token)

    def _check_newest(self, newest: int, attempt: int) -> None:
        if newest > attempt:
            raise PostgresFencedError(
                self._session.server,
                self._query,
                f"table {self._markers} has attempt {newest}, and this is attempt {attempt}. "
                f"Another run of the query has taken over, or the checkpoint was restored from an "
                f"older copy. In that case delete the query's row, and start with resetMarker as "
                f"the next error says",
            )

    def _end_holder(self, connection: Any) -> None:
        """End the session that holds the lock on the marker."""
        try:
            ended = self._execute(connection, _END_HOLDER, self._query).fetchall()
        except import_psycopg().errors.InsufficientPrivilege as error:
            raise PostgresRejectedError(
                self._session.server,
                f"an earlier run of query {self._query} hangs inside a transaction, and this user "
                f"may not end its session ({error.diag.message_primary}). Use the same user, or "
                f"let an administrator end it with pg_terminate_backend",
            ) from error
        for pid, _ in ended:
            logger.warning("ended session %s of an earlier run, which held %s", pid, self.place)

    def _written(
        self, connection: Any, marker: Marker, parts: Sequence[bytes], *, writes: bool
    ) -> None:
        with connection.transaction():
            connection.execute(_SETTINGS, [self._patience_ms, IDLE_IN_TRANSACTION])
            # The lock is held until the transaction ends, so nobody claims the row between this
            # check and the commit. A claim is random: an attempt number may be used twice, if a
            # checkpoint was copied.
            row = self._execute(connection, _LOCK, self._query).fetchone()
            if row is None or row[1] != self._claim:
                raise PostgresFencedError(
                    self._session.server, self._query, "another run has claimed its marker"
                )
            current = None if row[2] is None else Marker(row[2], row[3])
            if current == marker:
                return  # the answer to an earlier try was lost
            if current != self._last:
                raise MarkerError(
                    self.place,
                    f"it shows epoch {current.epoch if current else None}, but this run has "
                    f"written epoch {self._last.epoch if self._last else None}. The server has "
                    f"lost transactions that it had confirmed: by a failover to a replica that "
                    f"lagged behind, or because a backup was restored",
                    "Find out which epochs the table lacks, and start the query again: it says how "
                    "to continue.",
                )
            if writes:
                write_rows(connection, self._target, parts)
            self._execute(
                *(connection, _MARK, marker.epoch, marker.token, str(self._target.name)),
                self._query,
            )

    def _execute(self, connection: Any, statement: str, *values: object) -> Any:
        sql = import_psycopg().sql
        return connection.execute(sql.SQL(statement).format(self._markers.identifier), values)


ROW_NUMBER = "epochal_row"


def write_rows(connection: Any, target: PostgresTarget, parts: Sequence[bytes]) -> None:
    """Write CSV text with the target's columns: append, replace by key, or replace all.

    Rows to be replaced by key go through a temporary table, which belongs to the session and is
    emptied at each commit. Of several rows with the same key the last one counts.

    Replacing all rows deletes them, and does not truncate the table: after `TRUNCATE`, readers with
    an older snapshot see an empty table, and others wait.
    """
    sql = import_psycopg().sql
    columns = joined_names(column.name for column in target.columns)
    if target.complete:
        connection.execute(sql.SQL("DELETE FROM {}").format(target.name.identifier))
    if not target.keys:
        _copy(connection, target.name.identifier, columns, parts)
        return
    staging, number = sql.Identifier(_staging_name(target)), _row_number(target)
    typed = typed_columns(target.columns)
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


def _merge(target: PostgresTarget, staging: Any, columns: Any, number: Any) -> Any:
    sql = import_psycopg().sql
    others = [column.name for column in target.columns if column.name not in target.keys]
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
        keys=joined_names(target.keys),
    )


def _row_number(target: PostgresTarget) -> Any:
    """The name of a column that the target does not have."""
    name = ROW_NUMBER
    while any(column.name == name for column in target.columns):
        name += "_"
    return import_psycopg().sql.Identifier(name)


def _staging_name(target: PostgresTarget) -> str:
    """A name that is the same only for the same columns: poolers hand sessions to others."""
    columns = [f"{column.name} {column.type}" for column in target.columns]
    text = "\0".join((str(target.name), *columns))
    return f"epochal_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
