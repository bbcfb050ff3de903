"""A process that watches a table and notes when rows become visible in it.

    python -m benchmarks.tables.watching delta|iceberg|postgres PLACE NOTES

It has the table open, as a reader would that follows it, and looks again every 10 ms. A row counts
as visible when the look that found it has returned, with the file or the rows read. Compaction
moves rows to other files: only the first sight of a row counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from benchmarks.due_rows import Notes

LOOK_SECONDS = 0.01
CATALOG, TABLE = "bench", "bench.rows"


def catalog_settings(place: str) -> dict[str, str]:
    """The settings of the catalog of an Iceberg table below a directory."""
    return {"type": "sql", "uri": f"sqlite:///{place}/catalog.db", "warehouse": f"file://{place}"}


class FirstSight:
    """Which rows were seen, by their number."""

    def __init__(self) -> None:
        self._seen = np.zeros(1 << 20, bool)

    def due(self, path: str) -> Any:
        """When the rows of a file were due that were not seen before."""
        table = pq.read_table(path.removeprefix("file://"), columns=["value", "due"])
        numbers, due = (table.column(name).to_numpy() for name in ("value", "due"))
        if len(numbers) and (missing := int(numbers.max()) + 1 - len(self._seen)) > 0:
            self._seen = np.append(self._seen, np.zeros(missing + len(self._seen), bool))
        new = ~self._seen[numbers]
        self._seen[numbers] = True
        return due[new]


def delta_rows(place: str) -> Callable[[], Iterator[Any]]:
    from deltalake import DeltaTable

    table, known, rows = DeltaTable(place), set[str](), FirstSight()

    def look() -> Iterator[Any]:
        table.update_incremental()
        found = set(table.file_uris())
        for path in sorted(found - known):
            yield rows.due(path)
        known.update(found)

    return look


def iceberg_rows(place: str) -> Callable[[], Iterator[Any]]:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(CATALOG, **catalog_settings(place))
    known, rows = set[str](), FirstSight()

    def look() -> Iterator[Any]:
        found = {task.file.file_path for task in catalog.load_table(TABLE).scan().plan_files()}
        for path in sorted(found - known):
            yield rows.due(path)
        known.update(found)

    return look


def postgres_rows(place: str) -> Callable[[], Iterator[Any]]:
    import psycopg

    connection = psycopg.connect(place, autocommit=True)
    newest = 0

    def look() -> Iterator[Any]:
        nonlocal newest
        # `n` is counted up by the server; one transaction writes at a time, so none comes late.
        rows = connection.execute("SELECT n, due FROM bench WHERE n > %s", (newest,)).fetchall()
        if rows:
            newest = max(n for n, _ in rows)
            yield [due for _, due in rows]

    return look


LOOKS = {"delta": delta_rows, "iceberg": iceberg_rows, "postgres": postgres_rows}


def main(kind: str, place: str, directory: str) -> None:
    """Watch until the process is killed. The table may not exist yet."""
    notes, look = Notes(directory, "watched"), None
    while True:
        try:
            look = look or LOOKS[kind](place)
            for due in look():
                if len(due):
                    notes.take(due, len(due))
        except Exception as error:  # noqa: BLE001  no table yet, or a file that was compacted away
            (Path(directory) / "last-error").write_text(repr(error))
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
