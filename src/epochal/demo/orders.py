"""The orders of the demo, by number, and the totals that they must add up to.

Order `n` is the same in every run, so the number of sent orders determines every total.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from random import Random

CUSTOMERS = 500
MAX_CENTS = 20_000


@dataclass(frozen=True, slots=True)
class Order:
    order_id: int
    customer: str
    cents: int

    def payload(self) -> bytes:
        """The published bytes: JSON."""
        named = {"order_id": self.order_id, "customer": self.customer, "cents": self.cents}
        return json.dumps(named).encode()


@dataclass(frozen=True, slots=True)
class Total:
    """The number of a customer's orders so far, and their sum."""

    orders: int
    cents: int


def order(number: int) -> Order:
    chance = Random(number)
    customer = f"customer-{chance.randrange(CUSTOMERS):03}"
    return Order(number, customer, chance.randrange(1, MAX_CENTS))


def totals(sent: int) -> dict[str, Total]:
    """The total of each customer after the first `sent` orders."""
    by_customer: defaultdict[str, Total] = defaultdict(lambda: Total(0, 0))
    for placed in map(order, range(sent)):
        before = by_customer[placed.customer]
        by_customer[placed.customer] = Total(before.orders + 1, before.cents + placed.cents)
    return dict(by_customer)


@dataclass(frozen=True, slots=True)
class Balance:
    """Compares the sent orders with the output and with the state."""

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
        wrong_totals=_differing(expected, newest),
        wrong_states=_differing(expected, states),
    )


def _differing(expected: dict[str, Total], actual: dict[str, Total]) -> int:
    names = expected.keys() | actual.keys()
    return sum(expected.get(name) != actual.get(name) for name in names)
