"""Runs a stateful operator without the engine: one turn per batch, stores as dicts.

With a database in `on_disk`, operators read their state from it. What an epoch changed reaches the
database only when the next epoch ends, as if it were being written meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.contract import Moment, StatefulOperator, StatefulSpec
from epochal.state.disk.disk_rows import DiskRows, DiskStates, DiskVersion
from epochal.state.disk.local_database import LocalDatabase
from epochal.state.rows.arrow_types import spark_schema
from epochal.state.rows.murmur3 import partition_ids
from epochal.state.rows.row_codec import RowCodec
from epochal.state.rows.unsafe_row import decode_row, encode_row
from epochal.state.store.contract import PlainForm

Rows = list[dict[str, Any]]

on_disk: ContextVar[LocalDatabase | None] = ContextVar("on_disk", default=None)
"""The database of the drivers that a test makes; None for state in memory."""


class Driver:
    """An operator with all its partitions, and its stores as encoded rows."""

    def __init__(self, spec: StatefulSpec, partitions: int = 1) -> None:
        self.spec, self.partitions = spec, partitions
        self.schemas = {each.name: each for each in spec.stores}
        self.stores: dict[tuple[int, str], dict[bytes, bytes]] = {
            (partition, name): {} for partition in range(partitions) for name in self.schemas
        }
        self.epoch = 0
        self.late_ms = -1
        self._disk = on_disk.get()
        self._tables: dict[tuple[int, str], DiskVersion] = {}
        self._waiting: list[tuple[tuple[int, str], dict[bytes, bytes | None]]] = []
        self._saved = -1
        self.operator = self.opened()
        if self._disk is not None:
            self.restart()

    def opened(self) -> StatefulOperator:
        return self.spec.open(range(self.partitions), self.partitions)

    def turn(
        self,
        batch: pa.RecordBatch | None,
        now_ms: int = 0,
        watermark_ms: int = -1,
        late_ms: int | None = None,
    ) -> Rows:
        """Process and expire, as one micro-batch."""
        return self.turn_of_sides([(0, batch)], now_ms, watermark_ms, late_ms)

    def turn_of_sides(
        self,
        batches: Iterable[tuple[int, pa.RecordBatch | None]],
        now_ms: int = 0,
        watermark_ms: int = -1,
        late_ms: int | None = None,
    ) -> Rows:
        """Process batches of (side, rows) in this order, then expire, as one micro-batch."""
        late = self.late_ms if late_ms is None else late_ms
        at = Moment(now_ms, watermark_ms, self.epoch, late)
        output: list[pa.RecordBatch] = []
        for side, batch in batches:
            if batch is not None and batch.num_rows:
                for partition, part in self._split(batch, side):
                    output.extend(self.operator.process(partition, part, at, side))
        output.extend(self.operator.expire(at))
        self.late_ms = watermark_ms
        for each in output:
            assert each.schema.equals(self.spec.output_schema)
        return [row for each in output for row in each.to_pylist()]

    def cut(self) -> None:
        """End the epoch, and write the changes to the stores as Spark's rows."""
        seen = set()
        changes = self.operator.cut(self.epoch)
        self._save()
        for change in changes:
            schema = self.schemas[change.store]
            place = (change.partition, change.store)
            store = self.stores[place]
            changed: dict[bytes, bytes | None] = {}
            for key in change.removes:
                changed[encode_row(key, schema.key)] = None
            for key, value in change.puts:
                changed[encode_row(key, schema.key)] = encode_row(value, schema.value)
            for encoded, new in changed.items():
                if new is None:
                    store.pop(encoded, None)
                else:
                    store[encoded] = new
            self._waiting.append((place, changed))
            assert change.rows == len(store), (change.store, change.rows, len(store))
            seen.add((change.partition, change.store))
        assert seen == set(self.stores)
        self.epoch += 1

    def restart(self) -> None:
        """Open the operator again and load it from its stores."""
        self.operator = self.opened()
        self._waiting, self._saved = [], self.epoch - 1
        for (partition, name), store in self.stores.items():
            schema = self.schemas[name]
            if self._disk is not None:
                self.operator.load(partition, name, self._on_disk(self._disk, (partition, name)))
                continue
            rows = [
                (decode_row(key, schema.key), decode_row(value, schema.value))
                for key, value in store.items()
            ]
            self.operator.load(partition, name, rows)

    def state(self, store: str = "default") -> dict[Any, Any]:
        """The stored values of all partitions, by key."""
        schema = self.schemas[store]
        return {
            frozen(decode_row(key, schema.key)): decode_row(value, schema.value)
            for (_, name), rows in self.stores.items()
            if name == store
            for key, value in rows.items()
        }

    def _on_disk(self, database: LocalDatabase, place: tuple[int, str]) -> DiskRows:
        schema = self.schemas[place[1]]
        codec = RowCodec(schema.key, schema.value, schema.scan_columns)
        disk = DiskStates(database, codec.prefixes_of if schema.scan_columns else None)
        self._tables[place] = disk.of([self.stores[place].items()])
        return DiskRows(
            database, lambda: self._tables[place], PlainForm(codec), lambda: self._saved, 0
        )

    def _save(self) -> None:
        """Write the changes of the epoch before this one."""
        for place, changed in self._waiting if self._disk is not None else ():
            version = self._tables[place].with_changes(changed)
            assert isinstance(version, DiskVersion)
            self._tables[place] = version
        self._waiting, self._saved = [], self.epoch - 1

    def _split(self, batch: pa.RecordBatch, side: int) -> Iterable[tuple[int, pa.RecordBatch]]:
        key = self.spec.keys[side]
        if self.partitions == 1 or not key:
            yield 0, batch
            return
        schema = spark_schema(pa.schema([batch.schema.field(each) for each in key]))
        columns = [batch.column(each) for each in key]
        owners = partition_ids(columns, schema, self.partitions)
        for partition in range(self.partitions):
            mine = np.flatnonzero(owners == partition)
            if len(mine):
                yield partition, batch.take(mine)


def columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in types.items()])


def frozen(value: Any) -> Any:
    return tuple(frozen(each) for each in value) if isinstance(value, list | tuple) else value


def at_ms(ms: int) -> datetime:
    """A timestamp in the form that pyarrow returns, with its zone."""
    return datetime(1970, 1, 1, tzinfo=ZoneInfo("UTC")) + timedelta(milliseconds=ms)


def in_any_order(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(map(repr, rows))


def table(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
