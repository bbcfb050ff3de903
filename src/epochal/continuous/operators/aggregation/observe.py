"""Aggregates the rows that pass, per epoch, for progress reports: `df.observe`.

Each task sends its buffers of an epoch with its report. The driver merges them and computes the
results.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from epochal.continuous.operators.aggregation.functions import AggregateCall
from epochal.continuous.operators.aggregation.grouping import Buffers
from epochal.continuous.operators.aggregation.spark_buffers import SparkAggregates, SparkBuffers
from epochal.continuous.operators.cells import StoredBatches
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.java_values import zone_of
from epochal.continuous.operators.stateless.row_operators import ProjectSpec
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import decode_row, encode_row


@dataclass(frozen=True, slots=True)
class ObserveSpec:
    """Observe rows under a name."""

    name: str
    arguments: ProjectSpec
    """Computes the columns that aggregates take. The first one is constant, and not null."""
    aggregates: tuple[AggregateCall, ...]
    results: ProjectSpec
    """Computes the metrics from the results of the aggregates."""
    zone: str
    spark: SparkAggregates | None = None
    """The aggregates, if Spark's own code computes them."""

    def open(self) -> Observe:
        return Observe(self)

    @property
    def buffers(self) -> Buffers | SparkBuffers:
        if self.spark is not None:
            return SparkBuffers(self.spark, self.aggregates)
        return Buffers(self.aggregates, self.arguments.schema)

    def metrics(self, parts: Sequence[bytes], at: Moment) -> dict[str, Any]:
        """Return the metrics over what tasks have sent, as values of JSON."""
        buffers: Any = self.buffers  # rows, or what Spark's code makes of them
        schema = StructType(buffers.fields)
        groups = [buffers.loaded(decode_row(part, schema)) for part in parts]
        columns = buffers.results([buffers.merged_all(groups)])
        batch = StoredBatches(pa.schema(buffers.output)).batch(columns, 1)
        (row,) = self.results.open().process(batch, at)
        return {key: _json(value, self.zone) for key, value in row.to_pylist()[0].items()}


class Observe:
    """Passes rows on unchanged and aggregates them by epoch."""

    def __init__(self, spec: ObserveSpec) -> None:
        self.name = spec.name
        self._arguments, self._buffers = spec.arguments.open(), spec.buffers
        self._schema = StructType(self._buffers.fields)
        self._epochs: dict[int, Any] = {}

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        for rows in self._arguments.process(batch, at):
            if rows.num_rows:
                before = self._epochs.get(at.epoch)
                self._epochs[at.epoch] = self._buffers.with_rows(before, rows)
        return (batch,)

    def taken(self, epoch: int) -> bytes | None:
        """Return the buffers of an epoch that has ended, and forget them; None without rows."""
        buffers = self._epochs.pop(epoch, None)
        if buffers is None:
            return None
        (row,) = self._buffers.stored([buffers])
        return encode_row(row, self._schema)


def is_reportable(kind: pa.DataType) -> bool:
    """Whether reports can have values of this type."""
    types = pa.types
    if types.is_list(kind):
        return is_reportable(kind.value_type)
    if types.is_struct(kind):
        return all(is_reportable(field.type) for field in kind)
    tests = (types.is_boolean, types.is_integer, types.is_floating, types.is_decimal)
    more = (types.is_string, types.is_binary, types.is_date, types.is_null)
    zoned = types.is_timestamp(kind) and kind.tz is not None
    return zoned or any(test(kind) for test in (*tests, *more))


def _json(value: Any, zone: str) -> Any:
    """A value as Spark's reports have it."""
    match value:
        case dt.datetime():
            local = value.astimezone(zone_of(zone)).replace(tzinfo=None)
            text = local.isoformat(sep=" ")
            return text.rstrip("0") if local.microsecond else text
        case dt.date():
            return value.isoformat()
        case Decimal():
            return float(value)
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return [_json(element, zone) for element in value]
        case dict():
            return {key: _json(item, zone) for key, item in value.items()}
    return value
