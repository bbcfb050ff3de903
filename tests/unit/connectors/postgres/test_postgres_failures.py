"""Which of the server's errors are waited out, and which end the query."""

from __future__ import annotations

import psycopg
import pytest

from epochal.connectors.postgres.postgres_failures import failure
from epochal.errors import PostgresRejectedError, PostgresRowError, PostgresUnavailableError


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("08006", PostgresUnavailableError),
        ("57P01", PostgresUnavailableError),
        ("57P03", PostgresUnavailableError),
        ("53100", PostgresUnavailableError),
        ("40P01", PostgresUnavailableError),
        ("25006", PostgresUnavailableError),
        ("23505", PostgresRowError),
        ("22003", PostgresRowError),
        ("42501", PostgresRejectedError),
        ("42P01", PostgresRejectedError),
    ],
)
def test_the_state_decides(state: str, kind: type[Exception]) -> None:
    assert type(failure(psycopg.errors.lookup(state)("said"), "db:5432/x", "t")) is kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('connection failed: FATAL:  password authentication failed for user "u"', "Rejected"),
        ('connection failed: FATAL:  database "x" does not exist', "Rejected"),
        ("connection failed: FATAL:  the database system is starting up", "Unavailable"),
        (
            "connection failed: FATAL:  the database system is not yet accepting connections",
            "Unavailable",
        ),
        ("connection failed: FATAL:  the database system is in recovery mode", "Unavailable"),
        ('connection failed: FATAL:  no pg_hba.conf entry for host "h"', "Rejected"),
        ("connection failed: FATAL:  sorry, too many clients already", "Unavailable"),
        ("connection failed: fe_sendauth: no password supplied", "Rejected"),
        ('invalid sslmode value: "yes"', "Rejected"),
        ("connection failed: server does not support SSL, but SSL was required", "Rejected"),
        ("SSL SYSCALL error: EOF detected", "Unavailable"),
        ("SSL connection has been closed unexpectedly", "Unavailable"),
        ("connection failed: Connection refused", "Unavailable"),
        ("server closed the connection unexpectedly", "Unavailable"),
    ],
)
def test_without_a_state_the_text_decides(text: str, kind: str) -> None:
    found = failure(psycopg.OperationalError(text), "db:5432/x", "t")
    assert type(found).__name__ == f"Postgres{kind}Error"
