"""The tasks' side of the Delta sink: Parquet files in the table's directory, under final names.

A file is not part of the table until a commit of the driver names it. Readers of Delta tables only
read what the table's log names.

Note: `vacuum(full=True)` with a retention of less than an epoch would delete files that were
prepared and not yet committed. The default retention is 7 days.

The log has statistics of each file, so that readers can skip it:

    {"numRecords":2,"minValues":{"n":1},"maxValues":{"n":7},"nullCount":{"n":0}}

A wrong bound hides rows, and a missing one only costs time. So a column whose bounds cannot be
written exactly has none: floating-point numbers with NaN or infinity, which JSON has no number for.
Where the format is coarser than the values, bounds are rounded outwards: long texts are cut, and
times have milliseconds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from epochal.connectors.contract import WriterContext
from epochal.connectors.delta.delta_rules import DataFile, check_required, in_microseconds
from epochal.connectors.file.file_formats import Csv, FileFormat, ParquetCodec, encoder
from epochal.connectors.file.file_names import partition_values, split
from epochal.connectors.file.part_files import PartNames, create_part
from epochal.files import Files, open_files

INDEXED_COLUMNS = 32
"""Statistics exist for this many leading columns, counted with the fields of structs."""
STATS_COLUMNS_KEY = "delta.dataSkippingNumIndexedCols"
TEXT_CHARACTERS = 32
_LAST_CHARACTER = "\U0010ffff"
_MS = dt.timedelta(milliseconds=1)

_encode = msgspec.json.Encoder(decimal_format="number").encode


@dataclass(frozen=True, slots=True)
class DeltaFilePlan:
    """How files of a table are written. Travels to tasks."""

    root: str
    mark: bytes
    partition_by: tuple[str, ...]
    required: tuple[str, ...]
    """Columns in which the table takes no nulls."""
    compression: ParquetCodec
    stats_columns: int

    def open(self, context: WriterContext) -> Callable[[pa.Table], list[DataFile]]:
        return DeltaFiles(self, context.task, context.attempt, context.schema).write


class DeltaFiles:
    """Writes rows as data files of a table and describes them."""

    def __init__(self, plan: DeltaFilePlan, task: int, attempt: int, schema: pa.Schema) -> None:
        self._plan, self._names = plan, PartNames(plan.mark, attempt, task)
        # With `existing`: a table that was deleted must not come back as a directory of files.
        self._files: Files = open_files(plan.root, existing=True, links=True)
        self._suffix, self._encode = encoder(
            FileFormat.PARQUET, schema, Csv(), plan.compression, plan.partition_by
        )

    def write(self, table: pa.Table) -> list[DataFile]:
        """Write a file per partition that has rows."""
        check_required(self._plan.root, table, self._plan.required)
        return [
            self.write_one(directory, rows)
            for directory, rows in split(in_microseconds(table), self._plan.partition_by)
            if rows.num_rows
        ]

    def write_one(self, directory: str, rows: pa.Table) -> DataFile:
        """Write rows of one partition, without its columns, as one file in its directory."""
        name = self._names.draw(self._suffix)
        below, info = create_part(self._files, directory, name, self._encode(rows))
        values = dict(partition_values(f"{directory}/"))
        stats = file_stats(rows, self._plan.stats_columns)
        return DataFile(below, info.size, rows.num_rows, info.modified_ms, values, stats)


def indexed_columns(configuration: Mapping[str, str]) -> int:
    """Return for how many leading columns a table wants statistics; -1 means all."""
    text = configuration.get(STATS_COLUMNS_KEY, "")
    try:
        return int(text)
    except ValueError:
        return INDEXED_COLUMNS


def file_stats(rows: pa.Table, columns: int = INDEXED_COLUMNS) -> str:
    collected = _Collected(columns if columns >= 0 else 1 << 30)
    least, most, nulls = collected.of(
        {name: rows.column(name) for name in rows.column_names}, rows.schema
    )
    return _encode(
        {"numRecords": rows.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    ).decode()


class _Collected:
    """Walks the columns in order, depth first, until it has seen enough."""

    def __init__(self, columns: int) -> None:
        self._left = columns

    def of(
        self, columns: Mapping[str, Any], fields: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        least: dict[str, Any] = {}
        most: dict[str, Any] = {}
        nulls: dict[str, Any] = {}
        for field in fields:
            if self._left <= 0:
                break
            values = columns[field.name]
            if pa.types.is_struct(field.type):
                inner = {part.name: pc.struct_field(values, part.name) for part in field.type}
                for target, within in zip(
                    (least, most, nulls), self.of(inner, field.type), strict=True
                ):
                    if within:
                        target[field.name] = within
                continue
            self._left -= 1
            if pa.types.is_nested(field.type):
                continue
            nulls[field.name] = values.null_count
            bounds = _bounds(values, field.type)
            if bounds is not None:
                low, high = bounds
                least[field.name] = low
                if high is not None:
                    most[field.name] = high
        return least, most, nulls


def _bounds(values: Any, kind: pa.DataType) -> tuple[Any, Any | None] | None:
    """Return the least and the greatest value as JSON has them; None if there are none."""
    convert = _converter(kind)
    if convert is None or values.null_count == len(values):
        return None
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(values)).as_py():
        return None
    try:
        bounds: Any = pc.min_max(values).as_py()
        return convert(bounds["min"], bounds["max"])
    except (OverflowError, ValueError):  # Python's dates end with the year 9999, Spark's do not
        return None


_Convert = Callable[[Any, Any], tuple[Any, Any | None]]


def _converter(kind: pa.DataType) -> _Convert | None:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return lambda low, high: (low, high)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return lambda low, high: (low[:TEXT_CHARACTERS], _upper_text(high))
    if pa.types.is_date(kind):
        return lambda low, high: (low.isoformat(), high.isoformat())
    if pa.types.is_timestamp(kind):
        ending = "Z" if kind.tz is not None else ""
        return lambda low, high: (
            _time_text(low, ending),
            _time_text(high + (_MS if high.microsecond % 1000 else dt.timedelta()), ending),
        )
    return None


def _upper_text(text: str) -> str | None:
    """Return a text of limited length that is not less than `text`; None if there is none."""
    if len(text) <= TEXT_CHARACTERS:
        return text
    if text[TEXT_CHARACTERS] == _LAST_CHARACTER:
        return None
    return text[:TEXT_CHARACTERS] + _LAST_CHARACTER


def _time_text(at: dt.datetime, ending: str) -> str:
    if at.tzinfo is not None:
        at = at.astimezone(dt.UTC)
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds") + ending
