"""Epochs printed on the driver, as Spark's console sink prints batches.

Each task sends the first rows of its epoch along with its report; the driver prints them at the
commit. After a crash an epoch may be printed twice: at least once. Epochs without rows are passed
over, for there may be ten of them a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

import pyarrow as pa

from epochal.connectors.arrow_ipc import from_ipc, to_ipc
from epochal.connectors.contract import Prepare, WriterContext
from epochal.errors import OptionError

CELL = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """What Spark's console sink takes."""

    num_rows: int = 20
    truncate: bool = True

    def __post_init__(self) -> None:
        if self.num_rows <= 0:
            raise OptionError(f"console: numRows must be positive, not {self.num_rows}.")


class ConsoleWriter:
    """Keeps as many rows as may be printed, and counts the rest."""

    def __init__(self, rows: int, context: WriterContext) -> None:
        self._most, self._schema = rows, context.schema
        self._rows: list[pa.RecordBatch] = []
        self._kept = 0

    def write(self, batch: pa.RecordBatch) -> None:
        # One more than may be printed tells the driver that there are more.
        kept = batch.slice(0, max(0, self._most + 1 - self._kept))
        if kept.num_rows:
            self._rows.append(kept)
            self._kept += kept.num_rows

    def cut(self, epoch: int) -> Prepare:
        del epoch
        rows, self._rows, self._kept = self._rows, [], 0
        return lambda: to_ipc(self._schema, rows) if rows else b""

    def close(self) -> None:
        self._rows.clear()


@dataclass(frozen=True, slots=True)
class ConsoleWriters:
    """Opens writers in tasks."""

    rows: int

    def open(self, context: WriterContext) -> ConsoleWriter:
        return ConsoleWriter(self.rows, context)


class ConsoleSink:
    """The driver's side."""

    exactly_once = False
    decides = False

    def __init__(self, options: ConsoleOptions, out: TextIO | None = None) -> None:
        self._options, self._out = options, out or sys.stdout
        self._printed = -1

    @property
    def writers(self) -> ConsoleWriters:
        return ConsoleWriters(self._options.num_rows)

    def fence(self, attempt: int) -> None:
        del attempt

    def decided(self, epoch: int) -> bool:
        return self._printed >= epoch

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        tables = [from_ipc(message) for message in messages if message]
        if epoch > self._printed and tables:
            shown = render(pa.concat_tables(tables), self._options)
            line = "-" * 43
            self._out.write(f"{line}\nBatch: {epoch}\n{line}\n{shown}\n")
            self._out.flush()
        self._printed = max(epoch, self._printed)

    def close(self) -> None:
        pass


def render(table: pa.Table, options: ConsoleOptions) -> str:
    """Rows as Spark's `show` draws them."""
    head = table.slice(0, options.num_rows)
    cells = [[_cell(value, options) for value in row.values()] for row in head.to_pylist()]
    heads = [_cell(name, options) for name in table.schema.names]
    widths = [max(3, *map(len, column)) for column in zip(heads, *cells, strict=True)]
    rule = "+" + "+".join("-" * width for width in widths) + "+"
    lines = [
        "|" + "|".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + "|"
        for row in (heads, *cells)
    ]
    more = table.num_rows > options.num_rows
    note = f"only showing top {options.num_rows} rows\n" if more else ""
    return "\n".join([rule, lines[0], rule, *lines[1:], rule]) + f"\n{note}"


def _cell(value: object, options: ConsoleOptions) -> str:
    text = "NULL" if value is None else str(value)
    return text if not options.truncate or len(text) <= CELL else text[: CELL - 3] + "..."
