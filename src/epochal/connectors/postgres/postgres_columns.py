"""Compares a query's columns with those of a table, and chooses how values are written. Pure.

Rows reach the server as text, which would convert almost anything into almost anything: a long into
an `integer` that overflows next year, a time with a zone into one without. So a column must have a
type that holds every value of the query's, or the query does not start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from epochal.connectors.pubsub.publish.payloads import check_payload
from epochal.connectors.table_columns import TableColumn, match_columns
from epochal.errors import OptionError, PayloadError, TableMismatchError

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
class Kind:
    """What an Arrow type needs: the type of a new column, and what an existing one may have."""

    sql: str
    bases: tuple[str, ...]
    form: Form = Form.PLAIN


def kind_of(kind: pa.DataType, name: str) -> Kind:
    """The PostgreSQL types for an Arrow type; OptionError if there is none."""
    types = pa.types
    if types.is_dictionary(kind):
        return kind_of(kind.value_type, name)
    if types.is_list(kind) or types.is_large_list(kind):
        return _list_kind(kind.value_type, name)
    if types.is_struct(kind) or types.is_map(kind):
        return _json_kind(kind, name)
    if types.is_decimal(kind):
        return Kind(f"numeric({kind.precision},{kind.scale})", ("numeric",))
    if types.is_timestamp(kind):
        base = "timestamp" if kind.tz is None else "timestamptz"
        return Kind(base, (base,))
    for fits, found in _SIMPLE:
        if fits(kind):
            return found
    raise OptionError(
        f"postgres: column {name} is {kind}, for which PostgreSQL has no type. Cast it to a "
        f"string, or leave it out."
    )


_SIMPLE = (
    (pa.types.is_boolean, Kind("boolean", ("bool",))),
    (pa.types.is_int8, Kind("smallint", ("int2", "int4", "int8", "numeric"))),
    (pa.types.is_int16, Kind("smallint", ("int2", "int4", "int8", "numeric"))),
    (pa.types.is_int32, Kind("integer", ("int4", "int8", "numeric", "float8"))),
    (pa.types.is_int64, Kind("bigint", ("int8", "numeric"))),
    (pa.types.is_float32, Kind("real", ("float4", "float8"))),
    (pa.types.is_float64, Kind("double precision", ("float8",))),
    (pa.types.is_string, Kind("text", TEXT_TYPES)),
    (pa.types.is_large_string, Kind("text", TEXT_TYPES)),
    (pa.types.is_binary, Kind("bytea", ("bytea",), Form.HEX)),
    (pa.types.is_large_binary, Kind("bytea", ("bytea",), Form.HEX)),
    (pa.types.is_date, Kind("date", ("date", "timestamp"))),
    (pa.types.is_time, Kind("time", ("time",))),
    (pa.types.is_duration, Kind("interval", ("interval",), Form.INTERVAL)),
)


def _list_kind(element: pa.DataType, name: str) -> Kind:
    # PostgreSQL's arrays are rectangular, so lists of lists become JSON, as do lists of structs.
    if pa.types.is_nested(element):
        return _json_kind(pa.list_(element), name)
    inner = kind_of(element, name)
    bases = tuple(f"_{base}" for base in inner.bases)
    return Kind(f"{inner.sql}[]", (*bases, *JSON_TYPES), Form.ARRAY)


def _json_kind(kind: pa.DataType, name: str) -> Kind:
    try:
        check_payload(kind, name)
    except PayloadError:
        raise OptionError(
            f"postgres: column {name} is {kind}, which contains a type that JSON cannot express. "
            f"Cast it to a string, or leave it out."
        ) from None
    return Kind("jsonb", JSON_TYPES, Form.JSON)


def new_columns(schema: pa.Schema) -> list[WrittenColumn]:
    """The columns of a table that is created for a query."""
    found = []
    for field in schema:
        kind = kind_of(field.type, field.name)
        found.append(WrittenColumn(field.name, kind.sql, kind.form))
    return found


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
        [TableColumn(each.name, each.type, each.no_nulls, each.has_default) for each in columns],
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


def _written(kind: Kind, column: CatalogColumn) -> WrittenColumn:
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


def _fits(kind: Kind, column: CatalogColumn) -> bool:
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
    found = re.fullmatch(r"numeric\((\d+),(-?\d+)\)", sql)
    return (int(found[1]), int(found[2])) if found else (INTEGER_DIGITS[sql], 0)


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
