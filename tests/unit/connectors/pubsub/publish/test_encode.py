"""Rows encoded as messages, compared with Google's own classes."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.pubsub_v1.types import pubsub

from epochal.connectors.pubsub.protobuf_wire import encode_field
from epochal.connectors.pubsub.publish.encode import Encoder, Marks, plan_layout
from epochal.connectors.pubsub.pubsub_options import SinkOptions
from epochal.errors import PayloadError

OPTIONS = SinkOptions(topic_id="topic", project_id="p")


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = [each if isinstance(each, pa.Array) else pa.array(each) for each in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def messages(rows: pa.RecordBatch, options: SinkOptions = OPTIONS, **more: Any) -> list[Any]:
    found = Encoder(rows.schema, options).encode(rows, **more)
    request = encode_field(1, b"projects/p/topics/t") + b"".join(found.messages)
    return list(pubsub.PublishRequest.deserialize(request).messages)


def test_binary_and_strings_are_sent_as_they_are() -> None:
    assert [m.data for m in messages(batch(data=[b"\x00\xff", b"x" * 300]))] == [
        b"\x00\xff",
        b"x" * 300,
    ]
    assert [m.data for m in messages(batch(value=["grüß", "b"]))] == ["grüß".encode(), b"b"]


NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
TYPES: list[tuple[Any, bytes]] = [
    (pa.array([True]), b"true"),
    (pa.array([1], pa.int8()), b"1"),
    (pa.array([-2], pa.int16()), b"-2"),
    (pa.array([3], pa.int32()), b"3"),
    (pa.array([2**62], pa.int64()), b"4611686018427387904"),
    (pa.array([1.5], pa.float32()), b"1.5"),
    (pa.array([0.1], pa.float64()), b"0.1"),
    (pa.array([Decimal("12345678901234567890.123456789")]), b"12345678901234567890.123456789"),
    (pa.array([date(2026, 5, 1)]), b"2026-05-01"),
    (pa.array([NOON], pa.timestamp("us", tz="Europe/Berlin")), b"2026-05-01T12:00:00.000000Z"),
    (pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")), b"2026-05-01T12:00:00"),
    (pa.array([timedelta(seconds=90)], pa.duration("us")), b"PT90S"),
    (pa.array([[1, 2]]), b"[1,2]"),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), b'{"a":1}'),
    (pa.array([[(1, "x")]], pa.map_(pa.int32(), pa.string())), b'{"1":"x"}'),
    (
        pa.array([{"a": Decimal("1.10"), "b": b"\x00", "c": [{"d": None}]}]),
        b'{"a":"1.10","b":"AA==","c":[{"d":null}]}',
    ),
]


@pytest.mark.parametrize(("column", "expected"), TYPES, ids=[str(each[0].type) for each in TYPES])
def test_every_type_has_one_text(column: Any, expected: bytes) -> None:
    assert [m.data for m in messages(batch(data=column))] == [expected]


def test_without_a_payload_column_the_row_is_a_json_object() -> None:
    rows = batch(id=[1, 2], name=["a", None], ordering_key=["k", ""], at=[date(2026, 1, 1), None])
    found = messages(rows)
    assert [json.loads(m.data) for m in found] == [
        {"id": 1, "name": "a", "at": "2026-01-01"},
        {"id": 2},
    ]
    assert [m.ordering_key for m in found] == ["k", ""]


def test_attributes_and_ordering_keys_are_sent() -> None:
    rows = batch(
        data=["a", None],
        attributes=pa.array([[("x", "1"), ("y", None)], [("z", "")]], pa.map_(*[pa.string()] * 2)),
        ordering_key=["k", None],
    )
    found = messages(rows)
    assert [(m.data, dict(m.attributes), m.ordering_key) for m in found] == [
        (b"a", {"x": "1", "y": ""}, "k"),
        (b"", {"z": ""}, ""),
    ]


def test_marks_say_query_epoch_and_row() -> None:
    found = messages(batch(data=["a", "b"]), marks=Marks("q", 7, 3), row=10)
    assert [dict(m.attributes) for m in found] == [
        {"epochal-query": "q", "epochal-epoch": "7", "epochal-row": "3-10"},
        {"epochal-query": "q", "epochal-epoch": "7", "epochal-row": "3-11"},
    ]


def test_columns_that_the_source_adds_are_ignored() -> None:
    rows = batch(message_id=["1"], data=[b"x"], delivery_attempt=[1], ack_id=["a"])
    assert [m.data for m in messages(rows)] == [b"x"]


def test_a_column_that_would_be_lost_is_refused() -> None:
    with pytest.raises(PayloadError, match="price would be lost"):
        plan_layout(batch(data=[b""], price=[1]).schema, OPTIONS)


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(PayloadError, match="neither data nor attributes"):
        messages(batch(data=[b"a", None]))
    attributes = pa.array([[]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(PayloadError, match="neither data nor attributes"):
        messages(batch(data=pa.array([None], pa.binary()), attributes=attributes))


def test_a_message_above_the_limit_is_refused() -> None:
    with pytest.raises(PayloadError, match="10000007 bytes"):
        messages(batch(data=[b"x" * 9_999_997]))


def test_a_type_that_cannot_be_sent_is_refused_with_its_column() -> None:
    kind = pa.month_day_nano_interval()
    with pytest.raises(PayloadError, match=r"Column a\.b is month_day_nano_interval"):
        plan_layout(pa.schema([("a", pa.struct([("b", kind)]))]), OPTIONS)


def test_attributes_must_be_strings() -> None:
    kind = pa.map_(pa.string(), pa.int32())
    with pytest.raises(PayloadError, match="values of column attributes are int32"):
        plan_layout(pa.schema([("data", pa.binary()), ("attributes", kind)]), OPTIONS)


def test_ordering_needs_a_key() -> None:
    ordered = SinkOptions(topic_id="topic", project_id="p", ordered=True)
    with pytest.raises(PayloadError, match="no column ordering_key"):
        plan_layout(batch(data=[b""]).schema, ordered)


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"k": "x" * 1025}, "The value of attribute 'k' has 1025 bytes, but Pub/Sub accepts at"),
        ({"k": "ü" * 513}, "The value of attribute 'k' has 1026 bytes"),
        ({"k" * 257: "x"}, "has 257 bytes, but Pub/Sub accepts at most 256"),
        ({"googclient": "x"}, "'googclient' cannot be the name of an attribute"),
        ({str(n): "" for n in range(101)}, "has 101 attributes, but Pub/Sub accepts at most 100"),
    ],
)
def test_attributes_that_pubsub_refuses_are_named(attributes: dict[str, str], said: str) -> None:
    kind = pa.map_(pa.string(), pa.string())
    rows = batch(data=[b"x"], attributes=pa.array([list(attributes.items())], kind))
    with pytest.raises(PayloadError, match=said):
        messages(rows)


def test_attributes_may_be_as_long_as_pubsub_allows() -> None:
    kind = pa.map_(pa.string(), pa.string())
    longest = {"k" * 256: "ü" * 512, **{str(n): "" for n in range(99)}}
    rows = batch(data=[b"x"], attributes=pa.array([list(longest.items())], kind))
    assert [dict(each.attributes) for each in messages(rows)] == [longest]
