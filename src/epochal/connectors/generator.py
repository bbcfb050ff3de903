"""A source made from a Python function: the shortest way to write your own source.

`generate(partition, start)` yields record batches, beginning with row `start` of its partition,
and yields None whenever it has no rows right now. It must be repeatable: called again with the
same start it yields the same rows, though the batches may differ. For more control, write a class
that implements `contract.Source` and pass it, or an instance, to `format(...)`.

Note: the function runs on the thread that moves all rows of its task, so it must not wait. If it
has no rows, it yields None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from epochal.checkpoint.spark_json import parse_object, to_json
from epochal.connectors.contract import FunctionReaders, Offset, Positions, Source, SourceReader
from epochal.errors import MalformedFileError, OptionError

Generate: TypeAlias = Callable[[int, int], Iterator[pa.RecordBatch | None]]


class GeneratorReader(SourceReader):
    """Reads from one generator per partition, in turn."""

    def __init__(self, generate: Generate, schema: pa.Schema, partitions: Positions) -> None:
        self._schema = schema
        self._at = {name: _row(text) for name, text in partitions.items()}
        self._ends: dict[str, int] = {}
        self._rows = {name: generate(int(name), at) for name, at in self._at.items()}
        self._left: dict[str, pa.RecordBatch] = {}
        self._names = deque(self._at)

    def read(self, max_rows: int) -> pa.RecordBatch | None:
        self._names.rotate(-1)
        for name in self._names:
            room = min(max_rows, self._ends.get(name, self._at[name] + max_rows) - self._at[name])
            batch = self._next(name) if room > 0 else None
            if batch is None or not batch.num_rows:
                continue
            taken = batch.slice(0, room)
            if taken.num_rows < batch.num_rows:
                self._left[name] = batch.slice(taken.num_rows)
            self._at[name] += taken.num_rows
            return taken
        return None

    def positions(self) -> Positions:
        return {name: str(at) for name, at in self._at.items()}

    def limit(self, ends: Positions) -> None:
        self._ends = {name: _row(text) for name, text in ends.items()}

    def close(self) -> None:
        self._rows.clear()

    def _next(self, name: str) -> pa.RecordBatch | None:
        if name in self._left:
            return self._left.pop(name)
        batch = next(self._rows[name], None)
        if batch is not None and not batch.schema.equals(self._schema):
            raise OptionError(
                f"The generator of partition {name} yielded rows with the schema {batch.schema}, "
                f"but its source was declared with {self._schema}. Make them the same."
            )
        return batch


class GeneratorSource(Source):
    """The driver's side. Its offset is the row count per partition; Spark has no such source."""

    def __init__(self, schema: pa.Schema, generate: Generate, *, partitions: int = 1) -> None:
        if partitions <= 0:
            raise OptionError(f"A generator source needs at least one partition, not {partitions}.")
        self._schema, self._generate, self._partitions = schema, generate, partitions

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def readers(self) -> FunctionReaders:
        return FunctionReaders(partial(GeneratorReader, self._generate, self._schema))

    def initial(self) -> Positions:
        return {str(p): "0" for p in range(self._partitions)}

    def resume(self, offset: Offset) -> Positions:
        rows = parse_object(offset, "generator offset")
        return {name: str(_row(str(at))) for name, at in rows.items()}

    def offset(self, positions: Positions) -> Offset:
        return to_json({name: _row(at) for name, at in sorted(positions.items())})

    def lag(self, positions: Positions, latest: Positions) -> int:
        return sum(max(0, _row(at) - _row(positions.get(p, "0"))) for p, at in latest.items())


def _row(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise MalformedFileError("generator position", f"{text[:40]!r} is not a row number")
    return int(text)
