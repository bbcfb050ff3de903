"""Errors of PostgreSQL."""

from __future__ import annotations

from epochal.errors.base import EpochalError


class PostgresError(EpochalError):
    """A PostgreSQL server rejected a request or failed."""

    def __init__(self, server: str, reason: str) -> None:
        """`server` is its address and database, without user and password."""
        super().__init__(server, reason)
        self.server, self.reason = server, reason

    def __str__(self) -> str:
        return f"PostgreSQL at {self.server}: {self.reason}"


class PostgresUnavailableError(PostgresError):
    """A server cannot be reached, is starting or stopping, or lacks resources."""

    def __str__(self) -> str:
        return (
            f"PostgreSQL at {self.server} is unavailable: {self.reason}. No row of the epoch is "
            f"visible unless its marker is. Check the server and the network."
        )


class PostgresRejectedError(PostgresError):
    """A request would fail again: credentials, permissions, or a table that does not fit."""


class PostgresRowError(PostgresRejectedError):
    """A row of a query's output cannot be written to the table."""

    def __init__(self, server: str, table: str, reason: str) -> None:
        super().__init__(server, reason)
        self.args = (server, table, reason)
        self.table = table

    def __str__(self) -> str:
        return (
            f"PostgreSQL at {self.server}, table {self.table}: {self.reason}. No row of the epoch "
            f"was written; the query repeats the epoch at its next start. Correct the query, the "
            f"table or the rows that it contains."
        )


class PostgresFencedError(PostgresError):
    """Another run of the query has taken over its marker."""

    def __init__(self, server: str, query: str, reason: str) -> None:
        super().__init__(server, reason)
        self.args = (server, query, reason)
        self.query = query

    def __str__(self) -> str:
        return (
            f"PostgreSQL at {self.server} has shut out this run of query {self.query}: "
            f"{self.reason}. None of its later rows are visible. Run one query per checkpoint."
        )
