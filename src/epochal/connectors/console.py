"""Prints each epoch on the driver, in the layout of Spark's console sink.

Each task sends the first rows of its epoch with its report, and the driver prints them at the
commit. After a crash an epoch may be printed twice (at least once). Epochs without rows are
skipped, because there may be ten of them per second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TextIO

import pyarrow as pa

from epochal.connectors.arrow_stream import decode_stream, encode_stream
from epochal.connectors.contract import FunctionWriters, Prepare, Sink, SinkWriter, WriterContext
from epochal.connectors.formats import SinkRequest, check_positive
from epochal.record_batches import joined_tables

MAX_CELL_WIDTH = 20
"""Longer cells are cut to this width, as in Spark's `show`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """The options of Spark's console sink."""

    num_rows: int = 20
    truncate: bool = True

    def __post_init__(self) -> None:
        check_positive("console", num_rows=self.num_rows)


class ConsoleWriter(SinkWriter):
    """Keeps the rows that may be printed and drops the rest."""

    def __init__(self, max_rows: int, context: WriterContext) -> None:
        self._max_rows, self._schema = max_rows, context.schema
        self._rows: list[pa.RecordBatch] = []
        self._kept = 0

    def write(self, batch: pa.RecordBatch) -> None:
        # One row more than is printed tells the driver that there are more rows.
        shown = batch.slice(0, max(0, self._max_rows + 1 - self._kept))
        if shown.num_rows:
            self._rows.append(shown)
            self._kept += shown.num_rows

    def cut(self, epoch: int) -> Prepare:
        del epoch
        rows, self._rows, self._kept = self._rows, [], 0
        return lambda: encode_stream(self._schema, rows).to_pybytes() if rows else b""

    def close(self) -> None:
        self._rows.clear()


class ConsoleSink(Sink):
    exactly_once = False

    def __init__(self, options: ConsoleOptions, out: TextIO | None = None) -> None:
        self._options, self._out = options, out or sys.stdout
        self._newest_printed = -1

    @property
    def writers(self) -> FunctionWriters:
        return FunctionWriters(partial(ConsoleWriter, self._options.num_rows))

    def decided(self, epoch: int) -> bool:
        return self._newest_printed >= epoch

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        tables = [decode_stream(message) for message in messages if message]
        if epoch > self._newest_printed and tables:
            shown = render(joined_tables(tables, tables[0].schema), self._options)
            line = "-" * 43
            self._out.write(f"{line}\nBatch: {epoch}\n{line}\n{shown}\n")
            self._out.flush()
        self._newest_printed = max(epoch, self._newest_printed)


def open_console(request: SinkRequest) -> ConsoleSink:
    return ConsoleSink(request.read_options(ConsoleOptions))


def render(table: pa.Table, options: ConsoleOptions) -> str:
    """Draw rows as Spark's `show` does."""
    head = table.to_pylist()[: options.num_rows]
    cells = [[_cell(value, options) for value in row.values()] for row in head]
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
    if not options.truncate or len(text) <= MAX_CELL_WIDTH:
        return text
    return text[: MAX_CELL_WIDTH - 3] + "..."
