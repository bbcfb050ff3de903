"""The puller with the embedded server, and several streams of one sidecar."""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.pubsub_world import World, bodies
from tests.waiting import SECONDS, eventually

from epochal.connectors.pubsub.connection import Connection, Subscriptions
from epochal.connectors.pubsub.pubsub_options import SourceOptions, source_options
from epochal.connectors.pubsub.pull.streaming_pull import MAX_QUEUED_BYTES, Pulled, Puller
from epochal.connectors.pubsub.sidecar.streams import Streams
from epochal.errors import PubSubClosedError


def puller(
    world: World, subscription: str, *, queued: int = MAX_QUEUED_BYTES, **settings: Any
) -> Puller:
    options = SourceOptions(subscription_id=subscription, **settings)
    return Puller(Connection(world.access), options, max_queued_bytes=queued)


def taken(reader: Puller, count: int, *, seconds: float = SECONDS) -> list[Pulled]:
    found: list[Pulled] = []
    end = time.monotonic() + seconds
    while sum(each.batch.num_rows for each in found) < count and time.monotonic() < end:
        more = reader.take(10_000, timeout_s=0.2)
        if more is not None:
            found.append(more)
    return found


def data(pulled: list[Pulled]) -> list[bytes]:
    if not pulled:
        return []
    table = pa.Table.from_batches([each.batch for each in pulled])
    return [bytes(each) for each in table.column("data").to_pylist() if each is not None]


def test_what_was_acknowledged_is_gone_and_the_rest_comes_back_at_once(world: World) -> None:
    topic, subscription = world.pair(ack_deadline_seconds=600)
    sent = [b"%d" % number for number in range(3000)]
    world.publish(topic, sent)
    reader = puller(world, subscription, ack_deadline=timedelta(seconds=600))
    found = taken(reader, 3000)
    assert sorted(data(found)) == sorted(sent)
    first = found[0]
    kept = data([first.split(10)[1]]) + data(found[1:])
    assert reader.ack([first.split(10)[0].span]).result(SECONDS) == {}
    assert reader.book.held == 2990
    reader.close()
    assert sorted(m.message.data for m in world.pull(subscription, 2990)) == sorted(kept)
    assert world.left(subscription) == []


def test_closing_sends_the_acknowledgements_that_were_asked_for(world: World) -> None:
    topic, subscription = world.pair()
    world.publish(topic, [b"x"] * 2000)
    reader = puller(world, subscription)
    futures = [reader.ack([each.span]) for each in taken(reader, 2000)]
    reader.close()
    assert [future.result(0) for future in futures] == [{}] * len(futures)
    assert world.left(subscription) == []
    with pytest.raises(PubSubClosedError):
        reader.take(1)


def test_what_is_held_beyond_the_deadline_does_not_come_again(world: World) -> None:
    topic, subscription = world.pair(ack_deadline_seconds=10)
    world.publish(topic, [b"held"] * 50)
    reader = puller(world, subscription, ack_deadline=timedelta(seconds=10))
    found = taken(reader, 50)
    assert taken(reader, 1, seconds=12) == []
    assert reader.ack([each.span for each in found]).result(SECONDS) == {}
    reader.close()
    assert world.left(subscription) == []


def test_the_queue_is_bounded_when_nobody_takes(world: World) -> None:
    topic, subscription = world.pair()
    for _ in range(8):
        world.publish(topic, [b"x" * 1_000_000] * 4)
    reader = puller(world, subscription, queued=4_000_000, max_outstanding_bytes=1 << 40)
    eventually(lambda: reader.queued_bytes > 3_000_000, "the queue is almost full")
    time.sleep(0.5)  # a queue without a bound would take all 32 MB meanwhile
    assert reader.queued_bytes < 8_000_000
    assert len(data(taken(reader, 32))) == 32
    reader.close()


def test_confirmations_say_which_messages_were_refused(world: World) -> None:
    topic, subscription = world.pair(enable_exactly_once_delivery=True)
    world.publish(topic, [b"1", b"2", b"3"])
    reader = puller(world, subscription)
    found = taken(reader, 3)
    spans = [(number, number + 1) for each in found for number in range(*each.span)]
    assert reader.ack(spans[:1]).result(SECONDS) == {}
    Subscriptions(world.connection).seek(subscription, source_moment())
    refused = reader.ack(spans[1:]).result(SECONDS)
    assert set(refused) == {span[0] for span in spans[1:]}
    assert all(reason.startswith("PERMANENT_FAILURE") for reason in refused.values())
    reader.close()


def source_moment() -> datetime:
    options = SourceOptions(
        subscription_id="sub", project_id="p", seek_to_timestamp="2020-01-01T00:00:00Z"
    )
    found = options.seek_target
    assert isinstance(found, datetime)
    return found


def opened(world: World, subscription: str, **more: str) -> tuple[Streams, list[tuple[int, int]]]:
    """Open streams; return them with the list to which they add the spans of what arrives."""
    spans: list[tuple[int, int]] = []
    lock = threading.Lock()

    def arrived(batch: pa.RecordBatch, first: int) -> None:
        with lock:
            spans.append((first, first + batch.num_rows))

    def failed(error: Exception) -> None:
        raise error

    options = source_options({**world.options, "subscriptionId": subscription, **more})
    streams = Streams(options, arrived, failed)
    streams.open()
    return streams, spans


def test_each_stream_acknowledges_what_it_has_read(
    world: World, topic: str, subscription: str
) -> None:
    streams, spans = opened(
        world, subscription, numPartitions="3", maxOutstandingMessages="300", ackDeadline="600s"
    )
    world.publish(topic, bodies(300))
    eventually(lambda: sum(high - low for low, high in spans) == 300)
    by_stream = Counter(number >> 48 for span in spans for number in range(*span))
    assert by_stream == {0: 100, 1: 100, 2: 100}
    first, rest = spans[0], spans[1:]
    streams.nack([first])
    assert streams.ack(rest).result(10) == {}
    eventually(lambda: sum(high - low for low, high in spans) == 300 + first[1] - first[0])
    assert streams.ack([*spans]).result(10) == {}
    streams.close()
    assert world.left(subscription) == []


def test_there_are_as_many_streams_as_partitions_up_to_four(
    world: World, subscription: str
) -> None:
    for partitions, count in (("1", 1), ("2", 2), ("100", 4)):
        streams, _ = opened(world, subscription, numPartitions=partitions)
        assert len(streams.pullers) == count
        streams.close()
