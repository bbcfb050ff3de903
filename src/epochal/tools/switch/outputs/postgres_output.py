"""A PostgreSQL table. No row tells which epoch wrote it, so only whole tables can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from epochal.connectors.postgres.postgres_options import import_psycopg
from epochal.errors import OptionError
from epochal.tools.switch.compare_rows import Row
from epochal.tools.switch.output_contract import WholeOutput


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
