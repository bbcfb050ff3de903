"""The options of `write_stream.format("postgres")`, and the connection they describe.

Names are those of Spark's JDBC sink where it has them. A password is best kept out of the query:
libpq reads `PGPASSWORD` and `~/.pgpass` by itself, and `passwordFile` names a file with nothing
else in it. Options are never written to the checkpoint, and no error contains them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from epochal.errors import OptionError

DEFAULTS: Mapping[str, str] = {
    "application_name": "epochal",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    "target_session_attrs": "read-write",
}
"""Settings of the connection: notice within half a minute that a server has vanished, and choose
the server of several that accepts writes."""

_FORM = (
    "Use postgresql://user@host:5432/database, or the options host, port, database, user and "
    "password. In a url, write @, :, /, ? and % of a password as %40, %3A, %2F, %3F and %25."
)
_IDENTIFIER = r'"(?:[^"]|"")+"|[\w$]+'
_JDBC = {
    "user": "user",
    "password": "password",
    "sslmode": "sslmode",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslrootcert": "sslrootcert",
    "connectTimeout": "connect_timeout",
    "ApplicationName": "application_name",
}
"""Parameters of JDBC addresses that libpq knows, under another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSinkOptions:
    """Where to write, how, and how long to wait for the server."""

    dbtable: str
    """`table` or `schema.table`, as in SQL: without quotes upper case becomes lower case."""

    url: str | None = field(default=None, repr=False)
    host: str | None = None
    port: int | None = None
    database: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    schema: str | None = None
    connection: Mapping[str, str] = field(
        default_factory=dict, repr=False, metadata={"prefix": "connection."}
    )

    merge_keys: tuple[str, ...] = ()
    """The columns that identify a row: a later row replaces an earlier one with the same keys."""

    create_table: bool = True
    """Whether to create the table, and the marker table, if it does not exist."""

    marker_table: str = "epochal_markers"
    """Where the newest epoch of each query is kept, in the schema of the table."""

    server_timeout: timedelta = timedelta(seconds=90)
    """How long a start or a commit waits for a server that does not answer. Must be shorter than
    stallTimeout."""

    lock_timeout: timedelta = timedelta(seconds=10)
    """How long a start waits for the transaction of an earlier run before it ends that run's
    session."""

    reset_marker: int | None = None
    """Continue although the marker does not match, if this is the newest committed epoch."""

    def __post_init__(self) -> None:
        given = [name for name in ("host", "port", "database") if getattr(self, name) is not None]
        if self.url is not None and given:
            raise OptionError(
                f"postgres: url and {given[0]} both name the server. Give only one of them."
            )
        if self.password is not None and self.password_file is not None:
            raise OptionError("postgres: give either password or passwordFile, not both.")
        if not self.lock_timeout > timedelta(0):
            raise OptionError("postgres: lockTimeout must be longer than 0 seconds.")


def connection_settings(options: PostgresSinkOptions) -> dict[str, str]:
    """The settings for libpq. What is not given, libpq takes from its environment variables."""
    psycopg = import_psycopg()
    try:
        parts = psycopg.conninfo.conninfo_to_dict(_libpq_url(options.url)) if options.url else {}
        own = {
            "host": options.host,
            "port": options.port,
            "dbname": options.database,
            "user": options.user,
            "password": _password(options),
        }
        parts |= {name: str(value) for name, value in own.items() if value is not None}
        merged = {**DEFAULTS, **parts, **options.connection}
        psycopg.conninfo.make_conninfo(**merged)  # checks the names
    except psycopg.ProgrammingError as error:
        reason = _without_quoted(str(error), options.connection)
        raise OptionError(
            f"postgres: the server's address is not valid ({reason}). {_FORM}"
        ) from None
    if options.url and any("@" in parts.get(name, "") for name in ("host", "port", "dbname")):
        raise OptionError(f"postgres: the url has an @ behind its host. {_FORM}")
    if not all(port.isdigit() for port in merged.get("port", "0").split(",") if port):
        raise OptionError(f"postgres: the port is not a number. {_FORM}")
    return {**merged, "client_encoding": "UTF8"}


def _without_quoted(said: str, names: Collection[str]) -> str:
    """The message of libpq without what it quotes, which may be a part of a password.

    A password that is not encoded can end up in any part of an address. Only the names of settings
    are repeated.
    """
    start, *parts = " ".join(said.split()).split('"')
    if not parts:
        return start
    quoted, end = '"'.join(parts[:-1]), parts[-1]
    return f'{start}"{quoted if quoted in names else "…"}"{end}'


def server_name(settings: Mapping[str, str]) -> str:
    """The server and the database, without user and password."""
    host, port = settings.get("host", "the default host"), settings.get("port", "5432")
    database = settings.get("dbname", "the default database")
    return f"{host}:{port}/{database}"


def table_name(text: str, schema: str | None, option: str = "dbtable") -> tuple[str | None, str]:
    """Schema and table of a name as SQL reads it: without quotes upper case becomes lower case."""
    if not re.fullmatch(f"(?:{_IDENTIFIER})(?:[.](?:{_IDENTIFIER}))*", text.strip()):
        raise OptionError(
            f"postgres: {option}={text!r} is not the name of a table. Write it as in SQL: table, "
            f'schema.table or "My Table".'
        )
    parts = [
        part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()
        for part in re.findall(_IDENTIFIER, text)
    ]
    if len(parts) > 2 or (len(parts) == 2 and schema is not None):
        raise OptionError(
            f"postgres: {option}={text!r} must be a table, or a schema and a table"
            + ("." if schema is None else f"; the option schema already names {schema!r}.")
        )
    return (schema, parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def import_psycopg() -> Any:
    """Import the client on demand: it is an optional dependency."""
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError:
        raise OptionError(
            "PostgreSQL needs its client, which is not installed. Run `pip install "
            "'epochal[postgres]'`."
        ) from None
    return psycopg


def _password(options: PostgresSinkOptions) -> str | None:
    if options.password_file is None:
        return options.password
    try:
        return Path(options.password_file).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise OptionError(
            f"postgres: passwordFile {options.password_file} cannot be read ({error.strerror}). It "
            f"must be on the driver's host and contain nothing but the password."
        ) from None


def _libpq_url(url: str) -> str:
    """A JDBC address as libpq reads it; others unchanged."""
    if not url.startswith("jdbc:"):
        return url
    place, _, query = url.removeprefix("jdbc:").partition("?")
    settings, unknown = {}, []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "ssl":
            settings["sslmode"] = "verify-full" if value.lower() in ("", "true") else "prefer"
        elif name == "currentSchema":
            settings["options"] = f"-csearch_path={value}"
        elif name in _JDBC:
            settings[_JDBC[name]] = value
        else:
            unknown.append(name)
    if not all(name.isidentifier() for name in unknown):
        raise OptionError(f"postgres: the parameters of the url cannot be read. {_FORM}")
    if unknown:
        raise OptionError(
            f"postgres: the url has parameter {unknown[0]}, which only the JDBC driver knows. "
            f"Remove it, or give libpq's setting with the prefix connection."
        )
    return f"{place}?{urlencode(settings, quote_via=quote)}" if settings else place
