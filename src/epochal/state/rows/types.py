"""Models Spark's data types: their JSON, and how their values are laid out in rows. Pure.

There are two views of one type. `DataType` is what the user declared and what is written back as
JSON, byte for byte. `Layout` is the shape of the bytes in a row, and is all that rows, columns and
hashes need. Many types share a layout: a timestamp is a long, a date is an int.

Note: a collation is not part of the type's JSON. Spark writes `"string"` and puts the collation
into the field's metadata, under `__COLLATIONS`, keyed by the path of the string inside the field.
So the metadata is kept as it was read, and written back unchanged.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, assert_never

from epochal.checkpoint.spark_json import to_json
from epochal.errors import StateSchemaError

MAX_LONG_DIGITS = 18
"""Decimals of at most this precision are stored as a long."""

_COLLATIONS = "__COLLATIONS"


class Kind(Enum):
    """How a value is laid out in an UnsafeRow."""

    VOID = "void"
    BOOLEAN = "boolean"
    BYTE = "byte"
    SHORT = "short"
    INT = "int"
    LONG = "long"
    FLOAT = "float"
    DOUBLE = "double"
    SMALL_DECIMAL = "decimal in a long"
    BIG_DECIMAL = "decimal in bytes"
    STRING = "string"
    BINARY = "binary"
    INTERVAL = "calendar interval"
    NANOS = "timestamp with nanoseconds"
    VARIANT = "variant"
    STRUCT = "struct"
    ARRAY = "array"
    MAP = "map"


RESERVED_WHEN_NULL = frozenset({Kind.BIG_DECIMAL, Kind.INTERVAL, Kind.NANOS})
"""Kinds that keep 16 bytes in a struct even when null, so that Spark can update them in place."""

FIXED_KINDS = frozenset(
    {
        *(Kind.VOID, Kind.BOOLEAN, Kind.BYTE, Kind.SHORT, Kind.INT, Kind.LONG),
        *(Kind.FLOAT, Kind.DOUBLE, Kind.SMALL_DECIMAL),
    }
)
"""Kinds whose value is in the 8-byte word itself."""

_SLOT_WIDTHS = {Kind.BOOLEAN: 1, Kind.BYTE: 1, Kind.SHORT: 2, Kind.INT: 4, Kind.FLOAT: 4}
_DAY_TIME_FIELDS = ("day", "hour", "minute", "second")
_ATOMIC_KINDS: dict[str, Kind] = {
    "void": Kind.VOID,
    "boolean": Kind.BOOLEAN,
    "byte": Kind.BYTE,
    "short": Kind.SHORT,
    "integer": Kind.INT,
    "long": Kind.LONG,
    "float": Kind.FLOAT,
    "double": Kind.DOUBLE,
    "binary": Kind.BINARY,
    "date": Kind.INT,
    "timestamp": Kind.LONG,
    "timestamp_ntz": Kind.LONG,
    "interval": Kind.INTERVAL,
    "interval year": Kind.INT,
    "interval month": Kind.INT,
    "interval year to month": Kind.INT,
    "variant": Kind.VARIANT,
    **{f"interval {field}": Kind.LONG for field in _DAY_TIME_FIELDS},
    **{
        f"interval {first} to {last}": Kind.LONG
        for position, first in enumerate(_DAY_TIME_FIELDS)
        for last in _DAY_TIME_FIELDS[position + 1 :]
    },
    **{f"time({precision})": Kind.LONG for precision in range(10)},
    **{f"timestamp_ltz({precision})": Kind.NANOS for precision in (7, 8, 9)},
    **{f"timestamp_ntz({precision})": Kind.NANOS for precision in (7, 8, 9)},
}
_ALIASES = {
    "null": "void",
    "timestamp_ltz": "timestamp",
    "timestamp_ltz(6)": "timestamp",
    "timestamp_ntz(6)": "timestamp_ntz",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of a value's bytes. `children` are the fields, the element, or key and value."""

    kind: Kind
    children: tuple[Layout, ...] = ()
    names: tuple[str, ...] = ()
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True, slots=True)
class AtomicType:
    """A type that is fully described by its name, such as `long` or `interval day`."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in _ATOMIC_KINDS:
            raise StateSchemaError("data type", f"{self.name!r} is not a type Spark knows")


@dataclass(frozen=True, slots=True)
class StringType:
    """`string`, `char(n)` or `varchar(n)`; all are stored the same way."""

    name: str = "string"
    collation: str | None = None


@dataclass(frozen=True, slots=True)
class DecimalType:
    precision: int
    scale: int

    def __post_init__(self) -> None:
        if not (1 <= self.precision <= 38 and self.scale <= self.precision):
            raise StateSchemaError(
                "data type",
                f"decimal({self.precision},{self.scale}) is out of range: Spark allows a "
                f"precision of 1 to 38 and a scale no larger than the precision",
            )


@dataclass(frozen=True, slots=True)
class SpatialType:
    """`geometry(crs)` or `geography(crs, algorithm)`: opaque bytes in a row."""

    name: str


@dataclass(frozen=True, slots=True)
class ArrayType:
    element: DataType
    contains_null: bool = True


@dataclass(frozen=True, slots=True)
class MapType:
    key: DataType
    value: DataType
    value_contains_null: bool = True


@dataclass(frozen=True, slots=True)
class StructField:
    name: str
    data_type: DataType
    nullable: bool = True
    metadata: str = "{}"
    """Compact JSON, with `__COLLATIONS` where the field has any."""


@dataclass(frozen=True, slots=True)
class StructType:
    fields: tuple[StructField, ...]
    layout: Layout = field(init=False, repr=False, compare=False)
    """`layout_of(self)`, stored here because every row needs it."""

    def __post_init__(self) -> None:
        children = tuple(layout_of(field.data_type) for field in self.fields)
        object.__setattr__(self, "layout", Layout(Kind.STRUCT, children, self.names))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)


@dataclass(frozen=True, slots=True)
class UserDefinedType:
    """A user-defined class; rows hold its `sql_type`."""

    sql_type: DataType
    entries: tuple[tuple[str, str | None], ...]
    """The JSON keys beside `type` and `sqlType`, in the order Spark writes them."""


DataType: TypeAlias = (
    AtomicType
    | StringType
    | DecimalType
    | SpatialType
    | ArrayType
    | MapType
    | StructType
    | UserDefinedType
)


_STRING = re.compile(r"char\(\s*(\d+)\s*\)|varchar\(\s*(\d+)\s*\)")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
_COLLATED = re.compile(r"string\s+collate\s+(\w+)")
_SPATIAL = re.compile(r"geometry\(\s*\w+:-?\w+\s*\)|geography\(\s*\w+(:-?\w+)?\s*(,\s*\w+\s*)?\)")


def parse_schema(text: str, *, source: str = "state schema") -> StructType:
    """Read the JSON of a StructType; for anything else a StateSchemaError names `source`."""
    try:
        document = json.loads(text, parse_float=_JsonNumber, parse_constant=_refuse_constant)
        data_type = _parse_type(document, "", {})
    except StateSchemaError as error:
        raise StateSchemaError(source, error.reason) from None
    except (ValueError, RecursionError) as error:
        raise StateSchemaError(source, f"its JSON cannot be parsed ({error})") from None
    if not isinstance(data_type, StructType):
        raise StateSchemaError(source, f"expected a struct, found {_shorten(document)}")
    return data_type


def schema_json(schema: DataType) -> str:
    """Write the JSON as Spark does: compact, same key order, metadata as it was read."""
    return _dump(_type_document(schema, with_collation=True))


def layout_of(data_type: DataType) -> Layout:
    """How values of the type are laid out in a row."""
    match data_type:
        case AtomicType(name):
            return Layout(_ATOMIC_KINDS[name])
        case StringType():
            return Layout(Kind.STRING)
        case SpatialType():
            return Layout(Kind.BINARY)
        case DecimalType(precision, scale):
            small = precision <= MAX_LONG_DIGITS
            kind = Kind.SMALL_DECIMAL if small else Kind.BIG_DECIMAL
            return Layout(kind, precision=precision, scale=scale)
        case UserDefinedType(sql_type):
            return layout_of(sql_type)
        case ArrayType(element):
            return Layout(Kind.ARRAY, (layout_of(element),))
        case MapType(key, value):
            return Layout(Kind.MAP, (layout_of(key), layout_of(value)))
        case StructType():
            return data_type.layout
        case _:
            assert_never(data_type)


def field_names(schema: StructType) -> tuple[str, ...]:
    """The field names, made unique: a second `sum` becomes `sum#2`.

    Spark names aggregation buffers after their function, so equal names are common in state. JSON
    objects and most users of Arrow tables keep only one field of a name.
    """
    seen: Counter[str] = Counter()
    unique: list[str] = []
    for name in schema.names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return tuple(unique)


def slot_width(kind: Kind) -> int:
    """How many bytes one element takes in the fixed part of an array."""
    return _SLOT_WIDTHS.get(kind, 8)


def bitset_bytes(count: int) -> int:
    """The size of a null bitset for `count` fields or elements."""
    return (count + 63) // 64 * 8


def padded(size: int) -> int:
    """`size` rounded up to whole 8-byte words."""
    return (size + 7) & ~7


class _JsonNumber:
    """A number with a fraction or exponent, kept as it was written."""

    def __init__(self, text: str) -> None:
        self.text = text


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _parse_type(document: Any, path: str, collations: dict[str, str]) -> DataType:
    if isinstance(document, str):
        if path in collations:
            if document != "string":
                reason = f"{path} has a collation but is of type {document!r}, not a string"
                raise StateSchemaError("", reason)
            return StringType(collation=collations[path])
        return _parse_name(document)
    if not isinstance(document, dict):
        raise StateSchemaError("", f"{_shorten(document)} is not a data type")
    match document:
        case {"type": "array", "elementType": element, "containsNull": bool(nulls)}:
            return ArrayType(_parse_type(element, _join(path, "element"), collations), nulls)
        case {"type": "map", "keyType": k, "valueType": v, "valueContainsNull": bool(nulls)}:
            key = _parse_type(k, _join(path, "key"), collations)
            return MapType(key, _parse_type(v, _join(path, "value"), collations), nulls)
        case {"type": "struct", "fields": list(fields)}:
            return StructType(tuple(_parse_field(field) for field in fields))
        case {"type": "udt", "sqlType": sql_type}:
            entries = tuple((k, v) for k, v in document.items() if k not in ("type", "sqlType"))
            if all(isinstance(value, str | None) for _, value in entries):
                return UserDefinedType(_parse_type(sql_type, "", {}), entries)
    raise StateSchemaError("", f"{_shorten(document)} is not a data type")


def _parse_name(name: str) -> DataType:
    if name == "string":
        return StringType()
    if name == "decimal":
        return DecimalType(10, 0)
    if name in ("geometry", "geography") or _SPATIAL.fullmatch(name):
        return SpatialType(name)
    if decimal := _DECIMAL.fullmatch(name):
        return DecimalType(int(decimal[1]), int(decimal[2]))
    if _STRING.fullmatch(name):
        return StringType(re.sub(r"\s", "", name))
    if collated := _COLLATED.fullmatch(name):
        return StringType(collation=collated[1])
    return AtomicType(_ALIASES.get(name, name))


def _parse_field(document: Any) -> StructField:
    match document:
        case {"name": str(name), "type": data_type}:
            metadata = document.get("metadata", {})
            nullable = document.get("nullable", True)
            if isinstance(metadata, dict) and isinstance(nullable, bool):
                collations = _parse_collations(name, metadata.get(_COLLATIONS, {}))
                parsed = _parse_type(data_type, name, collations)
                return StructField(name, parsed, nullable, _dump(metadata))
    raise StateSchemaError("", f"{_shorten(document)} is not a field of a struct")


def _parse_collations(field: str, document: Any) -> dict[str, str]:
    if not isinstance(document, dict) or not all(isinstance(v, str) for v in document.values()):
        raise StateSchemaError("", f"the collations of {field!r} are {_shorten(document)}")
    return {path: value.partition(".")[2] for path, value in document.items()}


def _join(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step


def _type_document(data_type: DataType, *, with_collation: bool) -> Any:
    match data_type:
        case AtomicType(name) | SpatialType(name):
            return name
        case StringType(name, collation):
            return f"{name} collate {collation}" if collation and with_collation else name
        case DecimalType(precision, scale):
            return f"decimal({precision},{scale})"
        case ArrayType(element, contains_null):
            inner = _type_document(element, with_collation=with_collation)
            return {"type": "array", "elementType": inner, "containsNull": contains_null}
        case MapType(key, value, value_contains_null):
            return {
                "type": "map",
                "keyType": _type_document(key, with_collation=with_collation),
                "valueType": _type_document(value, with_collation=with_collation),
                "valueContainsNull": value_contains_null,
            }
        case StructType(fields):
            return {"type": "struct", "fields": [_field_document(field) for field in fields]}
        case UserDefinedType(sql_type, entries):
            inner = _type_document(sql_type, with_collation=True)
            return {"type": "udt", **dict(entries), "sqlType": inner}
        case _:
            assert_never(data_type)


def _field_document(field: StructField) -> Any:
    metadata = json.loads(field.metadata, parse_float=_JsonNumber)
    in_metadata = _COLLATIONS in metadata
    return {
        "name": field.name,
        "type": _type_document(field.data_type, with_collation=not in_metadata),
        "nullable": field.nullable,
        "metadata": metadata,
    }


def _dump(value: Any) -> str:
    """Write compact JSON as Spark's writer does."""
    match value:
        case str() | int() | None:
            return to_json(value)
        case _JsonNumber(text=text):
            return str(text)
        case dict():
            return "{" + ",".join(f"{_dump(k)}:{_dump(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ",".join(_dump(item) for item in value) + "]"
    raise TypeError(f"no JSON for {value!r}")


def _shorten(document: Any) -> str:
    text = _dump(document)
    return text if len(text) <= 120 else text[:117] + "..."
