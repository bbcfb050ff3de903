"""Finds rows that cannot be written to files of a format. Pure.

Whole columns are checked first, and cheaply. Only if a batch looks suspicious are its rows encoded
one by one, to find those that fail.

| format | what cannot be written |
|---|---|
| json | dates and times outside the years 1 to 9999, a map with one key twice, invalid UTF-8 |
| text, csv | invalid UTF-8 |
| any, partitioned | such dates and times in a partition column, and values too long for a name |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute

from epochal.connectors.file.file_formats import FileFormat
from epochal.connectors.file.file_names import partition_directory

pc: Any = pyarrow.compute
"""Untyped: its stubs miss functions that are used here."""

T = TypeVar("T")

_SAFE_DAYS = (-719_000, 2_932_000)
"""Well within the years 1 to 9999, in days since 1970."""
_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_CAUGHT = (ValueError, OverflowError, KeyError, TypeError, pa.ArrowException)


def bad_rows(
    batch: pa.RecordBatch,
    form: FileFormat,
    partition_by: Sequence[str],
    encode: Callable[[pa.Table], bytes],
    max_name_bytes: int | None,
) -> dict[int, str]:
    """Why rows cannot be written, by their index; names are those of partition directories."""
    in_file = [name for name in batch.schema.names if name not in partition_by]
    rows, keys = batch.select(in_file), batch.select(list(partition_by))
    checks: list[Callable[[int], object]] = []
    if _file_suspicious(rows, form):
        checks.append(lambda index: encode(pa.Table.from_batches([rows.slice(index, 1)])))
    if _key_suspicious(keys, max_name_bytes):
        checks.append(lambda index: _check_names(keys.slice(index, 1), max_name_bytes))
    bad: dict[int, str] = {}
    for index in range(batch.num_rows) if checks else ():
        reasons = [reason for check in checks if (reason := _failure(check, index)) is not None]
        if reasons:
            bad[index] = reasons[0]
    return bad


def _failure(attempt: Callable[[T], object], given: T) -> str | None:
    try:
        attempt(given)
    except _CAUGHT as error:
        text = str(error).strip().rstrip(".")
        return f"a value cannot be written: {type(error).__name__}{text and ': '}{text}"
    return None


def _file_suspicious(rows: pa.RecordBatch, form: FileFormat) -> bool:
    if form is FileFormat.PARQUET:
        return False
    if _failure(_validate, rows) is not None:
        return True
    if form is not FileFormat.JSON:
        return False
    return any(_out_of_range(leaf) for column in rows.columns for leaf in _leaves(column)) or any(
        _has_map(field.type) and _failure(_pylist, rows) is not None for field in rows.schema
    )


def _key_suspicious(keys: pa.RecordBatch, max_name_bytes: int | None) -> bool:
    # An escaped character takes three bytes.
    most = None if max_name_bytes is None else max_name_bytes // 3 - 64
    for name, column in zip(keys.schema.names, keys.columns, strict=True):
        kind = column.type
        if _out_of_range(column):
            return True
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            longest = pc.max(pc.binary_length(column)).as_py() or 0
            if most is not None and longest + 3 * len(name.encode()) > most:
                return True
            if _failure(_validate, column) is not None:
                return True
    return False


def _check_names(key: pa.RecordBatch, max_name_bytes: int | None) -> None:
    names = key.schema.names
    values = [column.to_pylist()[0] for column in key.columns]
    for part in partition_directory(names, values).split("/"):
        if max_name_bytes is not None and len(part.encode()) > max_name_bytes:
            raise ValueError(
                f"partition directory {part[:60]}… has {len(part.encode())} bytes, but names have "
                f"at most {max_name_bytes}"
            )


def _validate(column: Any) -> None:
    column.validate(full=True)


def _pylist(rows: pa.RecordBatch) -> object:
    return pa.Table.from_batches([rows]).to_pylist(maps_as_pydicts="strict")


def _leaves(column: Any) -> Iterator[Any]:
    kind, types = column.type, pa.types
    if types.is_struct(kind):
        for inner in column.flatten():
            yield from _leaves(inner)
    elif types.is_map(kind):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)
    elif types.is_list(kind) or types.is_large_list(kind):
        yield from _leaves(column.flatten())
    else:
        yield column


def _out_of_range(column: Any) -> bool:
    kind, scale = column.type, 1
    if pa.types.is_timestamp(kind):
        scale, column = _DAY[kind.unit], column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    else:
        return False
    low, high = (each.as_py() for each in pc.min_max(column).values())
    return low is not None and not (_SAFE_DAYS[0] * scale <= low and high <= _SAFE_DAYS[1] * scale)


def _has_map(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(n).type) for n in range(kind.num_fields))
