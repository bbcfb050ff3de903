"""Child processes of the Pub/Sub benchmark without Spark: a replaying server, and clients of it.

The replaying server answers StreamingPull with responses that were serialised in advance, as fast
as the client reads them, so that the client is the limit. It ignores acknowledgements. Every client
is a separate process, so its CPU time can be measured, and prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import suppress
from typing import Any

import grpc
import pyarrow as pa
from google.pubsub_v1.types import pubsub

from epochal.connectors.pubsub.connection import Connection
from epochal.connectors.pubsub.publish.encode import Encoder
from epochal.connectors.pubsub.publish.publisher import Publisher
from epochal.connectors.pubsub.pubsub_options import Access, SinkOptions, SourceOptions
from epochal.connectors.pubsub.pull.streaming_pull import Puller

TOPIC, SUBSCRIPTION = "projects/bench/topics/bench", "projects/bench/subscriptions/bench"
PER_RESPONSE, RESPONSES = 100, 400
BATCH_ROWS = 5_000


def replay(size: int) -> None:
    """Serve until the input ends; the port is printed."""
    responses = [_response(size, number) for number in range(RESPONSES)]

    def drain(requests: Iterator[bytes]) -> None:
        with suppress(grpc.RpcError):  # the client has disconnected
            for _ in requests:
                pass

    def stream(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        threading.Thread(target=drain, args=(requests,), daemon=True).start()
        while context.is_active():
            yield from responses

    server = grpc.server(
        futures.ThreadPoolExecutor(8), options=[("grpc.max_send_message_length", -1)]
    )
    settle = {
        name: grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")
        for name in ("Acknowledge", "ModifyAckDeadline")
    }
    handlers = {"StreamingPull": grpc.stream_stream_rpc_method_handler(stream), **settle}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", handlers),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(0)


def _response(size: int, number: int) -> bytes:
    kind = pubsub.StreamingPullResponse
    received = [
        {
            "ack_id": f"{number * PER_RESPONSE + each:0176d}",
            "message": {
                "data": b"x" * size,
                "message_id": f"{number * PER_RESPONSE + each:016d}",
                "publish_time": {"seconds": 1_700_000_000},
                "attributes": {"origin": "bench", "kind": "replay"},
            },
        }
        for each in range(PER_RESPONSE)
    ]
    return bytes(kind.serialize(kind(received_messages=received)))


def pull_ours(address: str, seconds: float) -> dict[str, float]:
    """StreamingPull into Arrow, everything acknowledged."""
    access = Access(emulator_host=address, project_id="bench")
    reader = Puller(Connection(access), SourceOptions(subscription_id=SUBSCRIPTION))

    def some() -> int:
        found = reader.take(100_000, timeout_s=0.1)
        if found is None:
            return 0
        reader.ack([found.span])
        return found.batch.num_rows

    return _timed(some, seconds)


def pull_google(address: str, seconds: float) -> dict[str, float]:
    """The official high-level client, everything acknowledged."""
    os.environ["PUBSUB_EMULATOR_HOST"] = address
    from google.cloud import pubsub_v1

    client = pubsub_v1.SubscriberClient()
    count = 0

    def called(message: Any) -> None:
        nonlocal count
        count += 1
        message.ack()

    client.subscribe(SUBSCRIPTION, callback=called)
    seen = 0

    def some() -> int:
        nonlocal seen
        time.sleep(0.05)
        seen, more = count, count - seen
        return more

    return _timed(some, seconds)


def publish_ours(address: str, seconds: float, size: int) -> dict[str, float]:
    """Arrow batches through the sink's encoder and publisher, confirmed."""
    access = Access(emulator_host=address, project_id="bench")
    publisher = Publisher(Connection(access), SinkOptions(topic_id=TOPIC))
    rows = pa.RecordBatch.from_pydict({"data": [b"x" * size] * BATCH_ROWS})
    encoder = Encoder(rows.schema, SinkOptions(topic_id=TOPIC))

    def some() -> int:
        publisher.add(encoder.encode(rows).messages)
        return rows.num_rows

    return _timed(some, seconds, publisher.flush)


def publish_google(address: str, seconds: float, size: int) -> dict[str, float]:
    """The official high-level publisher with batches as large as ours, confirmed."""
    os.environ["PUBSUB_EMULATOR_HOST"] = address
    from google.cloud import pubsub_v1
    from google.cloud.pubsub_v1.types import BatchSettings

    settings = BatchSettings(max_messages=1000, max_bytes=1 << 20, max_latency=0.05)
    client = pubsub_v1.PublisherClient(batch_settings=settings)
    body = b"x" * size
    waiting: list[Any] = []

    def some() -> int:
        waiting.extend(client.publish(TOPIC, body) for _ in range(1000))
        while len(waiting) > 10_000:
            waiting.pop(0).result()
        return 1000

    def flush() -> None:
        for each in waiting:
            each.result()

    return _timed(some, seconds, flush)


def _timed(
    some: Callable[[], int], seconds: float, finish: Callable[[], None] = lambda: None
) -> dict[str, float]:
    warm = time.perf_counter() + min(1.0, seconds / 4)
    while time.perf_counter() < warm:
        some()
    finish()
    start, cpu, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        count += some()
    finish()
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"messages": count, "wall_seconds": wall, "cpu_seconds": cpu}


def main() -> None:
    what, *rest = sys.argv[1:]
    match what, rest:
        case "replay", [size]:
            replay(int(size))
            return
        case "pull-ours" | "pull-google", [address, seconds]:
            run = pull_ours if what == "pull-ours" else pull_google
            print(json.dumps(run(address, float(seconds))), flush=True)
        case _, [address, seconds, size]:
            run_sized = publish_ours if what == "publish-ours" else publish_google
            print(json.dumps(run_sized(address, float(seconds), int(size))), flush=True)
    os._exit(0)  # streams without an end keep threads alive


if __name__ == "__main__":
    main()
