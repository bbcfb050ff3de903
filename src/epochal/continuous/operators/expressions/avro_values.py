"""Spark's `from_avro`: decodes Avro payloads without a header. Pure.

Dates and times are read as the numbers that Avro stores, because Python's end in the year 9999. A
union of one type and null is that type. The type of the result is Spark's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.lists_of import (
    Array,
    Kind,
    all_on_columns,
    arrow,
    list_column,
    retyped,
    struct_column,
)
from epochal.errors import ComponentError, OptionError

Schema: TypeAlias = Any

_STORED = {"date", "timestamp-millis", "timestamp-micros", "local-timestamp-millis"}
_STORED |= {"local-timestamp-micros", "time-millis", "time-micros", "uuid", "duration"}
_MILLIS = ("timestamp-millis", "local-timestamp-millis")


@lru_cache(maxsize=32)
def _reader(written: str, expected: str | None) -> Callable[[bytes], Any]:
    """A function that decodes one payload to Python values."""
    try:
        import fastavro
    except ImportError:
        raise ComponentError(
            "from_avro needs the package fastavro. Run `pip install 'epochal[pubsub]'`."
        ) from None
    schema = fastavro.parse_schema(stored(json.loads(written)))
    wanted = None if expected is None else fastavro.parse_schema(stored(json.loads(expected)))
    read: Any = fastavro.schemaless_reader
    return lambda payload: read(BytesIO(payload), schema, wanted)


def stored(schema: Schema) -> Schema:
    """A schema without the logical types whose stored numbers are wanted."""
    if isinstance(schema, list):
        return [stored(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: stored(value) for name, value in schema.items() if name != "default"}
    if made.get("logicalType") in _STORED:
        del made["logicalType"]
    if "default" in schema:
        made["default"] = schema["default"]
    return made


def _from_avro(call: Call, value: Value) -> Value:
    options = {name.lower(): text for name, text in call.extra.get("options", {}).items()}
    written = str(call.extra["jsonFormatSchema"])
    expected = options.get("avroschema")
    permissive = options.get("mode", "FAILFAST").upper() == "PERMISSIVE"
    read = _reader(written, expected)
    found: list[Any] = []
    failed = np.zeros(len(value), bool)
    for row, payload in enumerate(value.to_pylist()):
        try:
            found.append(None if payload is None else read(payload))
        except Exception as error:  # noqa: BLE001  a malformed payload raises many kinds
            if not permissive:
                raise OptionError(
                    f"MALFORMED_RECORD: an Avro payload of {len(payload)} bytes does not match "
                    f"the schema: {error!r}. Set the option mode to PERMISSIVE to get null."
                ) from None
            found.append(None)
            failed[row] = True
    made = _column(found, json.loads(expected or written), call.type, {})
    if failed.any() and pa.types.is_struct(call.type):
        # A malformed record becomes a struct of nulls, not a null.
        nulls = value.is_null().to_numpy(zero_copy_only=False)
        members = [made.field(i) for i in range(call.type.num_fields)]
        made = struct_column(members, call.type, nulls)
    return made


def _column(values: list[Any], schema: Schema, kind: Kind, named: dict[str, Schema]) -> Array:
    """A column of decoded values of one schema."""
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    if isinstance(schema, list):
        (schema,) = [each for each in schema if each != "null"] or ["null"]
        return _column(values, schema, kind, named)
    if isinstance(schema["type"], dict | list):
        return _column(values, schema["type"], kind, named)
    if "name" in schema:
        named[schema["name"]] = schema
    if pa.types.is_struct(kind):
        members = [
            _column(
                [None if each is None else each[field["name"]] for each in values],
                field["type"],
                member.type,
                named,
            )
            for field, member in zip(schema["fields"], kind, strict=True)
        ]
        return struct_column(members, kind, np.array([each is None for each in values], bool))
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _nested(values, schema, kind, named)
    if schema.get("logicalType") in _MILLIS:
        values = [None if each is None else each * 1000 for each in values]
    if pa.types.is_temporal(kind):
        raw = pa.int32() if kind.bit_width == 32 else pa.int64()
        return arrow.array(values, raw).cast(kind)
    return arrow.array(values, kind)


def _nested(values: list[Any], schema: Schema, kind: Kind, named: dict[str, Schema]) -> Array:
    counts = np.array([len(each or ()) for each in values], np.int64)
    nulls = np.array([each is None for each in values], bool)
    if pa.types.is_list(kind):
        flat = [each for row in values for each in row or ()]
        elements = _column(flat, schema["items"], kind.value_type, named)
        return list_column(elements, counts, nulls, kind)
    keys = pa.array([key for row in values for key in row or ()], pa.string())
    flat = [each for row in values for each in (row or {}).values()]
    items = _column(flat, schema["values"], kind.item_type, named)
    entries = pa.StructArray.from_arrays([keys, retyped(items, kind.item_type)], ["key", "value"])
    return list_column(entries, counts, nulls, kind)


def problem_of(call: Call) -> str | None:
    """Why a call is not supported; None if it is."""
    mode = {name.lower(): text for name, text in call.extra.get("options", {}).items()}
    known = str(mode.get("mode", "FAILFAST")).upper() in ("FAILFAST", "PERMISSIVE")
    schemas = [str(call.extra["jsonFormatSchema"]), str(mode.get("avroschema", "null"))]
    try:
        if any(_has_wide_union(json.loads(text)) for text in schemas if text != "null"):
            return "a union of several types"
    except ValueError as error:
        return f"the schema is not JSON: {error}"
    return None if known else f"the mode {mode['mode']}"


def _has_wide_union(schema: Schema) -> bool:
    if isinstance(schema, list):
        arms = [each for each in schema if each != "null"]
        return len(arms) > 1 or any(map(_has_wide_union, arms))
    if isinstance(schema, dict):
        parts = [schema.get(name) for name in ("type", "items", "values")]
        fields = [field["type"] for field in schema.get("fields", ())]
        return any(map(_has_wide_union, [*parts, *fields]))
    return False


FUNCTIONS: dict[str, Function] = all_on_columns({"AvroDataToCatalyst": _from_avro})

CHECKS: dict[str, Callable[[Call], str | None]] = {"AvroDataToCatalyst": problem_of}
"""What is wrong with a call, so that a query is refused when it is written down."""
