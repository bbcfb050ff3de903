"""Reads fields of a JSON object as texts: `json_tuple`. Pure.

A text is returned without quotes, a null field as null, everything else as compact JSON with
numbers as Java prints them. What is no JSON object has no fields.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from epochal.continuous.operators.java_texts import java_text


class _Float:
    """A number with a fraction or an exponent."""

    def __init__(self, text: str) -> None:
        self.value = float(text)

    def __str__(self) -> str:
        return java_text(self.value)


class _Object(list[tuple[str, Any]]):
    """The fields of an object, in order. Names may repeat."""


def _no_constant(text: str) -> Any:
    raise ValueError(text)  # NaN and Infinity are not JSON


_DECODER = json.JSONDecoder(
    parse_float=_Float, parse_constant=_no_constant, object_pairs_hook=_Object
)


def json_fields(text: str | None, names: Sequence[str | None]) -> list[str | None]:
    """The values of the fields `names`. If a field occurs twice, the last one counts."""
    found: list[str | None] = [None] * len(names)
    if text is None:
        return found
    try:
        document, _ = _DECODER.raw_decode(text.lstrip(" \t\r\n"))
    except ValueError:
        return found
    if not isinstance(document, _Object):
        return found
    for name, value in document:
        if value is not None and name in names:
            shown = value if isinstance(value, str) else _json(value)
            found = [shown if each == name else old for each, old in zip(names, found, strict=True)]
    return found


def _json(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case _Object():
            return "{" + ",".join(f"{_json(name)}:{_json(each)}" for name, each in value) + "}"
        case list():
            return "[" + ",".join(map(_json, value)) + "]"
    return str(value)
