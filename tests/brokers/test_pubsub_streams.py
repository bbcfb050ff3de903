"""Several streams of one sidecar: who reads and who acknowledges."""

from __future__ import annotations

import threading

import pyarrow as pa
from tests.integration.pubsub_world import World, bodies
from tests.waiting import eventually

from epochal.connectors.pubsub.pubsub_options import source_options
from epochal.connectors.pubsub.sidecar.streams import Streams


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
    assert [each.received for each in streams.stats()] == [100, 100, 100]
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
        assert len(streams.stats()) == count
        streams.close()
