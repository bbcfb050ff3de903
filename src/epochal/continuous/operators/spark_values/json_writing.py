"""Writes values as JSON, as Spark's to_json does. Pure."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.continuous.operators.spark_values.json_nodes import Node
from epochal.continuous.operators.spark_values.number_texts import java_text
from epochal.continuous.operators.spark_values.timestamp_texts import (
    DAY,
    SECOND,
    date_text,
    local_of_utc,
)
from epochal.errors import OptionError

types = pa.types
Kind: TypeAlias = Any
Write: TypeAlias = Callable[[Any], str]

NUMBER_WORDS = {"NaN": math.nan}
NUMBER_WORDS |= dict.fromkeys(("+INF", "INF", "+Infinity", "Infinity"), math.inf)
NUMBER_WORDS |= dict.fromkeys(("-INF", "-Infinity"), -math.inf)
"""What may stand for a number in JSON, beside the numbers."""

_SPECIAL = re.compile(r'["\\\x00-\x1f]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def quoted(text: str) -> str:
    """A text in quotes, escaped as Jackson does it."""
    if not _SPECIAL.search(text):
        return f'"{text}"'
    escaped = _SPECIAL.sub(lambda m: _SHORT.get(m[0]) or f"\\u{ord(m[0]):04X}", text)
    return f'"{escaped}"'


def compact(node: Node) -> str:
    """The JSON of a node without blanks between its parts."""
    match node.kind:
        case "object":
            return "{" + ",".join(f"{quoted(n)}:{compact(v)}" for n, v in node.value) + "}"
        case "array":
            return "[" + ",".join(compact(value) for value in node.value) + "]"
        case "string":
            return quoted(node.value)
        case "float":
            word = NUMBER_WORDS.get(node.value)
            return _number(float(node.value) if word is None else word, single=False)
    return str(node.value)


def writer(kind: Kind, zone: str, *, nulls: bool) -> Write:
    """The function from a value of the type to its JSON. `nulls` keeps fields that are null."""
    if types.is_struct(kind):
        return _struct(kind, zone, nulls=nulls)
    if types.is_list(kind):
        element = writer(kind.value_type, zone, nulls=nulls)
        return lambda values: f"[{','.join('null' if v is None else element(v) for v in values)}]"
    if types.is_map(kind):
        return _map(kind, zone, nulls=nulls)
    if types.is_string(kind):
        return quoted
    if types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if types.is_integer(kind):
        return str
    if types.is_floating(kind):
        single = kind == pa.float32()
        return lambda value: _number(value, single=single)
    if types.is_decimal(kind):
        return str
    if types.is_date(kind):
        return lambda days: quoted(date_text(days))
    if types.is_timestamp(kind):
        return lambda micros: quoted(_timestamp(micros, zone if kind.tz else None))
    if types.is_binary(kind):
        return lambda value: quoted(base64.b64encode(value).decode())
    raise OptionError(f"to_json cannot write values of the type {kind}.")


def _number(value: float, *, single: bool) -> str:
    text = java_text(value, single=single)
    return text if math.isfinite(value) else quoted(text)


def _timestamp(micros: int, zone: str | None) -> str:
    local = micros if zone is None else local_of_utc(micros, zone)
    days, rest = divmod(local, DAY)
    seconds, fraction = divmod(rest, SECOND)
    hours, rest = divmod(seconds, 3600)
    text = f"{date_text(days)}T{hours:02}:{rest // 60:02}:{rest % 60:02}.{fraction // 1000:03}"
    if zone is None:
        return text
    offset = (local - micros) // SECOND
    if offset == 0:
        return text + "Z"
    minutes, second = divmod(abs(offset), 60)
    seconds_text = f":{second:02}" if second else ""
    return f"{text}{'-' if offset < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}{seconds_text}"


def _struct(kind: Kind, zone: str, *, nulls: bool) -> Write:
    members = [kind.field(i) for i in range(kind.num_fields)]
    writes = [(f"{quoted(m.name)}:", writer(m.type, zone, nulls=nulls)) for m in members]

    def write(row: dict[str, Any]) -> str:
        parts = []
        for (name, write), value in zip(writes, row.values(), strict=True):
            if value is not None:
                parts.append(name + write(value))
            elif nulls:
                parts.append(name + "null")
        return "{" + ",".join(parts) + "}"

    return write


def _map(kind: Kind, zone: str, *, nulls: bool) -> Write:
    if not types.is_string(kind.key_type) and not types.is_integer(kind.key_type):
        raise OptionError(f"to_json cannot write maps with keys of the type {kind.key_type}.")
    item = writer(kind.item_type, zone, nulls=nulls)

    def write(pairs: list[tuple[Any, Any]]) -> str:
        parts = (f"{quoted(str(k))}:{'null' if v is None else item(v)}" for k, v in pairs)
        return "{" + ",".join(parts) + "}"

    return write
