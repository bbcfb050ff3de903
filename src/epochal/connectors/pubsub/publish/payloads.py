"""Converts column values to the bytes of a message. Pure.

Binary is sent unchanged, and a string as UTF-8. Everything else is JSON: numbers, booleans, dates
and timestamps without quotes, and nested values as JSON arrays or objects. If a whole row becomes
one message, the columns are the fields of one JSON object.

Note: JSON has no bytes, decimals or times. Inside JSON, binary is base64, a decimal is a string
with all of its digits, and a timestamp is ISO 8601 in UTC, so nothing is rounded. A map key that is
not a string is converted to text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from epochal.errors import PayloadError

Convert: TypeAlias = Callable[[Any], Any]
_UTC = pa.timestamp("us", tz="UTC")
_encode_json = msgspec.json.Encoder(decimal_format="string").encode


def payloads(column: Any, name: str) -> list[bytes]:
    """Return the payload of each row; a null is an empty payload."""
    kind = column.type
    if _is_binary(kind):
        encoded: list[bytes] = _objects(column)
    elif _is_string(kind):
        is_large = pa.types.is_large_string(kind)
        encoded = _objects(column.cast(pa.large_binary() if is_large else pa.binary()))
    else:
        encoded = [b"" if value is None else _bare(value) for value in plain_values(column, name)]
    return encoded if column.null_count == 0 else [payload or b"" for payload in encoded]


def rows_as_json(names: Sequence[str], columns: Sequence[Any]) -> list[bytes]:
    """Encode each row as a JSON object. Nulls are left out, as in Spark's `to_json`."""
    values = [plain_values(column, name) for column, name in zip(columns, names, strict=True)]
    if all(column.null_count == 0 for column in columns):
        return [
            _encode_json(dict(zip(names, row, strict=True))) for row in zip(*values, strict=True)
        ]
    return [
        _encode_json({n: v for n, v in zip(names, row, strict=True) if v is not None})
        for row in zip(*values, strict=True)
    ]


def check_payload(kind: Any, name: str) -> None:
    """Raise PayloadError for a type that cannot be sent. Called before any row is sent."""
    if not (_is_binary(kind) or _is_string(kind)):
        _converter(kind, name)


def plain_values(column: Any, name: str) -> list[Any]:
    """Return Python values that msgspec can encode as JSON."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(_UTC, safe=False)
    convert = _converter(kind, name)
    values: list[Any] = column.to_pylist()
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _bare(value: Any) -> bytes:
    """Encode as JSON, but a date, time or decimal without its quotes."""
    encoded = _encode_json(value)
    return encoded[1:-1] if encoded[:1] == b'"' else encoded


def _converter(kind: Any, name: str) -> Convert | None:
    """Return the conversion for values of a type; None if they need none."""
    types = pa.types
    if types.is_dictionary(kind):
        return _converter(kind.value_type, name)
    if types.is_timestamp(kind):
        return _iso_utc if kind.tz is not None else None
    if types.is_null(kind) or types.is_decimal(kind) or _is_string(kind) or _is_binary(kind):
        return None
    if types.is_primitive(kind) and not types.is_interval(kind):
        return None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _list_converter(_converter(kind.value_type, name))
    if types.is_map(kind):
        return _map_converter(
            _converter(kind.key_type, name), _converter(kind.item_type, name), kind.key_type
        )
    if types.is_struct(kind):
        inner = {field.name: _converter(field.type, f"{name}.{field.name}") for field in kind}
        return _struct_converter(inner)
    raise PayloadError(
        f"Column {name} is {kind}, which cannot be sent in a message. Cast it to a string, or "
        f"leave it out."
    )


def _iso_utc(value: Any) -> str:
    text: str = value.replace(tzinfo=None).isoformat(timespec="microseconds")
    return text + "Z"


def _list_converter(inner: Convert | None) -> Convert | None:
    if inner is None:
        return None
    return lambda values: [None if item is None else inner(item) for item in values]


def _map_converter(of_keys: Convert | None, of_values: Convert | None, kind: Any) -> Convert:
    textual = _is_string(kind)

    def convert(pairs: Any) -> dict[str, Any]:
        fields = {}
        for key, value in pairs.items() if isinstance(pairs, dict) else pairs:
            key = key if of_keys is None else of_keys(key)
            key = key if textual or isinstance(key, str) else _bare(key).decode()
            fields[key] = value if of_values is None or value is None else of_values(value)
        return fields

    return convert


def _struct_converter(inner: dict[str, Convert | None]) -> Convert | None:
    if all(value is None for value in inner.values()):
        return None

    def convert(struct: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value if value is None or inner[name] is None else inner[name](value)  # type: ignore[misc]
            for name, value in struct.items()
        }

    return convert


def _objects(column: Any) -> list[bytes]:
    values: list[bytes] = column.to_numpy(zero_copy_only=False).tolist()
    return values


def _is_binary(kind: Any) -> bool:
    types = pa.types
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)


def _is_string(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
