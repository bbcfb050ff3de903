"""Child processes of the Pub/Sub latency benchmark that do not need Spark.

meter   publishes to one topic at a fixed rate and receives from another, and measures the delay
bare    relays with nothing but gRPC: each response's messages are published at once
google  relays with Google's high-level client: each callback publishes, and acks when confirmed

A message's payload is the time when it was due, in nanoseconds. The meter uses gRPC without any
client on top, so that no batching of its own is measured. A relay runs until its input ends.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
from benchmarks.harness import percentile
from google.pubsub_v1.types import pubsub

PROJECT = "bench"
ARRIVALS, DEPARTURES = "arrivals", "departures"
TICK_S = 0.005
WARM_UP_S, START_S, PATIENCE_S = 5.0, 120.0, 5.0
ACK_S = 0.1
OPEN_SECONDS = 60
Publish: Any = pubsub.PublishRequest.pb()
Pull: Any = pubsub.StreamingPullRequest.pb()
Pulled: Any = pubsub.StreamingPullResponse.pb()
Acknowledge: Any = pubsub.AcknowledgeRequest.pb()


def topic(name: str) -> str:
    return f"projects/{PROJECT}/topics/{name}"


def subscription(name: str) -> str:
    return f"projects/{PROJECT}/subscriptions/{name}-sub"


class Bare:
    """Pub/Sub's three calls, on one channel."""

    def __init__(self, address: str) -> None:
        channel = grpc.insecure_channel(address)
        services = "/google.pubsub.v1.Publisher/Publish", "/google.pubsub.v1.Subscriber/Acknowledge"
        self._publish, self._acknowledge = map(channel.unary_unary, services)
        self._pull = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")
        self._acks: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._sent: set[Any] = set()

    def publish(self, to: str, bodies: list[bytes]) -> Any:
        request = Publish(topic=topic(to), messages=[{"data": body} for body in bodies])
        sent = self._publish.future(request.SerializeToString())
        self._sent.add(sent)  # gRPC cancels a call that nobody refers to
        sent.add_done_callback(self._sent.discard)
        return sent

    def pull(self, name: str) -> Iterator[Any]:
        """Yield the responses of a stream; `ack` acknowledges its messages ten times a second."""
        first = Pull(subscription=subscription(name), stream_ack_deadline_seconds=OPEN_SECONDS)

        def requests() -> Iterator[bytes]:
            yield first.SerializeToString()
            threading.Event().wait()

        threading.Thread(target=self._run_acks, args=(name,), daemon=True).start()
        for raw in self._pull(requests()):
            yield Pulled.FromString(raw)

    def ack(self, ack_id: str) -> None:
        self._acks.put(ack_id)

    def _run_acks(self, name: str) -> None:
        while True:
            time.sleep(ACK_S)
            found: list[str] = []
            with suppress(queue.Empty):
                while len(found) < 1000:
                    found.append(self._acks.get_nowait())
            if found:
                request = Acknowledge(subscription=subscription(name), ack_ids=found)
                self._acknowledge(request.SerializeToString())


def relay_bare(address: str) -> None:
    calls = Bare(address)
    for response in calls.pull(ARRIVALS):
        received = response.received_messages
        sent = calls.publish(DEPARTURES, [each.message.data for each in received])
        sent.add_done_callback(partial(_acknowledge, calls, received))


def _acknowledge(calls: Bare, received: Any, _sent: Any) -> None:
    for each in received:
        calls.ack(each.ack_id)


def relay_google(address: str) -> None:
    os.environ["PUBSUB_EMULATOR_HOST"] = address
    from google.cloud import pubsub_v1
    from google.cloud.pubsub_v1.types import BatchSettings

    publisher = pubsub_v1.PublisherClient(batch_settings=BatchSettings(max_latency=0))
    subscriber = pubsub_v1.SubscriberClient()

    def called(message: Any) -> None:
        publisher.publish(topic(DEPARTURES), message.data).add_done_callback(
            lambda _sent: message.ack()
        )

    subscriber.subscribe(subscription(ARRIVALS), callback=called)
    threading.Event().wait()


def measure(address: str, source: str, rate: int, seconds: float) -> dict[str, Any]:
    """Publish to arrivals, receive from the topic `source`; print when the measured time begins."""
    reading, writing = Bare(address), Bare(address)
    arrived: list[tuple[int, int]] = []
    first = threading.Event()

    def receive() -> None:
        for response in reading.pull(source):
            now = time.time_ns()
            for each in response.received_messages:
                arrived.append((int(each.message.data), now))
                reading.ack(each.ack_id)
            first.set()

    threading.Thread(target=receive, daemon=True).start()
    deadline = time.monotonic() + START_S
    while not first.wait(0.2):  # until the relay has started
        if time.monotonic() > deadline:
            raise TimeoutError(f"no message came out within {START_S:g} s")
        writing.publish(ARRIVALS, [b"%d" % time.time_ns()])
    per_tick, tick_ns = round(rate * TICK_S), int(TICK_S * 1e9)
    start = time.time_ns()
    begin = start + int(WARM_UP_S * 1e9)
    end = begin + int(seconds * 1e9)
    due, begun = start, False
    while due < end:
        time.sleep(max(due - time.time_ns(), 0) / 1e9)
        writing.publish(ARRIVALS, [b"%d" % due] * per_tick)
        due += tick_ns
        if not begun and due >= begin:
            print("BEGIN", flush=True)
            begun = True
    print("END", flush=True)
    wanted = len(range(start, end, tick_ns)) * per_tick
    patience = time.monotonic() + PATIENCE_S
    while sum(due >= start for due, _ in arrived) < wanted and time.monotonic() < patience:
        time.sleep(0.05)
    delays = [(at - due) / 1e6 for due, at in arrived if begin <= due < end]
    return {
        "messages": len(delays),
        "missing": per_tick * sum(begin <= each < end for each in range(start, end, tick_ns))
        - len(delays),
        "p50_ms": percentile(delays, 50),
        "p99_ms": percentile(delays, 99),
        "max_ms": max(delays),
    }


def main() -> None:
    match sys.argv[1:]:
        case ["meter", address, source, rate, seconds]:
            found = measure(address, source, int(rate), float(seconds))
            print("RESULT " + json.dumps(found), flush=True)
        case ["bare" | "google" as kind, address]:
            relay = relay_bare if kind == "bare" else relay_google
            threading.Thread(target=relay, args=(address,), daemon=True).start()
            sys.stdin.read()
        case other:
            raise SystemExit(f"not a benchmark: {other}")
    os._exit(0)  # streams without an end keep threads alive


if __name__ == "__main__":
    main()
