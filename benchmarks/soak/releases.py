"""What the query computes in each of its releases, and what the table must then contain.

Each row adds its own value and the release's weight to the total of its key, so a total tells how
often and by which release each row was counted. A second state variable counts the rows of the key;
from the second release on the table has one more column, which shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

KEYS = 1_000
INPUT = "n long, k long, due long"
OUTPUT = "n long, k long, due long, total long, release int"
MORE = f"{OUTPUT}, handled long"
WITH_HANDLED = 1
"""The first release that writes how many rows of the key were handled."""


def weight(release: int) -> int:
    """What a release adds to each row's own value."""
    return release % 5 + 1


def parallelism(release: int) -> int:
    """Releases take turns with one and two tasks, so that partitions move between consumers."""
    return 2 - release % 2


def numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Parse the records: number and due time as text, with a comma between them."""
    for batch in batches:
        parts = pc.split_pattern(batch.column("value").cast(pa.string()), ",")
        n, due = (pc.list_element(parts, place).cast(pa.int64()) for place in (0, 1))
        k = pc.subtract(n, pc.multiply(pc.divide(n, KEYS), KEYS))
        yield pa.RecordBatch.from_arrays([n, k, due], names=["n", "k", "due"])


class Totals(StatefulProcessor):  # type: ignore[misc]
    """Adds up the rows of a key."""

    def __init__(self, release: int) -> None:
        self._release = release

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")
        self.handled = handle.getValueState("handled", "handled long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        total, handled = _value(self.total), _value(self.handled)
        for row in rows:
            total, handled = total + row.n + weight(self._release), handled + 1
            more = {"handled": handled} if self._release >= WITH_HANDLED else {}
            yield Row(n=row.n, k=key[0], due=row.due, total=total, release=self._release, **more)
        self.total.update((total,))
        self.handled.update((handled,))

    def close(self) -> None:
        pass


def _value(state: Any) -> int:
    found = state.get()
    return 0 if found is None else int(found[0])
