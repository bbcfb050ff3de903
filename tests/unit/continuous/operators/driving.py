"""Runs a stateful operator without the engine: one turn per batch, stores as dicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.contract import Moment, StatefulOperator, StatefulSpec
from epochal.state.rows.arrow_types import spark_schema
from epochal.state.rows.murmur3 import partition_ids
from epochal.state.rows.unsafe_row import decode_row, encode_row

Rows = list[dict[str, Any]]


class Driver:
    """An operator with all its partitions, and its stores as encoded rows."""

    def __init__(self, spec: StatefulSpec, partitions: int = 1) -> None:
        self.spec, self.partitions = spec, partitions
        self.schemas = {each.name: each for each in spec.stores}
        self.stores: dict[tuple[int, str], dict[bytes, bytes]] = {
            (partition, name): {} for partition in range(partitions) for name in self.schemas
        }
        self.operator = self.opened()
        self.epoch = 0
        self.late_ms = -1

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
        for change in self.operator.cut(self.epoch):
            schema = self.schemas[change.store]
            store = self.stores[change.partition, change.store]
            for key in change.removes:
                store.pop(encode_row(key, schema.key), None)
            for key, value in change.puts:
                store[encode_row(key, schema.key)] = encode_row(value, schema.value)
            assert change.rows == len(store), (change.store, change.rows, len(store))
            seen.add((change.partition, change.store))
        assert seen == set(self.stores)
        self.epoch += 1

    def restart(self) -> None:
        """Open the operator again and load it from its stores."""
        self.operator = self.opened()
        for (partition, name), store in self.stores.items():
            schema = self.schemas[name]
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
