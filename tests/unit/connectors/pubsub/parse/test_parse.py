"""Payloads are parsed into typed columns; those that do not match the schema are reported."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from epochal.connectors.pubsub.parse.parse import ParseSpec, parse_spec
from epochal.connectors.pubsub.publish.encode import Encoder
from epochal.connectors.pubsub.publish.payloads import rows_as_json
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


def test_json_becomes_a_struct_of_the_given_types() -> None:
    kinds = (
        "id int, big bigint, ok boolean, price decimal(10,2), at timestamp, day date, raw binary, "
        "tags array<string>, more map<string,struct<x:double>>"
    )
    payload = {
        "id": 1,
        "big": 2**62,
        "ok": True,
        "price": "12.30",
        "at": "2026-05-01T12:00:00Z",
        "day": "2026-05-01",
        "raw": base64.b64encode(b"\x00\xff").decode(),
        "tags": ["a", None],
        "more": {"k": {"x": 1.5}},
        "unknown": [1],
    }
    ((value, error),) = parsed(spec("json", kinds), json.dumps(payload).encode())
    assert error is None
    assert value == {
        "id": 1,
        "big": 2**62,
        "ok": True,
        "price": Decimal("12.30"),
        "at": datetime(2026, 5, 1, 12, tzinfo=UTC),
        "day": date(2026, 5, 1),
        "raw": b"\x00\xff",
        "tags": ["a", None],
        "more": [("k", {"x": 1.5})],
    }


def test_malformed_json_says_what_is_wrong_and_where() -> None:
    found = parsed(
        spec("json", "id int, name string"),
        b'{"id": 1}',
        b"{not json",
        b'{"id": "one"}',
        b'{"id": 3000000000}',
        b'{"id": 1}{"id": 2}',
        b"\xff\xfe",
        b"",
        b"[]",
        b'{"id": null, "name": "x"}',
    )
    assert found[0] == ({"id": 1, "name": None}, None)
    assert found[-1] == ({"id": None, "name": "x"}, None)
    for value, error in found[1:-1]:
        assert value is None
        assert error
    assert "$.id" in found[2][1]


def test_a_decimal_of_too_many_digits_spoils_its_own_row_only() -> None:
    found = parsed(spec("json", "d decimal(5,2)"), b'{"d": "1.25"}', b'{"d": "123456.789"}')
    assert found[0] == ({"d": Decimal("1.25")}, None)
    assert found[1][0] is None
    assert found[1][1]


def test_what_the_sink_writes_can_be_parsed_again() -> None:
    names = ["a", "b", "c", "d"]
    columns: list[Any] = [
        pa.array([1]),
        pa.array([Decimal("1.20")], pa.decimal128(5, 2)),
        pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC")),
        pa.array([b"\x01"]),
    ]
    (payload,) = rows_as_json(names, columns)
    kinds = "a bigint, b decimal(5,2), c timestamp, d binary"
    ((value, error),) = parsed(spec("json", kinds), payload)
    assert (list(value.values()), error) == ([column[0].as_py() for column in columns], None)


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
    good, bad = spec("json", "id int").open().parse(messages(b'{"id":1}', b"x")).split()
    assert good.column("parsed").to_pylist() == [{"id": 1}]
    assert bad.column("data").to_pylist() == [b"x"]
    assert bad.column("parse_error").null_count == 0
    assert Encoder(bad.select(["data"]).schema, SinkOptions(topic_id="t"))
