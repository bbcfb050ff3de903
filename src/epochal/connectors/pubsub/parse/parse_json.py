"""JSON payloads: decoded and checked in C, by a type that is made from the schema.

What a reader would get wrong: inside JSON, binary is base64, a decimal a string or a number, a
timestamp ISO 8601 and taken for UTC where it has no zone; as the sink writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa

from epochal.connectors.pubsub.parse.parse import one_by_one, refuse_type

_WHOLE = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}


class JsonDecode:
    """Objects of one struct type."""

    def __init__(self, kind: pa.StructType) -> None:
        self.type = kind
        self._decode = msgspec.json.Decoder(_python(kind, "payload")).decode
        self._fix = _fix(kind)

    def decode(self, payloads: Sequence[bytes], attributes: Any) -> tuple[Any, list[str | None]]:
        decode, fix = self._decode, self._fix

        def row(_: int, payload: bytes) -> Any:
            found = decode(payload)
            return found if fix is None else fix(found)

        caught = (msgspec.MsgspecError, UnicodeDecodeError, ValueError)
        values, errors = one_by_one(payloads, row, caught)
        try:
            return pa.array(values, self.type), errors
        except (pa.ArrowException, ValueError, OverflowError):
            return _singly(values, errors, self.type)


def _singly(values: list[Any], errors: list[str | None], kind: Any) -> tuple[Any, list[str | None]]:
    """Arrow takes no value that does not fit, such as a decimal of too many digits: find it."""
    kept = []
    for place, value in enumerate(values):
        try:
            pa.array([value], kind)
            kept.append(value)
        except (pa.ArrowException, ValueError, OverflowError) as error:
            kept.append(None)
            errors[place] = f"{type(error).__name__}: {error}"
    return pa.array(kept, kind), errors


def _python(kind: Any, what: str) -> Any:
    types = pa.types
    if types.is_struct(kind):
        fields = {each.name: _python(each.type, f"{what}.{each.name}") | None for each in kind}
        return TypedDict("Fields", fields, total=False)  # type: ignore[operator]
    if types.is_list(kind) or types.is_large_list(kind):
        return list[_python(kind.value_type, what) | None]  # type: ignore[misc]
    if types.is_map(kind):
        return dict[str, _python(kind.item_type, what) | None]  # type: ignore[misc]
    if kind in _WHOLE:
        most = 2 ** _WHOLE[kind]
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
    raise refuse_type(what, kind)


def _fix(kind: Any) -> Callable[[Any], Any] | None:
    """What Arrow needs done to decoded values: maps are lists of pairs to it."""
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
