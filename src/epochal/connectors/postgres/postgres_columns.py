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
from typing import Any

import pyarrow as pa

from epochal.connectors.pubsub.publish.payloads import check_payload
from epochal.errors import OptionError, PayloadError

JSON_TYPES = ("jsonb", "json")
TEXT_TYPES = ("text", "varchar", "bpchar", "citext", "name", *JSON_TYPES, "uuid", "xml", "inet")


class Form(StrEnum):
    """How the values of a column are written."""

    PLAIN = "plain"
    HEX = "hex"
    INTERVAL = "interval"
    ARRAY = "array"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table, as the server's catalog describes it."""

    name: str
    type: str
    """As in a table's definition: `numeric(10,2)`, `bigint[]`."""
    base: str
    """The internal name of the type without length, of a domain's base type: `int8`, `_int8`."""
    optional: bool = True
    """Whether rows may leave it out: it allows nulls or has a default."""
    generated: bool = False
    """Whether the server computes it, so that nobody may write it."""
    is_enum: bool = False
    no_nulls: bool = False


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


def match_columns(
    schema: pa.Schema, table: Sequence[TableColumn]
) -> tuple[list[WrittenColumn], list[str]]:
    """The table's column for each of the query's, and what is wrong, one sentence per problem."""
    problems, found, used = [], [], set()
    for field in schema:
        column = _named(field.name, table)
        if column is None:
            names = ", ".join(each.name for each in table)
            problems.append(f"the query's column {field.name} is missing; it has {names}")
            continue
        if column.name in used:
            problems.append(f"two columns of the query have the name {field.name}")
        used.add(column.name)
        kind = kind_of(field.type, field.name)
        problem = _misfit(field, kind, column)
        if problem:
            problems.append(problem)
        form = Form.JSON if kind.form is Form.ARRAY and column.base in JSON_TYPES else kind.form
        longest = re.fullmatch(r"character(?: varying)?\((\d+)\)", column.type)
        limit = None if longest is None else int(longest[1])
        found.append(WrittenColumn(column.name, column.type, form, column.no_nulls, limit))
    problems += [
        f"column {each.name} ({each.type}) allows no nulls and has no default, and the query does "
        f"not write it"
        for each in table
        if each.name not in used and not each.optional
    ]
    return found, problems


def _named(name: str, table: Sequence[TableColumn]) -> TableColumn | None:
    """The column of this name; without regard to case, as in Spark, if that is unambiguous."""
    exact = [each for each in table if each.name == name]
    alike = [each for each in table if each.name.lower() == name.lower()]
    return exact[0] if exact else alike[0] if len(alike) == 1 else None


def _misfit(field: pa.Field[Any], kind: Kind, column: TableColumn) -> str:
    if column.generated:
        return f"column {column.name} is computed by the server, so the query cannot write it"
    is_text = kind.bases == TEXT_TYPES
    if column.base not in kind.bases and not (is_text and column.is_enum):
        return (
            f"column {column.name} is {column.type}, but the query's is {field.type}. Cast it in "
            f"the query, or change the column to {kind.sql}"
        )
    limits = re.search(r"\((\d+),(-?\d+)\)", column.type)
    if column.base == "numeric" and limits is not None:
        precision, scale = _digits(field.type)
        held, held_scale = int(limits[1]), int(limits[2])
        if held_scale < scale or held - held_scale < precision - scale:
            return (
                f"column {column.name} is {column.type}, but values of the query's {field.type} "
                f"need {kind.sql}: they would be rounded or refused"
            )
    return ""


def _digits(kind: pa.DataType) -> tuple[int, int]:
    """The digits of a number in all, and those behind the point."""
    if pa.types.is_decimal(kind):
        return kind.precision, kind.scale
    return len(str(2 ** (kind.bit_width - 1))), 0


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
