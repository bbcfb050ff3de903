"""Functions and processors with state that queries before and after a change use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

OUTPUT = "k string, total bigint, seen bigint"


class Totals(StatefulProcessor):  # type: ignore[misc]
    """Adds up `v` in the variable `total`, and counts rows in `seen` if it is declared.

    A variable is declared by its kind and columns: `total="Value n bigint"`.
    """

    def __init__(self, **declared: str) -> None:
        self.declared: Mapping[str, tuple[str, str]] = {
            name: (text.partition(" ")[0], text.partition(" ")[2])
            for name, text in declared.items()
        }

    def init(self, handle: Any) -> None:
        self.states = {
            name: getattr(handle, f"get{kind}State")(name, columns)
            for name, (kind, columns) in self.declared.items()
        }

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        values = [int(row["v"]) for row in rows]
        yield Row(
            k=key[0], total=self._add("total", sum(values)), seen=self._add("seen", len(values))
        )

    def _add(self, name: str, more: int) -> int:
        if name not in self.declared:
            return 0
        kind, columns = self.declared[name]
        state = self.states[name]
        old = list(state.get()) if kind == "List" else [state.get()]
        total = more + sum(int(each[0]) for each in old if each is not None)
        rest = (None,) * columns.count(",")
        new = (float(total) if "double" in columns else total, *rest)
        if kind == "List":
            state.put([new])
        else:
            state.update(new)
        return total


def processed(
    rows: DataFrame, by: str = "k", time: str = "None", mode: str = "Update", **declared: str
) -> DataFrame:
    return rows.groupBy(by).transformWithState(
        statefulProcessor=Totals(**declared),
        outputStructType=OUTPUT,
        outputMode=mode,
        timeMode=time,
    )


def added(
    rows: DataFrame, by: str = "k", state: str = "n bigint", timeout: str = "NoTimeout"
) -> DataFrame:
    def add(key: Any, frames: Iterable[pd.DataFrame], kept: Any) -> Iterator[pd.DataFrame]:
        total = (kept.get[0] if kept.exists else 0) + sum(int(each["v"].sum()) for each in frames)
        rest = (0,) * state.count(",")
        kept.update((float(total) if "double" in state else total, *rest))
        yield pd.DataFrame({"k": [key[0]], "total": [int(total)]})

    grouped = rows.groupBy(by)
    return grouped.applyInPandasWithState(add, "k string, total bigint", state, "update", timeout)
