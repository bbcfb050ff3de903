"""The orders of the demo, by number, the totals that they must add up to, and what publishes them.

Order `n` is the same in every run, so the number of sent orders determines every total.

    python -m epochal.demo.orders pubsub|kafka ADDRESS COUNT RATE

publishes orders at a steady rate, and prints the number of published orders.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

PROJECT, TOPIC, SUBSCRIPTION = "demo", "orders", "orders-sub"
TURN_SECONDS = 0.01
MAX_BATCH = 1_000
CUSTOMERS = 500
MAX_CENTS = 20_000


@dataclass(frozen=True, slots=True)
class Order:
    order_id: int
    customer: str
    cents: int

    def payload(self) -> bytes:
        named = {"order_id": self.order_id, "customer": self.customer, "cents": self.cents}
        return json.dumps(named).encode()


@dataclass(frozen=True, slots=True)
class Total:
    orders: int
    cents: int


def order(number: int) -> Order:
    chance = Random(number)
    customer = f"customer-{chance.randrange(CUSTOMERS):03}"
    return Order(number, customer, chance.randrange(1, MAX_CENTS))


def totals(sent: int) -> dict[str, Total]:
    by_customer: defaultdict[str, Total] = defaultdict(lambda: Total(0, 0))
    for placed in map(order, range(sent)):
        before = by_customer[placed.customer]
        by_customer[placed.customer] = Total(before.orders + 1, before.cents + placed.cents)
    return dict(by_customer)


@dataclass(frozen=True, slots=True)
class Balance:
    sent: int
    received: int
    lost: int
    repeated: int
    wrong_totals: int
    """Customers whose newest total in the output is not the sum of their orders."""
    wrong_states: int
    """Customers whose state is not the sum of their orders."""

    @property
    def holds(self) -> bool:
        return not (self.lost or self.repeated or self.wrong_totals or self.wrong_states)


def balance(
    sent: int, order_ids: list[int], newest: dict[str, Total], states: dict[str, Total]
) -> Balance:
    """Compare. `order_ids` contains each order as often as the output does."""
    expected, distinct = totals(sent), set(order_ids)
    return Balance(
        sent=sent,
        received=len(order_ids),
        lost=len(set(range(sent)) - distinct),
        repeated=len(order_ids) - len(distinct),
        wrong_totals=len({customer for customer, _ in expected.items() ^ newest.items()}),
        wrong_states=len({customer for customer, _ in expected.items() ^ states.items()}),
    )


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
