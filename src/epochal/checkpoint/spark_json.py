"""JSON in Spark's logs: read leniently, and written with the same bytes as Jackson. Pure.

Two things differ from Python's defaults: control characters are escaped with upper-case hex
digits, and text after the first complete value is ignored, as Jackson does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from epochal.errors import MalformedFileError

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")


def to_json(value: object) -> str:
    """Format `value` on one line without spaces, with its keys in their order."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if "\\u" not in text:
        return text
    return _ESCAPE.sub(lambda escape: escape[0][:2] + escape[0][2:].upper(), text)


def parse_json(text: str, path: str) -> JsonValue:
    """Parse the first JSON value in `text`; a MalformedFileError names `path`."""
    try:
        value: JsonValue
        value, _ = _DECODER.raw_decode(text.strip())
        if "\\u" in text:
            # Python accepts an escape that is half of a surrogate pair; encoding it fails.
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise MalformedFileError(path, "its JSON is nested too deeply to be read") from None
    except UnicodeEncodeError:
        raise MalformedFileError(path, "its JSON has an unpaired surrogate") from None
    except ValueError as error:
        raise MalformedFileError(path, f"it has invalid JSON: {error}") from None
    return value


def parse_object(text: str, path: str) -> dict[str, JsonValue]:
    """Parse a text that must be a JSON object."""
    value = parse_json(text, path)
    if not isinstance(value, dict):
        raise MalformedFileError(path, f"it must have a JSON object, not {_clip(text)}")
    return value


def long_of(values: dict[str, JsonValue], key: str, path: str, default: int | None = None) -> int:
    """The 64-bit integer under `key`; `default` if it is missing or null."""
    value = default if values.get(key) is None else values[key]
    if isinstance(value, bool) or not isinstance(value, int) or not LONG_MIN <= value <= LONG_MAX:
        raise MalformedFileError(path, f"{key} must be a 64-bit integer, not {_clip(value)}")
    return value


def string_of(values: dict[str, JsonValue], key: str, path: str) -> str:
    """The string under `key`."""
    value = values.get(key)
    if not isinstance(value, str):
        raise MalformedFileError(path, f"{key} must be a string, not {_clip(value)}")
    return value


def object_of(values: dict[str, JsonValue], key: str, path: str) -> dict[str, JsonValue]:
    """The object under `key`; empty if it is missing or null."""
    value = {} if values.get(key) is None else values[key]
    if not isinstance(value, dict):
        raise MalformedFileError(path, f"{key} must be an object, not {_clip(value)}")
    return value


def list_of(values: dict[str, JsonValue], key: str, path: str) -> list[JsonValue]:
    """The list under `key`; empty if it is missing or null."""
    value = [] if values.get(key) is None else values[key]
    if not isinstance(value, list):
        raise MalformedFileError(path, f"{key} must be a list, not {_clip(value)}")
    return value


def as_read(values: dict[str, object], keys: Sequence[str] | None) -> dict[str, object]:
    """Order `values` by `keys`; values under other keys are appended unless they are empty."""
    if keys is None:
        return values
    ordered = {key: values[key] for key in keys if key in values}
    ordered.update({key: value for key, value in values.items() if key not in ordered and value})
    return ordered


def text_lines(data: bytes, path: str) -> list[str]:
    """The lines of a log file; as in Java they end with a newline, a carriage return or both."""
    return [text_of(line, path) for line in data.splitlines()]


def text_of(data: bytes, path: str) -> str:
    """Decode a file, or a line of one."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedFileError(path, f"not UTF-8 text ({error.reason})") from None


def _clip(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"number out of range: {text[:40]}")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON value")


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key appears twice in one object")
    return values


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant
)
