"""Values in Confluent's wire format, with a real registry and Confluent's own serializers.

Whatever Confluent's client writes is read, and whatever the sink writes is read by that client.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tests.contract.sinks import Logging
from tests.integration.kafka_reading import send
from tests.integration.test_examples import EXAMPLES, ROOT, environment
from tests.kafka_topics import create_topic, read_topic
from tests.rigs.guarded_proxy import guarded_proxy, make_certificate
from tests.rigs.registry import running_registry
from tests.waiting import eventually

from epochal.connectors.contract import Sink, WriterContext
from epochal.connectors.registry import open_sink, open_source, pinned_options, source_schema
from epochal.errors import OptionError, SchemaRegistryError
from epochal.files.local import LocalFiles
from epochal.testing.kafka import Kafka

FIRST = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": ["null", "string"], "default": None},
    ],
}
SECOND = {
    **FIRST,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": "double", "default": 1.5},
        {"name": "name", "type": ["null", "string"], "default": None},
    ],
}


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with running_registry() as url:
        yield url


class World:
    """A topic and its subject."""

    def __init__(self, broker: Kafka, registry: str, folder: Path) -> None:
        self.broker, self.url = broker, registry
        self.topic = create_topic(broker.bootstrap_servers, f"orders-{uuid4()}")
        self.subject = f"{self.topic}-value"
        self.checkpoint = LocalFiles(folder / "checkpoint", durable=False)
        self.client = SchemaRegistryClient({"url": registry})
        self.context = SerializationContext(self.topic, MessageField.VALUE)

    def registered(self, schema: dict[str, Any]) -> int:
        found = self.client.register_schema(self.subject, Schema(json.dumps(schema), "AVRO"))
        return int(found)

    def avro(self, schema: dict[str, Any], *rows: dict[str, Any]) -> None:
        """Write rows as Confluent's client does."""
        serialize = AvroSerializer(self.client, json.dumps(schema))
        self.write(*(serialize(row, self.context) for row in rows))

    def write(self, *values: bytes | None) -> None:
        send(self.broker, [(self.topic, 0, {"value": value}) for value in values])

    def options(self, form: str = "avro", **more: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
            "valueFormat": form,
            "schemaRegistry.url": self.url,
            **more,
        }

    def read(self, count: int, form: str = "avro", **more: str) -> list[dict[str, Any]]:
        given = self.options(form, subscribe=self.topic, startingOffsets="earliest", **more)
        given = pinned_options("kafka", given)
        schema = source_schema("kafka", given, None)
        with closing(open_source("kafka", given, None, self.checkpoint, 0)) as source:
            assert source.schema == schema
            readers = pickle.loads(pickle.dumps(source.readers))
            with closing(readers.open(source.initial())) as reader:
                found: list[dict[str, Any]] = []

                def enough() -> bool:
                    batch = reader.read(1_000)
                    if batch is not None:
                        assert batch.schema.equals(schema)
                        found.extend(batch.to_pylist())
                    return len(found) >= count

                eventually(enough, f"{count} rows")
        return found

    def sink(self, kind: pa.DataType, form: str = "avro", **more: str) -> Sink:
        given = self.options(form, topic=self.topic, **more)
        schema = pa.schema([("value", kind)])
        sink = open_sink("kafka", given, schema, checkpoint=self.checkpoint, query_id=self.topic)
        found: Sink = Logging(sink, self.checkpoint)
        return found

    def written(self, values: pa.Array[Any], form: str = "avro", **more: str) -> list[bytes]:
        """Write one epoch; return the values in the topic."""
        schema = pa.schema([("value", values.type)])
        with closing(self.sink(values.type, form, **more)) as sink:
            sink.fence(1)
            writers = pickle.loads(pickle.dumps(sink.writers))
            with closing(writers.open(WriterContext(0, 1, "run", schema))) as writer:
                writer.write(pa.record_batch([values], schema=schema))
                sink.commit(0, [writer.cut(0)()])
        return [value for _, _, value in read_topic(self.broker.bootstrap_servers, self.topic)]


@pytest.fixture
def world(broker: Kafka, registry: str, tmp_path: Path) -> Iterator[World]:
    found = World(broker, registry, tmp_path)
    with found.client:
        yield found


def test_values_of_several_versions_are_read_with_the_latest_schema(world: World) -> None:
    world.avro(FIRST, {"id": 1, "name": "a"})
    world.avro(SECOND, {"id": 2**40, "amount": 2.5, "name": None})
    world.avro(FIRST, {"id": 3, "name": None})
    world.write(None)
    rows = world.read(4)
    assert [row["parsed"] for row in rows] == [
        {"id": 1, "amount": 1.5, "name": "a"},
        {"id": 2**40, "amount": 2.5, "name": None},
        {"id": 3, "amount": 1.5, "name": None},
        None,
    ]
    assert [row["parse_error"] for row in rows] == [None] * 4
    assert rows[0]["topic"] == world.topic


def test_a_version_or_a_schema_of_ones_own_can_be_read_with(world: World) -> None:
    world.avro(FIRST, {"id": 1, "name": "a"})
    world.avro(SECOND, {"id": 2, "amount": 2.5, "name": "b"})
    (first, _) = world.read(2, schemaVersion="2")
    assert first["parsed"] == {"id": 1, "amount": 1.5, "name": "a"}
    ours = {**FIRST, "fields": [FIRST["fields"][1]]}
    rows = world.read(2, valueSchema=json.dumps(ours))
    assert [row["parsed"] for row in rows] == [{"name": "a"}, {"name": "b"}]


def test_a_registry_behind_tls_and_a_password_is_asked_with_both(
    world: World, tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path / "tls.pem")
    basic = f"Basic {base64.b64encode(b'me:pass:word').decode()}"
    with guarded_proxy(world.url, basic, certificate) as proxy:
        user, ca = "schemaRegistry.basic.auth.user.info", "schemaRegistry.ssl.ca.location"
        safe = {"schemaRegistry.url": proxy.url, ca: str(certificate)}
        given = {**safe, user: "me:pass:word"}
        values = pa.array([{"id": 1}], pa.struct([("id", pa.int64())]))
        world.written(values, **given)
        assert [row["parsed"] for row in world.read(1, **given)] == [{"id": 1}]
        in_url = proxy.url.replace("://", "://me:pass:word@")
        found = world.read(1, **{**safe, "schemaRegistry.url": in_url})
        assert [row["parsed"] for row in found] == [{"id": 1}]
        for more, reason in (
            ({}, r"HTTP 401"),
            ({user: "me:other"}, r"HTTP 403"),
            ({**given, ca: None}, "certificate verify failed"),
        ):
            wanted = {key: text for key, text in {**safe, **more}.items() if text is not None}
            with pytest.raises(SchemaRegistryError, match=reason) as told:
                world.read(1, **wanted)
            assert "other" not in str(told.value)
            assert "pass" not in str(told.value)


def test_a_schema_that_is_registered_later_does_not_change_a_query(world: World) -> None:
    world.registered(FIRST)
    pinned = pinned_options("kafka", world.options(subscribe=world.topic))
    world.registered(SECOND)
    assert source_schema("kafka", pinned, None).field("parsed").type == pa.struct(
        [("id", pa.int32()), ("name", pa.string())]
    )


def test_an_id_that_the_registry_does_not_know_stops_the_query(world: World) -> None:
    world.registered(FIRST)
    world.write(b"\x00\x00\x0f\x42\x3f\x02\x00")
    with pytest.raises(SchemaRegistryError, match="it has no schema with id 999999, but a record"):
        world.read(1)


def test_a_subject_or_registry_that_is_not_there_is_told(world: World) -> None:
    with pytest.raises(SchemaRegistryError, match=rf"subject {world.subject} has no schema"):
        world.read(1)
    world.registered(FIRST)
    with pytest.raises(SchemaRegistryError, match="has no version 7"):
        world.read(1, schemaVersion="7")
    nowhere = {"schemaRegistry.url": "http://me:secret@127.0.0.1:9"}
    with pytest.raises(SchemaRegistryError, match="did not answer 4 requests") as caught:
        world.read(1, **nowhere)
    assert "secret" not in str(caught.value)


def test_a_schema_may_refer_to_another(world: World) -> None:
    inner = {"type": "record", "name": "shop.Item", "fields": [{"name": "n", "type": "int"}]}
    outer = {
        "type": "record",
        "name": "shop.Cart",
        "fields": [{"name": "item", "type": "shop.Item"}],
    }
    subject = f"item-{uuid4()}"
    world.client.register_schema(subject, Schema(json.dumps(inner), "AVRO"))
    schema = Schema(json.dumps(outer), "AVRO", [SchemaReference("shop.Item", subject, 1)])
    identifier = world.client.register_schema(world.subject, schema)
    world.write(b"\x00" + identifier.to_bytes(4) + b"\x0e")
    assert world.read(1)[0]["parsed"] == {"item": {"n": 7}}


def test_what_the_sink_writes_is_read_by_confluents_client(world: World) -> None:
    kind = pa.struct(
        [
            ("id", pa.int64()),
            ("name", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("price", pa.decimal128(10, 2)),
            ("tags", pa.list_(pa.string())),
            ("counts", pa.map_(pa.string(), pa.int64())),
            ("inner", pa.struct([("ok", pa.bool_())])),
        ]
    )
    row = {
        "id": 1,
        "name": "é",
        "at": datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC),
        "day": date(2024, 2, 29),
        "price": Decimal("12.50"),
        "tags": ["a", None],
        "counts": {"x": 1},
        "inner": {"ok": True},
    }
    empty = dict.fromkeys(row)
    values = world.written(pa.array([row, empty, None], kind))
    deserialize = AvroDeserializer(world.client)
    assert [value and deserialize(value, world.context) for value in values] == [row, empty, None]
    assert [each["parsed"] for each in world.read(3)] == [
        {**row, "counts": [("x", 1)]},
        empty,
        None,
    ]


def test_the_sink_writes_with_the_schema_that_the_subject_has(world: World) -> None:
    identifier = world.registered(SECOND)
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    (value,) = world.written(pa.array([{"id": 1, "name": "a"}], kind))
    assert value[1:5] == identifier.to_bytes(4)
    found = AvroDeserializer(world.client)(value, world.context)
    assert found == {"id": 1, "amount": 1.5, "name": "a"}
    assert world.client.get_versions(world.subject) == [1]


def test_columns_that_do_not_fit_the_schema_are_refused_at_the_start(world: World) -> None:
    with pytest.raises(SchemaRegistryError, match="has no schema"):
        world.sink(pa.struct([("id", pa.int64())]), autoRegister="false")
    world.registered(FIRST)
    with pytest.raises(OptionError, match="it lacks id"):
        world.sink(pa.struct([("name", pa.string())]))
    with pytest.raises(OptionError, match="colour would be lost"):
        world.sink(pa.struct([("id", pa.int32()), ("colour", pa.string())]))
    with pytest.raises(OptionError, match="must be a struct, but it is string"):
        world.sink(pa.string())
    world.client.set_compatibility(world.subject, "BACKWARD")
    wrong = {**FIRST, "fields": [{"name": "id", "type": "string"}]}
    with pytest.raises(SchemaRegistryError, match="it refused subjects/"):
        world.sink(pa.struct([("id", pa.string())]), valueSchema=json.dumps(wrong))


def test_values_that_do_not_fit_the_schema_are_bad_rows(world: World, tmp_path: Path) -> None:
    world.registered(FIRST)
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    rows = pa.array([{"id": 1}, {"id": None}, {"id": 2**40}, {"id": 4}], kind)
    with pytest.raises(OptionError, match="a value does not fit the schema"):
        world.written(rows)
    letters = tmp_path / "letters"
    values = world.written(rows, onBadRow="deadLetter", deadLetterPath=str(letters))
    deserialize = AvroDeserializer(world.client)
    assert [deserialize(value, world.context)["id"] for value in values] == [1, 4]
    (file,) = letters.iterdir()
    found = [json.loads(line)["row"]["value"] for line in file.read_text().splitlines()]
    assert found == [{}, {"id": 2**40}]


def order_file() -> Any:
    """A file with two messages, the second of them nested."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name=f"order-{uuid4()}.proto", package="shop", syntax="proto3"
    )
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    order.field.add(name="name", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    line = order.nested_type.add(name="Line")
    line.field.add(name="n", number=1, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    return file


def message_class(file: Any, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def descriptor_set(file: Any) -> str:
    found = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return base64.b64encode(found).decode()


def test_protobuf_of_confluents_client_is_read(world: World) -> None:
    file = order_file()
    order, line = message_class(file, "shop.Order"), message_class(file, "shop.Order.Line")
    serialize = ProtobufSerializer(order, world.client)
    world.write(serialize(order(id=1, name="é"), world.context), None)
    nested = ProtobufSerializer(line, world.client)
    world.write(nested(line(n=3), world.context), b"\x00\x00")
    rows = world.read(4, "protobuf", valueSchema=descriptor_set(file))
    assert [row["parsed"] for row in rows] == [{"id": 1, "name": "é"}, None, None, None]
    errors = [row["parse_error"] for row in rows]
    assert errors[:2] == [None, None]
    assert "not shop.Order" in errors[2]
    assert "not written with a schema registry" in errors[3]
    # The client has registered the schema in its compiled form, so the subject is enough.
    assert world.read(4, "protobuf")[0]["parsed"] == {"id": 1, "name": "é"}
    given = {"valueSchema": descriptor_set(file), "valueMessage": "shop.Order.Line"}
    assert world.read(4, "protobuf", **given)[2]["parsed"] == {"n": 3}


def test_protobuf_that_a_registry_returns_as_text_needs_a_descriptor_set(world: World) -> None:
    text = 'syntax = "proto3"; package shop; message Order { int64 id = 1; string name = 2; }'
    identifier = world.client.register_schema(world.subject, Schema(text, "PROTOBUF"))
    with pytest.raises(OptionError, match="as text, and not in its compiled form"):
        world.read(1, "protobuf")
    world.write(b"\x00" + identifier.to_bytes(4) + b"\x00\x08\x07")
    (row,) = world.read(1, "protobuf", valueSchema=descriptor_set(order_file()))
    assert row["parsed"] == {"id": 7, "name": ""}


def test_protobuf_that_the_sink_writes_is_read_by_confluents_client(world: World) -> None:
    file = order_file()
    order = message_class(file, "shop.Order")
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    rows = pa.array([{"id": 1, "name": "é"}, {"id": None, "name": "b"}, None], kind)
    values = world.written(rows, "protobuf", valueSchema=descriptor_set(file))
    deserialize = ProtobufDeserializer(order, {"use.deprecated.format": False}, world.client)
    found = [value and deserialize(value, world.context) for value in values]
    assert found[:2] == [order(id=1, name="é"), order(name="b")]
    assert found[2] is None


def test_the_example_checks_orders(world: World, tmp_path: Path) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "amount", "type": ["null", "double"]}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    world.avro(schema, {"id": 1, "amount": 2.5}, {"id": 2, "amount": None}, {"id": 3, "amount": 1})
    world.write(b"not avro")
    target = create_topic(world.broker.bootstrap_servers, f"checked-{uuid4()}")
    script = tmp_path / "registry_orders.py"
    text = (EXAMPLES / "registry_orders.py").read_text().replace('"checked-orders"', f'"{target}"')
    script.write_text(text.replace('"orders"', f'"{world.topic}"'))
    arguments = [world.broker.bootstrap_servers, world.url, str(tmp_path)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            cwd=tmp_path,
            env={**environment(), "PYTHONPATH": str(ROOT / "src")},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    letters = tmp_path / "dead-letters"
    try:
        eventually(
            lambda: (
                len(read_topic(world.broker.bootstrap_servers, target)) == 2
                and letters.is_dir()
                and sum(len(file.read_text().splitlines()) for file in letters.iterdir()) == 2
            ),
            lambda: (tmp_path / "log").read_text()[-3000:],
            120,
        )
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    found = "".join(file.read_text() for file in letters.iterdir())
    assert "the order has no amount" in found
    assert "not written with a schema registry" in found
