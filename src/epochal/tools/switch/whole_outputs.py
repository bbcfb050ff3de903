"""A Kafka topic or a PostgreSQL table, which do not tell the epoch of a record or row.

So only whole topics and tables can be compared. A topic is read by the source of continuous
queries, from `startingOffsets` (by default from the beginning) to where it ends now. Records of
transactions that are open or aborted are left out.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from epochal.connectors.kafka.source.kafka_source import KafkaSource
from epochal.connectors.kafka.source.source_options import read_source_options
from epochal.connectors.postgres.postgres_options import import_psycopg
from epochal.errors import KafkaUnavailableError, OptionError
from epochal.files.local import LocalFiles
from epochal.tools.switch.compare_rows import Row
from epochal.tools.switch.query_outputs import WholeOutput

MAX_ROWS = 10_000
PATIENCE_SECONDS = 60.0
DEFAULTS = {"startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
COMPARED = ("key", "value", "headers")


class KafkaOutput(WholeOutput):
    """A topic as it is now."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._topic = parts.path.strip("/")
        if not parts.netloc or not self._topic:
            raise OptionError(
                f"{address}: a Kafka topic is given as kafka://HOST:PORT/TOPIC, with options of "
                f"the Kafka source after a question mark, if there are any."
            )
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        own = {"kafka.bootstrap.servers": parts.netloc, "subscribe": self._topic}
        starts = {"startingOffsets"} if any("starting" in name.lower() for name in given) else set()
        kept = {name: value for name, value in DEFAULTS.items() if name not in starts}
        self._options = read_source_options({**kept, **given, **own})

    @property
    def name(self) -> str:
        return f"Kafka topic {self._topic}"

    def rows(self, parts: Iterable[str]) -> Iterator[Row]:
        if not list(parts):
            return
        with (
            tempfile.TemporaryDirectory(prefix="epochal-shadow-") as scratch,
            closing(KafkaSource(self._options, LocalFiles(scratch, durable=False), 0)) as source,
        ):
            end = source.latest()
            with closing(source.readers.open(source.initial())) as reader:
                patience = time.monotonic() + PATIENCE_SECONDS
                while source.lag(reader.positions(), end) > 0:
                    batch = reader.read(MAX_ROWS)
                    if batch is not None:
                        patience = time.monotonic() + PATIENCE_SECONDS
                        yield from map(row_of, batch.to_pylist())
                    elif time.monotonic() > patience:
                        raise KafkaUnavailableError(
                            self._options.servers,
                            f"topic {self._topic} ends at {dict(end)}, but nothing has come for "
                            f"{PATIENCE_SECONDS:g} s after {dict(reader.positions())}",
                        )
                    else:
                        time.sleep(0.01)


def row_of(record: dict[str, Any]) -> Row:
    """What is compared of a record. The fields of a JSON object become columns `value.FIELD`."""
    row = {name: _text(record[name]) for name in COMPARED if record.get(name) is not None}
    try:
        fields = json.loads(row.get("value", ""))
    except (TypeError, ValueError):
        return row
    if not isinstance(fields, dict):
        return row
    del row["value"]
    return row | {f"value.{name}": each for name, each in fields.items()}


def _text(value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value  # it is compared as hexadecimal digits


class PostgresOutput(WholeOutput):
    """A table as it is now."""

    def __init__(self, address: str) -> None:
        self._server, _, table = address.partition("#")
        if not table:
            raise OptionError(
                "A PostgreSQL table is given as postgresql://USER@HOST/DATABASE#SCHEMA.TABLE; the "
                "part after # is missing."
            )
        self._table = tuple(table.split("."))

    @property
    def name(self) -> str:
        return f"PostgreSQL table {'.'.join(self._table)}"

    def rows(self, parts: Iterable[str]) -> Iterator[Row]:
        if not list(parts):
            return
        psycopg = import_psycopg()
        query = psycopg.sql.SQL("SELECT * FROM {}").format(psycopg.sql.Identifier(*self._table))
        with (
            psycopg.connect(self._server) as connection,
            connection.cursor(name="epochal_shadow") as cursor,
        ):
            cursor.execute(query)
            for values in cursor:
                names = [column.name for column in cursor.description]
                yield dict(zip(names, values, strict=True))
