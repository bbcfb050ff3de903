"""Compares a query's columns with those of a table, and encodes rows as `COPY` reads them. Pure.

Rows reach the server as text, which would convert almost anything into almost anything: a long into
an `integer` that overflows next year, a time with a zone into one without. So a column must have a
type that holds every value of the query's, or the query does not start.

Tasks encode, for `COPY ... (FORMAT csv)`, so that the driver only passes bytes on. A null is an
empty field without quotes; a text is always in quotes, also an empty one.

Note: PostgreSQL stores no zero byte in a text, nor in a JSON string. Such a row is found here,
because the server's own message does not show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv as pcsv

from epochal.connectors.pubsub.publish.payloads import check_payload, plain_values
from epochal.connectors.staging.staged_rows import RowEncoder
from epochal.connectors.table_columns import TableColumn, match_columns
from epochal.errors import OptionError, PayloadError, PostgresRowError, TableMismatchError
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

JSON_TYPES = ("jsonb", "json")
TEXT_TYPES = ("text", "varchar", "bpchar", "citext", "name", *JSON_TYPES, "uuid", "xml", "inet")
INTEGER_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}


class Form(StrEnum):
    """How the values of a column are written."""

    PLAIN = "plain"
    HEX = "hex"
    INTERVAL = "interval"
    ARRAY = "array"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column of a table, as the server's catalog describes it."""

    name: str
    type: str
    """As in a table's definition: `numeric(10,2)`, `bigint[]`."""
    base: str
    """The internal name of the type without length, of a domain's base type: `int8`, `_int8`."""
    no_nulls: bool = False
    has_default: bool = False
    generated: bool = False
    """Whether the server computes it, so that nobody may write it."""
    is_enum: bool = False


@dataclass(frozen=True, slots=True)
class WrittenColumn:
    """A column of the query, and its name, type and form in the table."""

    name: str
    type: str
    form: Form
    no_nulls: bool = False
    max_characters: int | None = None


@dataclass(frozen=True, slots=True)
class PostgresType:
    """What an Arrow type needs: the type of a new column, and what an existing one may have."""

    sql: str
    bases: tuple[str, ...]
    form: Form = Form.PLAIN


def kind_of(kind: pa.DataType, name: str) -> PostgresType:
    """The PostgreSQL types for an Arrow type; OptionError if there is none."""
    types = pa.types
    if types.is_dictionary(kind):
        return kind_of(kind.value_type, name)
    if types.is_list(kind) or types.is_large_list(kind):
        return _list_kind(kind.value_type, name)
    if types.is_struct(kind) or types.is_map(kind):
        return _json_kind(kind, name)
    if types.is_decimal(kind):
        return PostgresType(f"numeric({kind.precision},{kind.scale})", ("numeric",))
    if types.is_timestamp(kind):
        base = "timestamp" if kind.tz is None else "timestamptz"
        return PostgresType(base, (base,))
    for fits, simple in _SIMPLE:
        if fits(kind):
            return simple
    raise OptionError(
        f"postgres: column {name} is {kind}, for which PostgreSQL has no type. Cast it to a "
        f"string, or leave it out."
    )


_SIMPLE = (
    (pa.types.is_boolean, PostgresType("boolean", ("bool",))),
    (pa.types.is_int8, PostgresType("smallint", ("int2", "int4", "int8", "numeric"))),
    (pa.types.is_int16, PostgresType("smallint", ("int2", "int4", "int8", "numeric"))),
    (pa.types.is_int32, PostgresType("integer", ("int4", "int8", "numeric", "float8"))),
    (pa.types.is_int64, PostgresType("bigint", ("int8", "numeric"))),
    (pa.types.is_float32, PostgresType("real", ("float4", "float8"))),
    (pa.types.is_float64, PostgresType("double precision", ("float8",))),
    (pa.types.is_string, PostgresType("text", TEXT_TYPES)),
    (pa.types.is_large_string, PostgresType("text", TEXT_TYPES)),
    (pa.types.is_binary, PostgresType("bytea", ("bytea",), Form.HEX)),
    (pa.types.is_large_binary, PostgresType("bytea", ("bytea",), Form.HEX)),
    (pa.types.is_date, PostgresType("date", ("date", "timestamp"))),
    (pa.types.is_time, PostgresType("time", ("time",))),
    (pa.types.is_duration, PostgresType("interval", ("interval",), Form.INTERVAL)),
)


def _list_kind(element: pa.DataType, name: str) -> PostgresType:
    # PostgreSQL's arrays are rectangular, so lists of lists become JSON, as do lists of structs.
    if pa.types.is_nested(element):
        return _json_kind(pa.list_(element), name)
    inner = kind_of(element, name)
    bases = tuple(f"_{base}" for base in inner.bases)
    return PostgresType(f"{inner.sql}[]", (*bases, *JSON_TYPES), Form.ARRAY)


def _json_kind(kind: pa.DataType, name: str) -> PostgresType:
    try:
        check_payload(kind, name)
    except PayloadError:
        raise OptionError(
            f"postgres: column {name} is {kind}, which contains a type that JSON cannot express. "
            f"Cast it to a string, or leave it out."
        ) from None
    return PostgresType("jsonb", JSON_TYPES, Form.JSON)


def new_columns(schema: pa.Schema) -> list[WrittenColumn]:
    """The columns of a table that is created for a query."""
    kinds = [(field.name, kind_of(field.type, field.name)) for field in schema]
    return [WrittenColumn(name, kind.sql, kind.form) for name, kind in kinds]


def written_columns(
    table: str, schema: pa.Schema, columns: Sequence[CatalogColumn]
) -> list[WrittenColumn]:
    """The table's column for each of the query's; TableMismatchError if they do not fit."""
    kinds = [kind_of(field.type, field.name) for field in schema]
    names = [_spelled(name, columns) for name in schema.names]
    by_sql = {kind.sql: kind for kind in kinds}
    by_type = {column.type: column for column in columns}
    match_columns(
        table,
        [TableColumn(name, kind.sql) for name, kind in zip(names, kinds, strict=True)],
        [TableColumn(c.name, c.type, c.no_nulls, c.has_default) for c in columns],
        may_add=False,
        to_add="Add it to the table, or leave it out of the query.",
        fits=lambda query, held: _fits(by_sql[query], by_type[held]),
    )
    by_name = {column.name: column for column in columns}
    computed = [name for name in names if by_name[name].generated]
    if computed:
        reason = f"column {computed[0]} is computed by the server. Leave it out of the query."
        raise TableMismatchError(table, (reason,))
    return [_written(kind, by_name[name]) for kind, name in zip(kinds, names, strict=True)]


def _written(kind: PostgresType, column: CatalogColumn) -> WrittenColumn:
    form = Form.JSON if kind.form is Form.ARRAY and column.base in JSON_TYPES else kind.form
    longest = re.fullmatch(r"character(?: varying)?\((\d+)\)", column.type)
    limit = None if longest is None else int(longest[1])
    return WrittenColumn(column.name, column.type, form, column.no_nulls, limit)


def _spelled(name: str, columns: Sequence[CatalogColumn]) -> str:
    """The name as the table spells it, if case is the only difference: SQL turns it to lower."""
    if any(column.name == name for column in columns):
        return name
    alike = [column.name for column in columns if column.name.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else name


def _fits(kind: PostgresType, column: CatalogColumn) -> bool:
    """Whether a column holds every value of a kind."""
    if column.is_enum and kind.bases == TEXT_TYPES:
        return True
    if column.base not in kind.bases:
        return False
    limits = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", column.type)
    if limits is None:
        return True
    digits, scale = _digits(kind.sql)
    held, held_scale = int(limits[1]), int(limits[2])
    return held_scale >= scale and held - held_scale >= digits - scale


def _digits(sql: str) -> tuple[int, int]:
    """The digits of a number in all, and those behind the point."""
    number = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", sql)
    return (int(number[1]), int(number[2])) if number else (INTEGER_DIGITS[sql], 0)


def key_columns(
    keys: Sequence[str], schema: pa.Schema, written: Sequence[WrittenColumn]
) -> list[str]:
    """The names in the table of the columns that mergeKeys names."""
    by_name = dict(zip((name.lower() for name in schema.names), written, strict=True))
    missing = [key for key in keys if key.lower() not in by_name]
    if missing:
        raise OptionError(
            f"postgres: mergeKeys names column {missing[0]}, which does not exist. The columns are "
            f"{', '.join(schema.names)}."
        )
    return [by_name[key.lower()].name for key in keys]


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
        reasons: dict[int, str] = {}
        for column, at in zip(batch.columns, self.columns, strict=True):
            for bad, reason in _refusals(column, at):
                for index in bad:
                    reasons.setdefault(index, f"column {at.name} {reason(index)}")
        return reasons


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
    indices: list[int] = pc.indices_nonzero(mask).to_pylist() if pc.any(mask).as_py() else []
    return indices


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
