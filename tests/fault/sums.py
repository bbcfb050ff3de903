"""Running sums per key, which the fault tests' queries compute: one row out per row in.

Each row adds its value plus one, so that the sums show in which order rows were processed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

KEYS = 40
OUTPUT = "value long, k long, total long"
ENDURING = {
    "parallelism": "2",
    "statePartitions": "4",
    "maxRestarts": "100",
    "slotTimeout": "60 seconds",
    "publishInterval": "1 second",
}
"""Options for a query that is killed repeatedly."""


class RunningSum(StatefulProcessor):  # type: ignore[misc]
    """Adds up the values of a key."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        found = self.total.get()
        total = 0 if found is None else found[0]
        for row in rows:
            total += row.value + 1
            yield Row(value=row.value, k=key[0], total=total)
        self.total.update((total,))

    def close(self) -> None:
        pass
