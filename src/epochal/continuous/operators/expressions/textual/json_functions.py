"""JSON: from_json, to_json, get_json_object and the like. Pure.

from_json decodes records that have exactly the schema's types with a decoder made for the schema;
others are parsed again, leniently.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.row_values import Kind, by_row
from epochal.continuous.operators.expressions.times.time_patterns import problem_of
from epochal.continuous.operators.expressions.times.time_texts import days_by, micros_by
from epochal.continuous.operators.spark_values import json_paths, json_writing
from epochal.continuous.operators.spark_values.json_nodes import MalformedJson, parse
from epochal.continuous.operators.spark_values.json_reading import (
    Mismatch,
    TimeReaders,
    reader,
    usual_times,
    wanted,
)
from epochal.continuous.operators.spark_values.number_texts import fit_decimal
from epochal.errors import ExpressionError

types = pa.types

FORMATS = ("dateformat", "timestampformat", "timestampntzformat")
READ_OPTIONS = {"mode", "columnnameofcorruptrecord", "timezone", *FORMATS}
WRITE_OPTIONS = {"timezone", "ignorenullfields"}
_CORRUPT = "_corrupt_record"


def unknown_options(call: Call) -> list[str]:
    """The options of a call that are not supported here."""
    if call.function not in ("JsonToStructs", "StructsToJsonEvaluator.evaluate"):
        return []
    allowed = READ_OPTIONS if call.function == "JsonToStructs" else WRITE_OPTIONS
    given = call.extra.get("options", {})
    return [
        *sorted(name for name in given if name.lower() not in allowed),
        *(
            f"{name} ({problem})"
            for name, value in given.items()
            if name.lower() in FORMATS and (problem := problem_of(value, parsing=True))
        ),
    ]


@functools.lru_cache(maxsize=64)
def _times(zone: str, date: str | None, timestamp: str | None, local: str | None) -> TimeReaders:
    usual = usual_times(zone)
    return TimeReaders(
        usual.days if date is None else lambda text: days_by(date, text),
        usual.micros if timestamp is None else lambda text: micros_by(timestamp, text, zone),
        usual.local_micros if local is None else lambda text: micros_by(local, text, None),
    )


def _options(call: Call) -> dict[str, str]:
    return {name.lower(): value for name, value in call.extra.get("options", {}).items()}


def _zone(call: Call) -> str:
    return str(_options(call).get("timezone") or call.extra.get("zone", "UTC"))


def _from_json(call: Call, value: Value) -> Value:
    options = _options(call)
    corrupt = options.get("columnnameofcorruptrecord", _CORRUPT)
    strict = options.get("mode", "PERMISSIVE").upper() == "FAILFAST"
    times = _times(_zone(call), *(options.get(name) for name in FORMATS))
    read = reader(call.type, times, corrupt=corrupt, fail_fast=strict)
    decode = decoder(call.type, times)

    def single(text: str) -> Any:
        if decode is not None:
            try:
                found = decode(text)
            except (msgspec.MsgspecError, UnicodeEncodeError, Mismatch):
                found = None
            if found is not None:
                return found
        return read(text)

    try:
        return by_row(single, call.type, value)
    except Mismatch:
        raise ExpressionError(
            "MALFORMED_RECORD_IN_PARSING: a text is not JSON of the schema that from_json was "
            "given. Use the mode PERMISSIVE to get null instead."
        ) from None


@functools.lru_cache(maxsize=256)
def decoder(kind: Kind, times: TimeReaders) -> Callable[[str], Any] | None:
    """A fast decoder of records with exactly these types; None if a type has many forms in JSON."""
    made = _plain_type(kind)
    if made is None or not types.is_struct(kind):
        return None
    decode = msgspec.json.Decoder(made).decode
    finish = _finisher(kind, times)
    if finish is None:
        return decode
    return lambda text: finish(decode(text))


def _plain_type(kind: Kind) -> Any:
    """The Python type that JSON of this type decodes to; None if it depends on the text."""
    if types.is_string(kind) or types.is_date(kind) or types.is_timestamp(kind):
        return str | None
    if types.is_boolean(kind):
        return bool | None
    if types.is_integer(kind):
        high = 1 << kind.bit_width - 1
        return Annotated[int, msgspec.Meta(ge=-high, le=high - 1)] | None
    if kind == pa.float64():
        return float | None
    if types.is_decimal(kind):
        return Decimal | None
    if types.is_list(kind):
        element = (
            None if _finisher(kind.value_type, usual_times("UTC")) else _plain_type(kind.value_type)
        )
        lists: Any = list
        return None if element is None else lists[element] | None
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        members = {each.name: _plain_type(each.type) for each in fields}
        if None in members.values() or len(members) != kind.num_fields:
            return None
        return TypedDict("Record", members, total=False) | None  # type: ignore[operator]
    return None


def _finisher(kind: Kind, times: TimeReaders) -> Callable[[Any], Any] | None:
    """What is left to do with a decoded value: texts become times. It raises Mismatch."""
    if types.is_date(kind):
        return lambda text: wanted(times.days(text))
    if types.is_timestamp(kind) and kind.tz is None:
        return lambda text: wanted(times.local_micros(text))
    if types.is_timestamp(kind):
        return lambda text: wanted(times.micros(text))
    if types.is_decimal(kind):
        return lambda number: wanted(
            fit_decimal(number, kind.precision, kind.scale) if number.is_finite() else None
        )
    if not types.is_struct(kind):
        return None
    fields = [kind.field(i) for i in range(kind.num_fields)]
    found = [(each.name, _finisher(each.type, times)) for each in fields]
    steps = [(name, finish) for name, finish in found if finish is not None]
    if not steps:
        return None

    def apply(row: dict[str, Any] | None) -> Any:
        if row is not None:
            for name, finish in steps:
                value = row.get(name)
                if value is not None:
                    row[name] = finish(value)
        return row

    return apply


def _to_json(call: Call, value: Value) -> Value:
    nulls = _options(call).get("ignorenullfields", "true").lower() == "false"
    write = json_writing.writer(value.type, _zone(call), nulls=nulls)
    return by_row(write, pa.string(), value)


def _get_json_object(call: Call, value: Value, path: Value) -> Value:
    return by_row(json_paths.select, pa.string(), value, path)


def _array_length(text: str) -> int | None:
    try:
        node = parse(text, strict_numbers=True)
    except MalformedJson:
        return None
    return len(node.value) if node is not None and node.kind == "array" else None


def _object_keys(text: str) -> list[str] | None:
    try:
        node = parse(text, strict_numbers=True)
    except MalformedJson:
        return None
    if node is None or node.kind != "object":
        return None
    return [name for name, _ in node.value]


FUNCTIONS: dict[str, Function] = {
    "GetJsonObject": _get_json_object,
    "JsonExpressionUtils.jsonObjectKeys": lambda _, value: by_row(
        _object_keys, pa.list_(pa.string()), value
    ),
    "JsonExpressionUtils.lengthOfJsonArray": lambda _, value: by_row(
        _array_length, pa.int32(), value
    ),
    "JsonToStructs": _from_json,
    "StructsToJsonEvaluator.evaluate": _to_json,
}
