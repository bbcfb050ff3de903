"""Turns the server's errors into Epochal's: which can be waited out, and what to do. Pure.

The five characters of SQLSTATE decide. An error at connecting has none, so its text must do. Text
that is not known counts as an outage: it is retried for a while, then raised as it is.
"""

from __future__ import annotations

from typing import Any

from epochal.errors import (
    PostgresError,
    PostgresRejectedError,
    PostgresRowError,
    PostgresUnavailableError,
)

LOCK_NOT_AVAILABLE = "55P03"

_OUTAGES = (
    "08",  # connection
    "53",  # disk full, memory, too many connections
    "57P",  # the server stops or starts
    "57014",  # a statement took longer than statement_timeout
    "58",  # the system's own errors
    "40",  # deadlocks and conflicts: the transaction was rolled back
    LOCK_NOT_AVAILABLE,
    "25006",  # read-only: a standby, during a failover
    "25P03",  # the server ended a session that was idle in a transaction
)
_ROWS = ("22", "23")  # a value, or a constraint
_REMEDIES = {
    "42501": "Grant the user what docs/tables-postgres.md lists",
    "42P01": "Was it dropped? Create it again with the same columns, then start the query",
    "42703": "Was it altered? Add the column again, then start the query",
    "23505": "Another row has the same key. To replace such rows, name the key in the option "
    "mergeKeys",
}
_REFUSALS = (
    "authentication failed",
    "does not exist",
    "pg_hba.conf",
    "permission denied",
    "not permitted to log in",
    "no password supplied",
    "invalid",
    "certificate",
    "does not support SSL",
)
"""Parts of texts that say that the server or libpq refuses, and will refuse again."""


def failure(error: Any, server: str, table: str) -> PostgresError:
    """The error to raise for one of psycopg's."""
    state = error.sqlstate
    if state is None:
        return _of_connection(error, server)
    reason = _reason(error)
    if state.startswith(_ROWS):
        return PostgresRowError(server, table, reason)
    if state.startswith(_OUTAGES):
        return PostgresUnavailableError(server, reason)
    return PostgresRejectedError(server, f"{reason}. It concerns table {table}")


def _of_connection(error: Any, server: str) -> PostgresError:
    text = " ".join(str(error).split()).rstrip(".")
    if any(refusal in text for refusal in _REFUSALS):
        said = text.rpartition("FATAL:")[2].strip()
        return PostgresRejectedError(
            server,
            f"the connection is refused: {said}. Check user, password, database and the settings "
            f"of SSL, and the server's pg_hba.conf",
        )
    return PostgresUnavailableError(server, text or type(error).__name__)


def _reason(error: Any) -> str:
    """What the server said, with the column, the constraint, the row and the remedy."""
    diag = error.diag
    parts = [diag.message_primary or type(error).__name__]
    details = [
        diag.column_name and f"column {diag.column_name}",
        diag.constraint_name and f"constraint {diag.constraint_name}",
        diag.message_detail and diag.message_detail.rstrip("."),
        diag.context and diag.context.splitlines()[0].rstrip("."),
    ]
    told = "; ".join(filter(None, details))
    if told:
        parts.append(f" ({told})")
    remedy = _REMEDIES.get(error.sqlstate or "")
    if remedy:
        parts.append(f". {remedy}")
    return "".join(parts)
