"""Decodes JSON payloads. msgspec checks them in C against a type that is built from the schema.

Note: inside JSON, binary is base64, a decimal is a string or a number, and a timestamp is ISO 8601
(UTC if it has no zone). The sink writes them the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa

from epochal.connectors.payloads.payload_decoder import (
    as_column,
    decode_each,
    unsupported_type,
)

_INTEGER_BITS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}


class JsonDecoder:
    """Decodes objects of one struct type."""

    def __init__(self, kind: pa.StructType) -> None:
        self.type = kind
        self._decode = msgspec.json.Decoder(_python_type(kind, "payload")).decode
        self._fix = _fix(kind)

    def decode(self, payloads: Sequence[bytes], attributes: Any) -> tuple[Any, list[str | None]]:
        decode, fix = self._decode, self._fix

        def row(_: int, payload: bytes) -> Any:
            found = decode(payload)
            return found if fix is None else fix(found)

        caught = (msgspec.MsgspecError, UnicodeDecodeError, ValueError)
        values, errors = decode_each(payloads, row, caught)
        return as_column(values, errors, self.type)


def _python_type(kind: Any, what: str) -> Any:
    """Return the Python type that msgspec decodes into; `what` is the field's path, for errors."""
    types = pa.types
    if types.is_struct(kind):
        fields = {each.name: _python_type(each.type, f"{what}.{each.name}") | None for each in kind}
        return TypedDict("Fields", fields, total=False)  # type: ignore[operator]
    if types.is_list(kind) or types.is_large_list(kind):
        return list[_python_type(kind.value_type, what) | None]  # type: ignore[misc]
    if types.is_map(kind):
        return dict[str, _python_type(kind.item_type, what) | None]  # type: ignore[misc]
    if kind in _INTEGER_BITS:
        most = 2 ** _INTEGER_BITS[kind]
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)] if most < 2**63 else int
    for test, found in (
        (types.is_boolean, bool),
        (types.is_floating, float),
        (types.is_decimal, Decimal),
        (types.is_string, str),
        (types.is_binary, bytes),
        (types.is_timestamp, datetime),
        (types.is_date, date),
        (types.is_time, clock_time),
        (types.is_duration, timedelta),
    ):
        if test(kind):
            return found
    raise unsupported_type(what, kind)


def _fix(kind: Any) -> Callable[[Any], Any] | None:
    """Return what turns decoded values into values that Arrow accepts; None if they already are.

    Arrow wants a map as a list of pairs.
    """
    types = pa.types
    if types.is_map(kind):
        inner = _fix(kind.item_type)
        if inner is None:
            return lambda found: list(found.items())
        of_values = inner
        return lambda found: [(k, None if v is None else of_values(v)) for k, v in found.items()]
    if types.is_list(kind) or types.is_large_list(kind):
        inner = _fix(kind.value_type)
        if inner is None:
            return None
        of_items = inner
        return lambda found: [None if each is None else of_items(each) for each in found]
    if types.is_struct(kind):
        fixes = {each.name: fix for each in kind if (fix := _fix(each.type)) is not None}
        if not fixes:
            return None

        def fixed(found: Any) -> Any:
            for name, fix in fixes.items():
                if found.get(name) is not None:
                    found[name] = fix(found[name])
            return found

        return fixed
    return None
