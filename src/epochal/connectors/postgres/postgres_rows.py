"""Encodes rows as the text that `COPY ... (FORMAT csv)` reads. Pure.

Tasks encode, so that the driver only passes bytes on. A null is an empty field without quotes; a
text is always in quotes, also an empty one.

Note: PostgreSQL stores no zero byte in a text, nor in a JSON string. Such a row is found here,
because the server's own message does not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv as pcsv

from epochal.connectors.postgres.postgres_columns import Form, WrittenColumn
from epochal.connectors.pubsub.publish.payloads import plain_values
from epochal.connectors.staging.staged_rows import RowEncoder
from epochal.errors import PostgresRowError
from epochal.record_batches import table_of

Column: TypeAlias = Any
"""An Arrow array or chunked array."""

pc: Any = pyarrow.compute
"""The stubs refuse most of what the functions accept."""

FIRST_DAY = -719_162
"""0001-01-01 in days since 1970. Earlier years are written otherwise by Arrow and PostgreSQL."""
_DAY_US = 86_400_000_000
_SAMPLE_CHARACTERS = 60
_CSV = pcsv.WriteOptions(include_header=False, quoting_style="needed")
_encode_json = msgspec.json.Encoder(decimal_format="number").encode


@dataclass(frozen=True, slots=True)
class CopyRows(RowEncoder):
    """Encodes a query's rows for `COPY`."""

    columns: tuple[WrittenColumn, ...]
    server: str
    """The server and the table, for errors."""
    table: str
    suffix: str = "csv"

    def encode(self, rows: Sequence[pa.RecordBatch]) -> bytes:
        for batch in rows:
            for reason in self.bad_rows(batch).values():
                raise PostgresRowError(self.server, self.table, f"a row is refused: {reason}")
        table = pa.Table.from_batches(rows)
        pairs = zip(table.columns, self.columns, strict=True)
        texts = [_text(column, at) for column, at in pairs]
        out = pa.BufferOutputStream()
        names = [str(number) for number in range(len(texts))]
        pcsv.write_csv(table_of(texts, names, table.num_rows), out, _CSV)
        return out.getvalue().to_pybytes()

    def bad_rows(self, batch: pa.RecordBatch) -> dict[int, str]:
        """Why rows cannot be written, by their index; empty if all can.

        Only the server knows all constraints of its table. These are the ones that a task can see.
        """
        found: dict[int, str] = {}
        for column, at in zip(batch.columns, self.columns, strict=True):
            for bad, reason in _refusals(column, at):
                for index in bad:
                    found.setdefault(index, f"column {at.name} {reason(index)}")
        return found


def _refusals(
    column: Column, at: WrittenColumn
) -> Iterator[tuple[list[int], Callable[[int], str]]]:
    """Rows that one rule refuses, and what is wrong with each."""

    def shown(index: int) -> str:
        text = repr(column[index].as_py())
        return text if len(text) <= _SAMPLE_CHARACTERS else f"{text[:_SAMPLE_CHARACTERS]}…"

    if at.no_nulls and column.null_count:
        yield _indices(pc.is_null(column)), lambda _: "is null, which the table does not allow"
    if _may_hold_zero(column):
        bad = [index for index, value in enumerate(column.to_pylist()) if _holds_zero(value)]
        yield bad, lambda i: f"is {shown(i)}, but a text of PostgreSQL holds no zero byte"
    if at.max_characters is not None:
        long = _indices(pc.greater(pc.utf8_length(column), at.max_characters))
        yield long, lambda i: f"is {shown(i)}, which is too long for {at.type}"
    yield _too_early(column), lambda _: "has a year before 1, which is not supported"


def _indices(mask: Column) -> list[int]:
    found: list[int] = pc.indices_nonzero(mask).to_pylist() if pc.any(mask).as_py() else []
    return found


def _text(column: Column, at: WrittenColumn) -> Column:
    """The column as text, or in a type that Arrow writes as PostgreSQL reads it."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    match at.form:
        case Form.HEX:
            return _hexadecimal(column)
        case Form.JSON:
            values = plain_values(column, at.name)
            texts = [None if value is None else _encode_json(value).decode() for value in values]
            return pa.array(texts, pa.string())
        case Form.ARRAY:
            return _array_literals(column)
        case Form.INTERVAL:
            return _interval(column)
    return column


def _array_literals(column: Column) -> Column:
    """`{1,NULL,3}`, with quotes around anything but numbers."""
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    texts = _element_texts(pc.list_flatten(lists))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    elements = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pc.fill_null(texts, "NULL"))
    literals = pc.binary_join_element_wise("{", pc.binary_join(elements, ","), "}", "")
    return pc.if_else(pc.is_valid(lists), literals, pa.scalar(None, pa.string()))


def _element_texts(flat: Column) -> Column:
    kind = flat.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return flat.cast(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        texts = _hexadecimal(flat)
    elif pa.types.is_duration(kind):
        texts = _interval(flat)
    else:
        texts = flat.cast(pa.string())
    for special in ("\\", '"'):
        texts = pc.replace_substring(texts, special, f"\\{special}")
    return pc.binary_join_element_wise('"', texts, '"', "")


def _hexadecimal(column: Column) -> Column:
    values = column.to_pylist()
    return pa.array([v if v is None else f"\\x{v.hex()}" for v in values], pa.string())


def _interval(column: Column) -> Column:
    numbers = column.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(numbers, "microseconds", " ")


def _may_hold_zero(column: Column) -> bool:
    """Whether any text in a column holds a zero byte; also true for some that rows do not use."""
    types, kind = pa.types, column.type
    if types.is_string(kind) or types.is_large_string(kind):
        return bool(pc.any(pc.match_substring(column, "\0")).as_py())
    if types.is_dictionary(kind):
        return _may_hold_zero(column.dictionary)
    if types.is_map(kind):
        return _may_hold_zero(column.keys) or _may_hold_zero(column.items)
    if types.is_list(kind) or types.is_large_list(kind):
        return _may_hold_zero(pc.list_flatten(column))
    if types.is_struct(kind):
        return any(_may_hold_zero(column.field(number)) for number in range(kind.num_fields))
    return False


def _holds_zero(value: Any) -> bool:
    match value:
        case str():
            return "\0" in value
        case dict():
            return any(map(_holds_zero, value.values()))
        case list() | tuple():
            return any(map(_holds_zero, value))
    return False


def _too_early(column: Column) -> list[int]:
    """The rows with a date or time before the year 1."""
    kind = column.type
    if pa.types.is_date32(kind):
        early = pc.less(column.cast(pa.int32()), FIRST_DAY)
    elif pa.types.is_timestamp(kind) and kind.unit == "us":
        early = pc.less(column.cast(pa.int64()), FIRST_DAY * _DAY_US)
    else:
        return []
    return _indices(early)
