"""Running sums per key: what the tormented query computes. One row out per row in, with the sum.

Each row adds its value plus one, so that sums tell in which order rows came.
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
    "maxRestarts": "1000",
    "maxFruitlessRestarts": "100",
    "slotTimeout": "60 seconds",
    "stateMaintenanceInterval": "1 second",
}
"""Options of a query that is killed again and again."""


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
