"""The publisher with the embedded server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.pubsub_world import World, pubsub_world
from tests.waiting import eventually

from epochal.connectors.pubsub.connection import Connection
from epochal.connectors.pubsub.publish.encode import Encoder
from epochal.connectors.pubsub.publish.publisher import Publisher
from epochal.connectors.pubsub.pubsub_options import SinkOptions

OPTIONS = SinkOptions(topic_id="topic", project_id="p")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with pubsub_world("--max-bytes", str(64 << 20)) as found:
        yield found


def publisher(world: World, topic: str, **settings: Any) -> Publisher:
    return Publisher(Connection(world.access), SinkOptions(topic_id=topic, **settings))


def encoded(values: list[bytes], keys: list[str] | None = None) -> Any:
    columns: dict[str, Any] = {"data": values}
    if keys is not None:
        columns["ordering_key"] = keys
    rows = pa.RecordBatch.from_pydict(columns)
    return Encoder(rows.schema, OPTIONS).encode(rows)


def test_a_message_alone_goes_after_the_linger(world: World) -> None:
    topic, subscription = world.pair()
    writer = publisher(world, topic, linger_ms=10)
    writer.add(encoded([b"alone"]).messages)
    assert [m.message.data for m in world.pull(subscription, 1)] == [b"alone"]
    writer.close()


def test_requests_end_at_the_batch_size_and_at_the_bytes(world: World) -> None:
    topic = world.topic()
    for settings, requests in (({"batch_size": 10}, 10), ({"max_batch_bytes": 10_000}, 12)):
        writer = publisher(world, topic, **settings)
        writer.add(encoded([b"x" * 1000] * 100).messages)
        writer.flush()
        assert writer.requests == requests
        writer.close()


def test_messages_of_a_key_stay_in_order(world: World) -> None:
    topic, subscription = world.pair(enable_message_ordering=True)
    values = [b"%d" % number for number in range(3000)]
    keys = [f"k{number % 7}" for number in range(3000)]
    writer = publisher(world, topic, batch_size=50)
    for start in range(0, 3000, 300):
        rows = encoded(values[start : start + 300], keys[start : start + 300])
        writer.add(rows.messages, rows.keys)
    writer.flush()
    found: dict[str, list[int]] = defaultdict(list)
    for each in world.pull(subscription, 3000):
        found[each.message.ordering_key].append(int(each.message.data))
    assert {key: numbers == sorted(numbers) for key, numbers in found.items()} == dict.fromkeys(
        (f"k{number}" for number in range(7)), True
    )
    assert sum(map(len, found.values())) == 3000
    writer.close()


def test_what_is_refused_for_now_is_sent_again(world: World) -> None:
    topic, subscription = world.pair()
    writer = publisher(world, topic, max_batch_bytes=1_000_000)
    for _ in range(70):  # more than the server may hold
        writer.add(encoded([b"x" * 999_000]).messages)
    eventually(lambda: writer.retries, "a request is sent again")
    mark = writer.mark()
    assert not writer.is_published(mark)
    found = world.pull(subscription, 70)
    writer.flush(mark)
    found += world.pull(subscription, 70 - len(found))
    assert len(found) == 70
    writer.close()
