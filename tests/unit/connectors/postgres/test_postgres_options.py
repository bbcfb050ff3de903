"""Addresses, passwords and names of tables; which errors of the server are waited out."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from epochal.connectors.postgres.postgres_failures import failure
from epochal.connectors.postgres.postgres_options import (
    PostgresSinkOptions,
    connection_settings,
    server_name,
    table_name,
)
from epochal.errors import (
    OptionError,
    PostgresRejectedError,
    PostgresRowError,
    PostgresUnavailableError,
)
from epochal.options import read_options


def options(**given: str) -> PostgresSinkOptions:
    return read_options(PostgresSinkOptions, {"dbtable": "t", **given}, of="postgres")


def settings(**given: str) -> dict[str, str]:
    found = connection_settings(options(**given))
    wanted = ("host", "port", "dbname", "user", "password", "sslmode", "options")
    return {name: found[name] for name in wanted if name in found}


def test_an_address_of_libpq_and_one_of_jdbc_mean_the_same() -> None:
    expected = {"host": "db", "port": "5433", "dbname": "sales", "user": "u", "password": "p w"}
    assert settings(url="postgresql://u:p%20w@db:5433/sales") == expected
    assert settings(url="jdbc:postgresql://db:5433/sales?user=u&password=p%20w") == expected
    parts = {"host": "db", "port": "5433", "database": "sales", "user": "u", "password": "p w"}
    assert settings(**parts) == expected


def test_user_and_password_may_complete_an_address() -> None:
    found = settings(url="jdbc:postgresql://db/sales?ssl=true", user="u", password="p")
    assert found == {
        "host": "db",
        "dbname": "sales",
        "user": "u",
        "password": "p",
        "sslmode": "verify-full",
    }


def test_a_schema_in_a_jdbc_address_becomes_the_search_path() -> None:
    found = settings(url="jdbc:postgresql://db/sales?currentSchema=mine")
    assert found["options"] == "-csearch_path=mine"


def test_a_password_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    assert settings(host="db", passwordFile=str(file))["password"] == "s3cret"
    with pytest.raises(OptionError, match=r"passwordFile .* cannot be read"):
        settings(host="db", passwordFile=str(tmp_path / "absent"))
    with pytest.raises(OptionError, match="either password or passwordFile"):
        options(password="x", passwordFile="y")


def test_settings_of_the_connection_are_passed_on_and_replace_our_own() -> None:
    found = connection_settings(
        options(host="db", **{"connection.sslmode": "require", "connection.connect_timeout": "3"})
    )
    assert (found["sslmode"], found["connect_timeout"]) == ("require", "3")
    assert found["client_encoding"] == "UTF8"


@pytest.mark.parametrize(
    "given",
    [
        {"url": "postgresql://u:s3cret@db:port/x"},
        {"url": "s3cret"},
        {"url": "postgresql://u:s3cret@db/x?nonsense=1"},
        {"url": "jdbc:postgresql://db/x?password=s3cret&prepareThreshold=0"},
        {"host": "db", "password": "s3cret", "connection.nonsense": "1"},
        {"url": "postgresql://u:s3cret@db/x", "host": "other"},
        # A password with characters that an address must encode ends up in its other parts.
        {"url": "postgresql://u:s3cret%zz@db/x"},
        {"url": "postgresql://u:s3cret/more@db/x"},
        {"url": "postgresql://u:1/s3cret@db/x"},
        {"url": "postgresql://u:p@s3cret@db/x"},
        {"url": 'postgresql://u:p"%zz"s3cret@db/x'},
        {"url": "postgresql://u:%zz\ns3cret@db/x"},
        {"url": "jdbc:postgresql://u:p?s3cret&x@db/x"},
        {"url": "host=db password=p s3cret"},
        {"url": "host=db password='s3cret"},
    ],
)
def test_no_refusal_contains_the_password(given: dict[str, str]) -> None:
    with pytest.raises(OptionError) as refusal:
        settings(**given)
    assert "s3cret" not in str(refusal.value)
    assert "s3cret" not in repr(options(password="s3cret", **{"connection.password": "s3cret"}))


def test_a_setting_that_libpq_does_not_know_is_named() -> None:
    with pytest.raises(OptionError, match='invalid connection option "nonsense"'):
        settings(host="db", **{"connection.nonsense": "1"})


def test_a_server_is_named_without_user_and_password() -> None:
    found = connection_settings(options(url="postgresql://u:p@db:5433/sales"))
    assert server_name(found) == "db:5433/sales"


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ("Events", None, (None, "events")),
        ("sales.Events", None, ("sales", "events")),
        ('"My Sales"."Ev.ents"', None, ("My Sales", "Ev.ents")),
        ('"say ""hi"""', None, (None, 'say "hi"')),
        ("events", "Sales", ("Sales", "events")),
    ],
)
def test_names_are_read_as_sql_reads_them(
    text: str, schema: str | None, expected: tuple[str | None, str]
) -> None:
    assert table_name(text, schema) == expected


@pytest.mark.parametrize(
    "text", ["", "a b", "(SELECT 1) x", "a.", ".a", "a.b.c", '"a', '"a"b', '""']
)
def test_what_is_no_name_of_a_table_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="dbtable"):
        table_name(text, None)
    with pytest.raises(OptionError, match="already names"):
        table_name("a.b", "c")


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
