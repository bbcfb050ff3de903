"""The embedded Pub/Sub server: throughput per CPU-second of its core, and over gRPC.

Other benchmarks use the server as their source, so its own cost must be known. The core is
measured in this process. The whole server runs in a separate process, whose CPU is read from /proc.
Its client is so simple (raw bytes, acknowledgement ids found by a pattern) that it is not the
limit.
"""

from __future__ import annotations

import gc
import os
import queue
import re
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
from benchmarks.harness import Report, arguments
from google.pubsub_v1.types import pubsub

from epochal.connectors.pubsub.protobuf_wire import encode_field
from epochal.connectors.pubsub.server.broker import Draft, MessageBroker
from epochal.connectors.pubsub.server.parts import Settings
from epochal.connectors.pubsub.server.pubsub_server import GC_THRESHOLD
from epochal.testing.pubsub import PubSubServer, running_server

TOPIC, SUBSCRIPTION = "projects/bench/topics/bench", "projects/bench/subscriptions/bench"
SIZES = {"100 B": (100, 300_000), "1 KB": (1000, 100_000)}
PER_REQUEST = 500
ACK_ID = re.compile(rb"\x0a\xb0\x01([0-9A-F]{160}[0-9a-f]{16})\x12")
UNLIMITED = [("grpc.max_receive_message_length", -1)]


def main() -> None:
    asked = arguments("pubsub_server").parse_args()
    figures(Report("pubsub", busy=asked.busy, quick=asked.quick))


def figures(report: Report) -> None:
    """All figures of the server."""
    gc.set_threshold(*GC_THRESHOLD)  # as the server does
    for name, (size, count) in SIZES.items():
        core(report, name, size, count)
    for name, (size, count) in SIZES.items():
        with running_server("--project", "bench", "--subscription", "bench:bench") as server:
            whole(report, server, name, size, count)


def core(report: Report, name: str, size: int, count: int) -> None:
    """Publish, serve and acknowledge without a network."""
    broker = MessageBroker()
    broker.create_topic(TOPIC, b"")
    subscription = broker.create_subscription(SUBSCRIPTION, TOPIC, b"", Settings())
    draft: Draft = (encode_field(1, b"x" * size), "", {})
    start = time.process_time()
    for _ in range(count // PER_REQUEST):
        broker.publish(TOPIC, [draft] * PER_REQUEST, 1)
    published = time.process_time() - start
    serve = settle = 0.0
    served = 0
    while True:
        start = time.process_time()
        entries = subscription.deliveries.pull(1000, 1)
        subscription.envelopes.wrap(entries, count_attempts=False)
        serve += time.process_time() - start
        if not entries:
            break
        ids = [subscription.envelopes.ack_id(entry.serial) for entry in entries]
        served += len(entries)
        start = time.process_time()
        subscription.deliveries.ack([subscription.envelopes.serial(i) for i in ids], 1)
        settle += time.process_time() - start
    assert served == count
    assert broker.memory.used == 0
    report.row(
        f"server core, {name}",
        published_per_cpu_second=round(count / published),
        served_per_cpu_second=round(count / serve),
        acked_per_cpu_second=round(count / settle),
        all_three_per_cpu_second=round(count / (published + serve + settle)),
    )


def whole(report: Report, server: PubSubServer, name: str, size: int, count: int) -> None:
    """Publish over gRPC, then stream and acknowledge everything."""
    message = {"data": b"x" * size}
    request = pubsub.PublishRequest.serialize(
        pubsub.PublishRequest(topic=TOPIC, messages=[message] * PER_REQUEST)
    )
    with grpc.insecure_channel(server.address, UNLIMITED) as channel:
        publish = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        clock = Stopwatch(server.pid)
        waiting: list[Any] = []
        for _ in range(count // PER_REQUEST):
            waiting.append(publish.future(request))
            if len(waiting) >= 8:
                waiting.pop(0).result()
        for future in waiting:
            future.result()
        clock.row(report, f"server publish, {name}", count)
        pull = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        opening = pubsub.StreamingPullRequest(
            subscription=SUBSCRIPTION, stream_ack_deadline_seconds=60
        )
        requests.put(pubsub.StreamingPullRequest.serialize(opening))
        clock = Stopwatch(server.pid)
        received = 0
        for payload in pull(iter(requests.get, None)):
            ids = ACK_ID.findall(payload)
            requests.put(b"".join([b"\x12\xb0\x01" + ack_id for ack_id in ids]))
            received += len(ids)
            if received >= count:
                requests.put(None)
        assert received == count
        clock.row(report, f"server stream and acknowledge, {name}", count)


class Stopwatch:
    """Wall time, and the CPU of this process and of the server's."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._wall, self._own, self._server = self._now()

    def _now(self) -> tuple[float, float, float]:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        ticks: Iterator[int] = (int(each) for each in islice(fields, 11, 13))
        return time.perf_counter(), time.process_time(), sum(ticks) / os.sysconf("SC_CLK_TCK")

    def row(self, report: Report, figure: str, count: int) -> None:
        wall, own, server = self._now()
        wall, own, server = wall - self._wall, own - self._own, server - self._server
        report.row(
            figure,
            messages=count,
            per_second=round(count / wall),
            per_server_cpu_second=round(count / server),
            wall_seconds=wall,
            server_cpu_seconds=server,
            client_cpu_seconds=own,
        )


if __name__ == "__main__":
    main()
