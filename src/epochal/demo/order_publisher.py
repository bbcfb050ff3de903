"""Publishes the demo's orders at a steady rate, and prints the number of published orders.

python -m epochal.demo.order_publisher pubsub|kafka ADDRESS COUNT RATE
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from epochal.demo.orders import Order, order
from epochal.demo.pipeline import PROJECT, TOPIC

TURN_SECONDS = 0.01
MAX_BATCH = 1_000


def to_pubsub(address: str) -> Callable[[Sequence[Order]], None]:
    import grpc
    from google.pubsub_v1.types import PublishRequest, PubsubMessage

    call = grpc.insecure_channel(address).unary_unary("/google.pubsub.v1.Publisher/Publish")

    def publish(orders: Sequence[Order]) -> None:
        messages = [PubsubMessage(data=placed.payload()) for placed in orders]
        request = PublishRequest(topic=f"projects/{PROJECT}/topics/{TOPIC}", messages=messages)
        call(PublishRequest.serialize(request), timeout=30)

    return publish


def to_kafka(address: str) -> Callable[[Sequence[Order]], None]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 1})

    def check_delivery(error: Any, _: Any) -> None:
        if error is not None:
            raise SystemExit(f"Kafka rejected an order: {error}")

    def publish(orders: Sequence[Order]) -> None:
        for placed in orders:
            key = placed.customer.encode()
            producer.produce(TOPIC, placed.payload(), key, on_delivery=check_delivery)
        if producer.flush(30):
            raise SystemExit("Kafka did not accept the orders within 30 s.")

    return publish


BROKERS = {"pubsub": to_pubsub, "kafka": to_kafka}


def main(kind: str, address: str, count: str, rate: str) -> None:
    publish, sent, began = BROKERS[kind](address), 0, time.monotonic()
    while sent < int(count):
        due = min(int(count), int((time.monotonic() - began) * int(rate)), sent + MAX_BATCH)
        if due > sent:
            publish([order(number) for number in range(sent, due)])
            sent = due
            sys.stdout.write(f"{sent}\n")
            sys.stdout.flush()
        time.sleep(TURN_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
