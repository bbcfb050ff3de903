"""Splits rows by the values of a table's partition transforms. Pure.

Iceberg has one partition value per file. A transform computes it from a column: the value itself,
its day, its bucket. Values are in Iceberg's own representation, as in manifests: times as
microseconds, dates as days.

Note: transforms are called once per distinct value of the column, not once per row.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.types import PrimitiveType

from epochal.errors import OptionError

Values: TypeAlias = tuple[Any, ...]
"""One partition: the value of each partition field."""


@dataclass(frozen=True, slots=True)
class Partitioning:
    """The partition fields of a table: where each takes its values, and how."""

    columns: tuple[str, ...]
    """The path of each field's source column, with dots between the parts."""
    sources: tuple[PrimitiveType, ...]
    transforms: tuple[Any, ...]
    results: tuple[PrimitiveType, ...]


def partitioning_of(table: str, schema: Schema, spec: PartitionSpec) -> Partitioning:
    """The partitioning of a table; OptionError if it has a transform that is not known."""
    columns: list[str] = []
    sources: list[PrimitiveType] = []
    transforms: list[Any] = []
    results: list[Any] = []
    for each in spec.fields:
        source = schema.find_type(each.source_id)
        unknown = isinstance(each.transform, UnknownTransform)
        if unknown or not isinstance(source, PrimitiveType):
            raise OptionError(
                f"iceberg: table {table} is partitioned by {each.name}, with a transform of column "
                f"{schema.find_column_name(each.source_id)} that this sink cannot compute. Rows "
                f"would go to wrong partitions. Known are identity, bucket, truncate, year, month, "
                f"day and hour."
            )
        columns.append(str(schema.find_column_name(each.source_id)))
        sources.append(source)
        transforms.append(each.transform)
        results.append(each.transform.result_type(source))
    return Partitioning(tuple(columns), tuple(sources), tuple(transforms), tuple(results))


def split(rows: pa.Table, by: Partitioning) -> list[tuple[Values, pa.Table]]:
    """The rows of each partition. Rows keep their order within a partition."""
    if not rows.num_rows:
        return []
    if not by.columns:
        return [((), rows)]
    found: list[list[Any]] = []
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for name, source, transform in zip(by.columns, by.sources, by.transforms, strict=True):
        values, of_row = _transformed(_column(rows, name), source, transform)
        found.append(values)
        codes = codes * len(values) + of_row
    partitions = []
    order = np.argsort(codes, kind="stable")
    distinct, starts = np.unique(codes[order], return_index=True)
    for code, part in zip(distinct.tolist(), np.split(order, starts[1:]), strict=True):
        chosen: list[Any] = []
        for values in reversed(found):
            code, index = divmod(code, len(values))
            chosen.append(values[index])
        partitions.append((tuple(reversed(chosen)), rows.take(part)))
    return partitions


def encode_values(values: Values, by: Partitioning) -> list[str | None]:
    """Partition values as text, in Iceberg's binary form of single values."""
    return [
        None if value is None else base64.b64encode(to_bytes(kind, value)).decode()
        for value, kind in zip(values, by.results, strict=True)
    ]


def decode_values(texts: Sequence[str | None], by: Partitioning) -> Values:
    """The values that `encode_values` encoded."""
    return tuple(
        None if text is None else from_bytes(kind, base64.b64decode(text))
        for text, kind in zip(texts, by.results, strict=True)
    )


def _column(rows: pa.Table, path: str) -> Any:
    if path in rows.schema.names:
        return rows.column(path)
    name, *inner = path.split(".")
    return pc.struct_field(rows.column(name), inner)


def _transformed(
    column: Any, source: PrimitiveType, transform: Any
) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """The distinct results of a transform, and the index of each row's result among them."""
    if isinstance(transform, VoidTransform):
        return [None], np.zeros(len(column), dtype=np.int64)
    column = _internal(column)
    distinct = pc.unique(column)
    function = transform.transform(source)
    index_of: dict[Any, int] = {}
    of_distinct = [
        index_of.setdefault(None if value is None else function(value), len(index_of))
        for value in distinct.to_pylist()
    ]
    positions = pc.index_in(column, value_set=distinct).to_numpy()
    return list(index_of), np.array(of_distinct, dtype=np.int64)[positions]


def _internal(column: Any) -> Any:
    """A column in Iceberg's representation: times as microseconds, dates as days."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if pa.types.is_time64(kind):
        return column.cast(pa.int64())
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    return column
