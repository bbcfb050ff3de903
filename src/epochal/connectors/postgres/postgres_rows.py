"""Encodes rows as the text that `COPY ... (FORMAT csv)` reads. Pure.

Tasks encode, so that the driver only passes bytes on. A null is an empty field without quotes; a
text is always in quotes, also an empty one.

Note: PostgreSQL cannot store a zero byte in a text, nor in a JSON string. Such a row is refused
here, with its text, because the server's own message does not show it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from epochal.connectors.postgres.postgres_columns import Form, WrittenColumn
from epochal.connectors.pubsub.publish.payloads import plain_values
from epochal.errors import PostgresRowError

Column: TypeAlias = Any
"""An Arrow array or chunked array."""

FIRST_DAY = -719_162
"""0001-01-01 in days since 1970. Earlier years are written otherwise by Arrow and PostgreSQL."""
_DAY_US = 86_400_000_000
_SAMPLE_CHARACTERS = 60
_CSV = pcsv.WriteOptions(include_header=False, quoting_style="needed")
_ZERO = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_encode_json = msgspec.json.Encoder(decimal_format="number").encode


@dataclass(frozen=True, slots=True)
class CopyRows:
    """Encodes a query's rows for `COPY`."""

    columns: tuple[WrittenColumn, ...]
    server: str
    """The server and the table, for errors."""
    table: str
    suffix: str = "csv"

    def encode(self, rows: Sequence[pa.RecordBatch]) -> bytes:
        table = pa.Table.from_batches(rows)
        texts = [
            self._text(column, at) for column, at in zip(table.columns, self.columns, strict=True)
        ]
        out = pa.BufferOutputStream()
        names = [str(number) for number in range(len(texts))]
        pcsv.write_csv(pa.table(texts, names=names), out, _CSV)
        return out.getvalue().to_pybytes()

    def _text(self, column: Column, at: WrittenColumn) -> Column:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        match at.form:
            case Form.HEX:
                return pa.array([_hex(value) for value in column.to_pylist()], pa.string())
            case Form.JSON:
                return self._json(column, at)
            case Form.ARRAY:
                return self._array(column, at)
            case Form.INTERVAL:
                return _interval(column)
        self._check_zero(column, at)
        self._check_years(column, at)
        return column

    def _json(self, column: Column, at: WrittenColumn) -> Column:
        values = plain_values(column, at.name)
        texts = [None if value is None else _encode_json(value).decode() for value in values]
        for text in texts:
            if text is not None and "\\u0000" in text and _ZERO.search(text):
                raise self._bad(at, "PostgreSQL stores no zero byte in JSON", text)
        return pa.array(texts, pa.string())

    def _array(self, column: Column, at: WrittenColumn) -> Column:
        """Array literals: `{1,NULL,3}`."""
        lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        flat = pc.list_flatten(lists)
        kind = flat.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            texts = pa.array([_hex(value) for value in flat.to_pylist()], pa.string())
        elif pa.types.is_duration(kind):
            texts = _interval(flat)
        else:
            self._check_zero(flat, at)
            self._check_years(flat, at)
            texts = flat.cast(pa.string())
        if not (pa.types.is_primitive(kind) and not pa.types.is_temporal(kind)):
            texts = pc.replace_substring(texts, "\\", "\\\\")
            texts = pc.replace_substring(texts, '"', '\\"')
            texts = pc.binary_join_element_wise('"', texts, '"', "")
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        joined = pc.binary_join(
            pa.ListArray.from_arrays(pa.array(offsets), pc.fill_null(texts, "NULL")), ","
        )
        literals = pc.binary_join_element_wise("{", joined, "}", "")
        return pc.if_else(pc.is_valid(lists), literals, pa.scalar(None, pa.string()))

    def _check_zero(self, column: Column, at: WrittenColumn) -> None:
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            return
        bad = pc.match_substring(column, "\0")
        if pc.any(bad).as_py():
            text = column.filter(bad)[0].as_py()
            raise self._bad(at, "PostgreSQL stores no zero byte in a text", text)

    def _check_years(self, column: Column, at: WrittenColumn) -> None:
        kind = column.type
        if pa.types.is_date32(kind):
            number, first = column.cast(pa.int32()), FIRST_DAY
        elif pa.types.is_timestamp(kind) and kind.unit == "us":
            number, first = column.cast(pa.int64()), FIRST_DAY * _DAY_US
        else:
            return
        least = pc.min(number).as_py()
        if least is not None and least < first:
            raise self._bad(at, "years before 1 are not supported", f"{least} since 1970")

    def _bad(self, at: WrittenColumn, reason: str, value: str) -> PostgresRowError:
        shown = value if len(value) <= _SAMPLE_CHARACTERS else f"{value[:_SAMPLE_CHARACTERS]}…"
        return PostgresRowError(
            self.server,
            self.table,
            f"a row cannot be written, because {reason}. Its column {at.name} is {shown!r}",
        )


def _hex(value: bytes | None) -> str | None:
    return None if value is None else f"\\x{value.hex()}"


def _interval(column: Column) -> Column:
    numbers = column.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(numbers, "microseconds", " ")
