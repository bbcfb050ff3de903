"""Avro payloads become the values that Spark's `from_avro` makes of them."""

from __future__ import annotations

import json
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from epochal.continuous.operators.expressions.avro_values import stored
from epochal.continuous.operators.expressions.evaluate import evaluate, unsupported
from epochal.continuous.operators.expressions.expr import Call, Column
from epochal.errors import OptionError

LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
SCHEMA: Any = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "user", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "OLD"]}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {
            "name": "item",
            "type": {
                "type": "record",
                "name": "Item",
                "fields": [{"name": "local", "type": LOCAL}],
            },
        },
    ],
}
KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("user", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(9, 2)),
        ("state", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("item", pa.struct([("local", pa.timestamp("us"))])),
    ]
)
ORDER = {
    "id": 7,
    "user": None,
    "at": 400_000_000_000_123,
    "day": -800_000,
    "price": Decimal("-12.50"),
    "state": "OLD",
    "tags": ["a", None],
    "counts": {"x": 1},
    "item": {"local": -5},
}


def encoded(value: Any, schema: Any = SCHEMA) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(stored(schema)), value)
    return stream.getvalue()


def decoded(
    payloads: list[bytes | None], kind: pa.DataType = KIND, schema: Any = SCHEMA, **options: str
) -> Any:
    extra = {"jsonFormatSchema": json.dumps(schema), "options": options}
    call = Call("AvroDataToCatalyst", (Column(0),), kind, extra=extra)
    assert unsupported(call) == []
    return evaluate(call, pa.record_batch({"v": pa.array(payloads, pa.binary())}))


def test_every_type_of_a_record_is_decoded_also_times_beyond_the_year_9999() -> None:
    found = decoded([encoded(ORDER), None])
    assert found[1].as_py() is None
    first = {name: found.field(name)[0] for name in KIND.names}
    assert first["id"].as_py() == 7
    assert first["user"].as_py() is None
    assert first["at"].value == 400_000_000_000_123_000
    assert first["day"].value == -800_000
    assert first["price"].as_py() == Decimal("-12.50")
    assert first["state"].as_py() == "OLD"
    assert first["tags"].as_py() == ["a", None]
    assert first["counts"].as_py() == [("x", 1)]
    assert first["item"]["local"].value == -5


def test_a_payload_may_be_something_else_than_a_record() -> None:
    schema = ["null", "int"]
    payloads = [encoded(5, schema), encoded(None, schema), None]
    assert decoded(payloads, pa.int32(), schema).to_pylist() == [5, None, None]


def test_a_malformed_payload_is_an_error_unless_the_mode_is_permissive() -> None:
    with pytest.raises(OptionError, match=r"an Avro payload of 1 bytes does not match the schema"):
        decoded([b"\x02"])
    found = decoded([b"\x02", None], mode="PERMISSIVE").to_pylist()
    assert found == [dict.fromkeys(KIND.names), None]


def test_a_newer_schema_reads_payloads_of_an_older_one() -> None:
    old: Any = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    fields = [*old["fields"], {"name": "b", "type": "string", "default": "none"}]
    new = json.dumps({**old, "fields": fields})
    kind = pa.struct([("a", pa.int32()), ("b", pa.string())])
    found = decoded([encoded({"a": 1}, old)], kind, old, avroSchema=new)
    assert found.to_pylist() == [{"a": 1, "b": "none"}]


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        (["int", "string"], {}, "a union of several types"),
        ("int", {"mode": "DROPMALFORMED"}, "the mode DROPMALFORMED"),
    ],
)
def test_what_is_not_supported_is_refused_before_the_query_starts(
    schema: Any, options: dict[str, str], reason: str
) -> None:
    extra = {"jsonFormatSchema": json.dumps(schema), "options": options}
    call = Call("AvroDataToCatalyst", (Column(0),), pa.int32(), extra=extra)
    assert unsupported(call) == [f"AvroDataToCatalyst ({reason})"]
