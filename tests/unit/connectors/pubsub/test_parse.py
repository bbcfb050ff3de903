"""Payloads are parsed into typed columns; those that do not match the schema are reported."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from epochal.connectors.pubsub.parse import ParseSpec, parse_spec
from epochal.connectors.pubsub.publish.encode import Encoder
from epochal.connectors.pubsub.pubsub_options import SinkOptions, source_options
from epochal.connectors.pubsub.pull.received_rows import MESSAGE_SCHEMA
from epochal.errors import OptionError, PayloadError

BASE = {"subscriptionId": "sub", "projectId": "p"}


def messages(*payloads: bytes, attributes: Any = None) -> pa.RecordBatch:
    rows = [
        {"message_id": str(n), "data": payload, "attributes": attributes or []}
        for n, payload in enumerate(payloads)
    ]
    return pa.RecordBatch.from_pylist(rows, MESSAGE_SCHEMA)


def spec(kind: str, schema: str, **more: str) -> ParseSpec:
    found = parse_spec(source_options({**BASE, "parse": kind, "parseSchema": schema, **more}))
    assert found is not None
    return found


def parsed(found: ParseSpec, *payloads: bytes, attributes: Any = None) -> list[Any]:
    rows = found.open().parse(messages(*payloads, attributes=attributes)).with_errors()
    assert rows.schema.equals(found.extended(MESSAGE_SCHEMA, errors=True))
    return [(row["parsed"], row["parse_error"]) for row in rows.to_pylist()]


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "lines", "type": {"type": "array", "items": "double"}},
    ],
}
ORDER = {
    "id": 7,
    "note": None,
    "at": datetime(2026, 5, 1, tzinfo=UTC),
    "price": Decimal("1.25"),
    "kind": "B",
    "tags": {"x": 1},
    "lines": [0.5],
}


def avro(record: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), record)
    return out.getvalue()


def test_avro_becomes_a_struct(tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(AVRO))
    for schema in (json.dumps(AVRO), str(path)):
        found = parsed(spec("avro", schema), avro(ORDER), avro(ORDER)[:-3], avro(ORDER) + b"x", b"")
        assert found[0] == ({**ORDER, "tags": [("x", 1)]}, None)
        assert [value for value, _ in found[1:]] == [None] * 3
        assert all(error for _, error in found[1:])


def test_every_avro_error_has_a_reason() -> None:
    whole = avro(ORDER)
    payloads = [b"", *(whole[:size] for size in range(1, len(whole))), whole + b"x", b"\xff" * 40]
    errors = [error or "" for _, error in parsed(spec("avro", json.dumps(AVRO)), *payloads)]
    assert [error for error in errors if error and len(error.partition(": ")[2]) < 10] == []
    assert errors[0] == "EOFError: the payload of 0 bytes ends too early for the schema"


def test_avro_may_be_json_if_the_attribute_says_so() -> None:
    schema = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    encoding = [("googclient_schemaencoding", "JSON")]
    found = parsed(spec("avro", schema), b'{"a": 1}', b"{", attributes=encoding)
    assert found[0] == ({"a": 1}, None)
    assert found[1][0] is None


def protobuf() -> tuple[bytes, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        {"id": kinds.TYPE_INT64, "name": kinds.TYPE_STRING, "count": kinds.TYPE_UINT32}.items(), 1
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    cls = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), cls


def test_protobuf_becomes_a_struct(tmp_path: Path) -> None:
    document, order = protobuf()
    (tmp_path / "orders.desc").write_bytes(document)
    good = order(id=5, name="five", count=2**32 - 1).SerializeToString()
    for schema in (base64.b64encode(document).decode(), str(tmp_path / "orders.desc")):
        found = parsed(spec("protobuf", schema, parseMessage="shop.Order"), good, b"\x0a\xff", good)
        assert found[0] == found[2] == ({"id": 5, "name": "five", "count": 2**32 - 1}, None)
        assert found[1][0] is None
        assert found[1][1]


WRONG: list[tuple[dict[str, str], str]] = [
    ({"parse": "xml"}, "must be one of json, avro, protobuf"),
    ({"parse": "json"}, "needs the payload's schema"),
    ({"parse": "avro"}, "needs parseSchema"),
    ({"parse": "avro", "parseSchema": "{}"}, "not a valid Avro schema"),
    ({"parse": "avro", "parseSchema": "/nowhere.avsc"}, "cannot be read"),
    ({"parse": "protobuf", "parseSchema": "AAAA"}, "needs parseMessage"),
    ({"parse": "protobuf", "parseSchema": "", "parseMessage": "x.Y"}, "has no message 'x.Y'"),
    ({"parseSchema": "a int"}, "no effect without parse"),
]


@pytest.mark.parametrize(("given", "expected"), WRONG, ids=[expected for _, expected in WRONG])
def test_wrong_parse_options_are_reported_at_once(given: dict[str, str], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        parse_spec(source_options({**BASE, **given}))


def test_a_union_of_two_types_has_no_column() -> None:
    schema = {**AVRO, "fields": [{"name": "u", "type": ["int", "string"]}]}
    with pytest.raises(PayloadError, match=r"payload\.u is a union of 2 types"):
        spec("avro", json.dumps(schema))


def test_bad_rows_are_separated_from_good_ones() -> None:
    rows = messages(avro(ORDER), b"x")
    good, bad = spec("avro", json.dumps(AVRO)).open().parse(rows).split()
    parsed_rows: list[Any] = good.column("parsed").to_pylist()
    assert [row["id"] for row in parsed_rows] == [7]
    assert bad.column("data").to_pylist() == [b"x"]
    assert bad.column("parse_error").null_count == 0
    assert Encoder(bad.select(["data"]).schema, SinkOptions(topic_id="t"))
