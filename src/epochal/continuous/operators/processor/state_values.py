"""Converts the values that a processor writes to a state variable to their stored form, and back.

PySpark sends a value to its JVM, which stores it if it fits the schema. Otherwise it silently
stores null or a truncated number: a str or a float in an int column becomes null, `2**40` becomes
0, an int in a string column becomes its text. Programs rely on this, so the same happens here. Only
the number of values is checked.

Note: a value may come back in another form. A nested struct comes back as a Row, a timestamp
without a zone, a numpy number as a Python number.
"""

from __future__ import annotations

import json
import struct
from collections import namedtuple
from collections.abc import Callable, Iterable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, TypeAlias

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as spark
from pyspark.sql.types import Row as SparkRow

from epochal.continuous.operators.cells import hashable
from epochal.continuous.operators.contract import Row
from epochal.continuous.operators.java_values import java_bytes, java_integer, java_text
from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructType,
    UserDefinedType,
    schema_json,
)
from epochal.state.rows.unsafe_row import unscaled_of

Convert: TypeAlias = Callable[[Any], Any]

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_STORED: dict[str, type] = {"double": float, "boolean": bool, "binary": bytes}
_REMEMBERED = 256
_FLOAT = struct.Struct("<f")


def failure(doing: str, condition: str, text: str, state: str = "42802") -> PySparkRuntimeError:
    """The error that PySpark raises when its JVM rejects an operation."""
    return PySparkRuntimeError(f"Error {doing}: [{condition}] {text} SQLSTATE: {state}")


def row_class(names: Iterable[str]) -> type[SparkRow]:
    """A Row class that contains the column names.

    Creating and reading its rows is five times cheaper than with PySpark's own Row. Names that
    tuples already have, such as `count`, keep their meaning.
    """
    listed = list(names)
    # The field descriptors of a named tuple work on any tuple and run without Python code.
    getters = namedtuple("Getters", [f"p{index}" for index in range(len(listed))])  # type: ignore[misc]
    fields: dict[str, Any] = {
        name: getattr(getters, f"p{index}")
        for index, name in enumerate(listed)
        if name.isidentifier() and not hasattr(SparkRow, name) and listed.index(name) == index
    }
    row_type: type[SparkRow] = type("Row", (SparkRow,), {**fields, "__fields__": listed})
    return row_type


class ValueConverter:
    """Converts values of one schema: `store` for writing, `tuple_of` and `row_of` for reading."""

    __slots__ = ("_columns", "_exports", "_ranges", "_row", "_spark", "_stored", "flat", "schema")

    def __init__(self, schema: StructType) -> None:
        types = [field.data_type for field in schema.fields]
        self.schema = schema
        self._columns = tuple(_from_java(kind) for kind in types)
        self._stored = tuple(_stored_type(kind) for kind in types)
        self._ranges: dict[tuple[type, ...], tuple[tuple[int, int], ...]] = {}
        self._spark = spark.StructType.fromJson(json.loads(schema_json(schema)))
        self._exports = tuple(_exported(kind) for kind in types)
        self._row = row_class(schema.names)
        self.flat = all(export is None for export in self._exports)
        """Whether stored values are returned unchanged."""

    def store(self, data: Any, doing: str) -> Row:
        """The values to store; PySparkRuntimeError if there are too many or too few."""
        # The fast path: a tuple whose value types are known to be stored unchanged.
        if type(data) is tuple:
            ranges = self._ranges.get(tuple(map(type, data)))
            if ranges is not None:
                for index, limit in ranges:
                    if not -limit <= data[index] < limit:
                        break
                else:
                    return data
        return self._converted(data, doing)

    def entry(self, data: Any, doing: str) -> Row:
        """The values to store as a key: the result of `store`, usable as a dict key."""
        entry: Row = hashable(self.store(data, doing))
        return entry

    def tuple_of(self, stored: Row) -> tuple[Any, ...]:
        if self.flat:
            return stored
        pairs = zip(self._exports, stored, strict=True)
        return tuple([value if export is None else export(value) for export, value in pairs])

    def row_of(self, stored: Row) -> SparkRow:
        row: SparkRow = tuple.__new__(self._row, self.tuple_of(stored))
        return row

    def _converted(self, data: Any, doing: str) -> Row:
        if type(data) is tuple:
            self._learn(tuple(map(type, data)))
        values = self._spark.toInternal(tuple(_plain(value) for value in data))
        if len(values) != len(self._columns):
            text = _length_text(len(self._columns), len(values))
            raise failure(doing, "STRUCT_ARRAY_LENGTH_MISMATCH", text, "2201E")
        try:
            pairs = zip(self._columns, values, strict=True)
            return tuple([convert(value) for convert, value in pairs])
        except _RefusedError as refused:
            raise failure(doing, refused.condition, refused.text, refused.state) from None

    def _learn(self, kinds: tuple[type, ...]) -> None:
        """Remember value types that are stored unchanged, with the ranges of their integers."""
        if len(self._ranges) > _REMEMBERED or len(kinds) != len(self._stored):
            return
        if all(k in (type(None), stored) for k, stored in zip(kinds, self._stored, strict=True)):
            fields = enumerate(zip(kinds, self.schema.fields, strict=True))
            self._ranges[kinds] = tuple(
                (index, 1 << (_BITS[field.data_type.name] - 1))
                for index, (kind, field) in fields
                if kind is int and isinstance(field.data_type, AtomicType)
            )


@lru_cache(maxsize=256)
def value_converter(schema: StructType) -> ValueConverter:
    """The form for a schema. Cached, because `init` asks for the same ones in every epoch."""
    return ValueConverter(schema)


class _RefusedError(Exception):
    """The JVM would have thrown an exception. The caller adds the operation to the message."""

    def __init__(self, condition: str, text: str, state: str) -> None:
        super().__init__(condition, text, state)
        self.condition, self.text, self.state = condition, text, state


def _length_text(expected: int, actual: int) -> str:
    return (
        f"Input row doesn't have expected number of values required by the schema. {expected} "
        f"fields are required while {actual} values are provided."
    )


def _plain(value: Any) -> Any:
    """Convert numpy and pandas scalars to Python's, at any depth."""
    kind = type(value)
    if kind in (int, str, float, bool, bytes, type(None)):
        return value
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, SparkRow) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return kind(*map(_plain, value))
    if isinstance(value, list | tuple):
        return kind(map(_plain, value))
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    for method in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def _stored_type(data_type: DataType) -> type | None:
    """The Python type whose values, if in range, are stored unchanged."""
    if isinstance(data_type, StringType):
        return str
    if not isinstance(data_type, AtomicType):
        return None
    return int if data_type.name in _BITS else _STORED.get(data_type.name)


def _from_java(data_type: DataType) -> Convert:
    """The JVM's conversion of values for a column of this type: null if it cannot convert."""
    match data_type:
        case AtomicType(name) if name in _BITS:
            return java_integer(_BITS[name])
        case AtomicType("boolean"):
            return lambda v: v if isinstance(v, bool) else None
        case AtomicType("double"):
            return lambda v: float(v) if isinstance(v, float) else None
        case AtomicType("float"):
            return _single
        case AtomicType("binary"):
            return java_bytes
        case AtomicType("date"):
            return java_integer(32)
        case AtomicType(name) if name.startswith(("timestamp", "interval", "time(")):
            return java_integer(64)
        case StringType():
            return lambda v: v if v is None or isinstance(v, str) else java_text(v)
        case DecimalType(precision, scale):
            return _decimal(precision, scale)
        case UserDefinedType(sql_type):
            return _from_java(sql_type)
        case ArrayType(element):
            inner = _from_java(element)
            return lambda v: [inner(e) for e in v] if isinstance(v, list | tuple) else None
        case MapType(key, value):
            left, right = _from_java(key), _from_java(value)
            return lambda v: (
                [(left(k), right(e)) for k, e in v.items()] if isinstance(v, dict) else None
            )
        case StructType():
            return _nested(tuple(_from_java(field.data_type) for field in data_type.fields))
        case _:
            return lambda v: None


def _single(value: Any) -> float | None:
    if not isinstance(value, float):
        return None
    try:
        return float(_FLOAT.unpack(_FLOAT.pack(value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _decimal(precision: int, scale: int) -> Convert:
    unit = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal | None:
        if not isinstance(value, Decimal):
            return None
        try:
            rounded = value.quantize(unit, ROUND_HALF_UP)
        except InvalidOperation:
            rounded = Decimal("NaN")
        if unscaled_of(rounded, precision, scale) is None:
            raise _RefusedError(
                "NUMERIC_VALUE_OUT_OF_RANGE.WITHOUT_SUGGESTION",
                f"The {value} rounded half up from {value} cannot be represented as "
                f"Decimal({precision}, {scale}).",
                "22003",
            )
        return rounded

    return convert


def _nested(columns: tuple[Convert, ...]) -> Convert:
    def convert(value: Any) -> Row | None:
        if not isinstance(value, tuple):
            return None
        if len(value) != len(columns):
            text = _length_text(len(columns), len(value))
            raise _RefusedError("STRUCT_ARRAY_LENGTH_MISMATCH", text, "2201E")
        return tuple([inner(member) for inner, member in zip(columns, value, strict=True)])

    return convert


def _exported(data_type: DataType) -> Convert | None:
    """The conversion from a stored value to what PySpark returns; None if they are the same."""
    match data_type:
        case ArrayType(element):
            inner = _exported(element) or _identity
            return lambda v: None if v is None else [inner(element) for element in v]
        case MapType(key, value):
            left, right = _exported(key) or _identity, _exported(value) or _identity
            return lambda v: None if v is None else {left(k): right(e) for k, e in v}
        case StructType():
            form = ValueConverter(data_type)
            return lambda v: None if v is None else form.row_of(v)
        case AtomicType() | UserDefinedType():
            return _external(data_type)
        case _:
            return None


def _external(data_type: AtomicType | UserDefinedType) -> Convert | None:
    field = {"name": "", "type": json.loads(schema_json(data_type)), "nullable": True}
    spark_type: Any = spark.StructField.fromJson({**field, "metadata": {}}).dataType
    if not spark_type.needConversion():
        return None
    convert: Convert = spark_type.fromInternal
    return lambda v: None if v is None else convert(v)


def _identity(value: Any) -> Any:
    return value
