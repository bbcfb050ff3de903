"""Converts state to JSON without loss, and back. Pure.

    timestamp     "2024-01-01T00:00:00.000000Z"; timestamp_ntz without the Z; date "2024-01-01"
    decimal       "12.340"                 binary    base64
    float, double a number, or "NaN", "Infinity", "-Infinity"
    intervals     day-time in microseconds, year-month in months, calendar as an object
    time          nanoseconds of the day; timestamps with nanoseconds are an object of two numbers
    map           a list of [key, value]   struct    an object
    variant       an object of two base64 strings

Reading converts whole columns. Editing involves few values, so it converts them one by one into the
values that `unsafe_row.py` encodes.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.errors import StateValueError
from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    SpatialType,
    StringType,
    StructType,
    UserDefinedType,
    field_names,
)
from epochal.state.rows.unsafe_row import CalendarInterval, TimestampNanos, Variant

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_BOUNDS = {"byte": 8, "short": 16, "integer": 32, "long": 64}


def json_rows(
    table: pa.Table | pa.RecordBatch, types: Sequence[DataType | None]
) -> Iterator[list[dict[str, Any]]]:
    """The rows as objects, batch by batch. `types` has None for columns that are not state."""
    batches = [table] if isinstance(table, pa.RecordBatch) else table.to_batches(65_536)
    for batch in batches:
        columns = [
            array.to_pylist() if kind is None else json_column(array, kind)
            for array, kind in zip(batch.columns, types, strict=True)
        ]
        names = batch.schema.names
        yield [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_column(array: Any, kind: DataType) -> list[Any]:
    """A column's values in their JSON form."""
    match kind:
        case UserDefinedType(sql_type=inner):
            return json_column(array, inner)
        case StructType():
            return _struct_column(array, kind)
        case ArrayType(element=element):
            return _nested(array, json_column(array.flatten(), element))
        case MapType(key=key, value=value):
            return _map_column(array, key, value)
        case DecimalType():
            return [None if v is None else format(v, "f") for v in array.to_pylist()]
        case SpatialType():
            return [_base64(v) for v in array.to_pylist()]
        case AtomicType(name=name):
            return _atoms(array, name)
        case StringType():
            return list(array.to_pylist())


def _struct_column(array: Any, kind: StructType) -> list[Any]:
    names = field_names(kind)
    if not names:
        return [None if missing else {} for missing in array.is_null().to_pylist()]
    children = [json_column(array.field(n), field.data_type) for n, field in enumerate(kind.fields)]
    rows: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*children, strict=True)]
    if array.null_count:
        for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            rows[index] = None
    return rows


def _nested(array: Any, flat: list[Any]) -> list[Any]:
    at = 0
    lists: list[Any] = []
    for length in array.value_lengths().to_pylist():
        lists.append(None if length is None else flat[at : at + length])
        at += length or 0
    return lists


def _map_column(array: Any, key: DataType, value: DataType) -> list[Any]:
    # `keys` and `items` of a map array ignore its offset, and include entries hidden by nulls.
    entries = array.cast(
        pa.list_(pa.struct([("k", array.type.key_type), ("v", array.type.item_type)]))
    )
    flat = entries.flatten()
    pairs = zip(json_column(flat.field(0), key), json_column(flat.field(1), value), strict=True)
    return _nested(entries, [list(pair) for pair in pairs])


def _atoms(array: Any, name: str) -> list[Any]:
    match name:
        case "timestamp":
            return _times(array, "Z")
        case "timestamp_ntz":
            return _times(array, "")
        case "date":
            return _texts(array, "datetime64[D]", "D", "")
        case "float" | "double":
            return [_float(v) for v in array.to_pylist()]
        case "binary":
            return [_base64(v) for v in array.to_pylist()]
        case "variant":
            return [_variant(v) for v in array.to_pylist()]
    if pa.types.is_duration(array.type) or pa.types.is_time(array.type):
        return list(array.cast(pa.int64()).to_pylist())
    return list(array.to_pylist())


def _times(array: Any, suffix: str) -> list[Any]:
    return _texts(array, "datetime64[us]", "us", suffix)


def _texts(array: Any, dtype: str, unit: Literal["us", "D"], suffix: str) -> list[Any]:
    width = pa.int64() if unit == "us" else pa.int32()
    # Without `fill_null` and `to_numpy`: Arrow imports pandas for both.
    numbers = np.array([number or 0 for number in array.cast(width).to_pylist()], np.int64)
    moments: npt.NDArray[np.datetime64] = numbers.astype(dtype)
    texts: list[str] = np.datetime_as_string(moments, unit=unit).tolist()
    missing = array.is_null().to_pylist() if array.null_count else None
    if missing is None:
        return [text + suffix for text in texts] if suffix else texts
    return [None if gone else t + suffix for t, gone in zip(texts, missing, strict=True)]


def _float(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode("ascii")


def _variant(value: dict[str, bytes] | None) -> dict[str, str | None] | None:
    return None if value is None else {name: _base64(raw) for name, raw in value.items()}


def from_json(value: Any, kind: DataType, path: str) -> Any:
    """The value that a row holds for a value in JSON form; a StateValueError names `path`."""
    if value is None:
        return None
    match kind:
        case UserDefinedType(sql_type=inner):
            return from_json(value, inner, path)
        case StructType():
            return row_from_json(value, kind, path)
        case ArrayType(element=element):
            _demand(isinstance(value, list), value, path, "array", "a list")
            return [from_json(item, element, f"{path}[{n}]") for n, item in enumerate(value)]
        case MapType(key=key, value=item_kind):
            pairs = list(value.items()) if isinstance(value, dict) else value
            good = isinstance(pairs, list) and all(len(pair) == 2 for pair in pairs)
            _demand(good, value, path, "map", "a list of [key, value]")
            return [
                (from_json(k, key, f"{path}.key"), from_json(v, item_kind, f"{path}[{k}]"))
                for k, v in pairs
            ]
        case DecimalType(precision, scale):
            return _decimal(value, path, f"decimal({precision},{scale})")
        case SpatialType(name=name):
            return _bytes(value, path, name)
        case StringType(name=name):
            _demand(isinstance(value, str), value, path, name, "a string")
            return value
        case AtomicType(name=name):
            return _atom(value, name, path)


def row_from_json(value: Any, schema: StructType, path: str) -> tuple[Any, ...]:
    """A row's values in the order of the schema. Every field must be given; null means null."""
    _demand(isinstance(value, dict), value, path, "struct", "an object")
    names = field_names(schema)
    unknown = sorted(value.keys() - set(names))
    if unknown:
        raise StateValueError(
            f"{path}.{unknown[0]}",
            "struct",
            f"there is no such field; the fields are {', '.join(names)}",
        )
    missing = [name for name in names if name not in value]
    if missing:
        raise StateValueError(
            path,
            "struct",
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; the fields are "
            f"{', '.join(names)}. Write null for a field that has no value",
        )
    return tuple(
        from_json(value[name], field.data_type, f"{path}.{name}")
        for name, field in zip(names, schema.fields, strict=True)
    )


def _atom(value: Any, name: str, path: str) -> Any:
    if name in _BOUNDS:
        whole = isinstance(value, int) and not isinstance(value, bool)
        limit = 1 << (_BOUNDS[name] - 1)
        _demand(whole and -limit <= value < limit, value, path, name, f"a whole number of {name}")
        return value
    match name:
        case "boolean":
            _demand(isinstance(value, bool), value, path, name, "true or false")
            return value
        case "float" | "double":
            number = isinstance(value, int | float) and not isinstance(value, bool)
            _demand(number or value in _SPECIAL, value, path, name, "a number")
            return _SPECIAL.get(value) if isinstance(value, str) else float(value)
        case "timestamp" | "timestamp_ntz":
            return _micros(value, path, name)
        case "date":
            return _days(value, path)
        case "binary":
            return _bytes(value, path, name)
        case "interval":
            good = isinstance(value, dict) and value.keys() == {"months", "days", "microseconds"}
            _demand(good, value, path, name, "an object of months, days and microseconds")
            return CalendarInterval(value["months"], value["days"], value["microseconds"])
        case "variant":
            good = isinstance(value, dict) and value.keys() >= {"value", "metadata"}
            _demand(good, value, path, name, "an object of value and metadata")
            return Variant(
                _bytes(value["value"], path, name), _bytes(value["metadata"], path, name)
            )
        case "void":
            raise StateValueError(path, name, f"it must be null, not {value!r}")
    if name.startswith("timestamp_"):
        good = isinstance(value, dict) and value.keys() == {"epochMicros", "nanosWithinMicro"}
        _demand(good, value, path, name, "an object of epochMicros and nanosWithinMicro")
        return TimestampNanos(value["epochMicros"], value["nanosWithinMicro"])
    _demand(isinstance(value, int), value, path, name, "a whole number")
    return value


def _micros(value: Any, path: str, name: str) -> int:
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise StateValueError(path, name, f"{value!r} is not an ISO-8601 time") from None
    if name == "timestamp" and moment.tzinfo is None:
        raise StateValueError(path, name, f"{value!r} has no offset: write a Z for UTC")
    if name == "timestamp_ntz" and moment.tzinfo is not None:
        raise StateValueError(path, name, f"{value!r} has an offset: leave it out")
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)


def _days(value: Any, path: str) -> int:
    try:
        return (date.fromisoformat(value) - _EPOCH_DAY).days
    except (TypeError, ValueError):
        raise StateValueError(path, "date", f"{value!r} is not an ISO-8601 date") from None


def _decimal(value: Any, path: str, name: str) -> Decimal:
    _demand(isinstance(value, str | int), value, path, name, "a string of digits")
    try:
        return Decimal(value)
    except InvalidOperation:
        raise StateValueError(path, name, f"{value!r} is not a number") from None


def _bytes(value: Any, path: str, name: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise StateValueError(path, name, f"{value!r} is not base64") from None


def _demand(good: bool, value: Any, path: str, name: str, wanted: str) -> None:
    if not good:
        raise StateValueError(path, name, f"{wanted} is needed, not {value!r}")
