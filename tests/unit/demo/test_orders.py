"""The totals of the demo's orders, and what breaks the balance."""

from __future__ import annotations

import json

from epochal.demo.orders import Balance, Total, balance, order, totals


def test_an_order_is_the_same_in_every_run() -> None:
    assert order(7) == order(7)
    assert json.loads(order(7).payload())["order_id"] == 7


def test_totals_count_every_order_once() -> None:
    found = totals(100)
    assert sum(each.orders for each in found.values()) == 100
    assert sum(each.cents for each in found.values()) == sum(order(n).cents for n in range(100))


def test_the_balance_holds_if_every_order_was_output_once() -> None:
    found = balance(50, list(range(50)), totals(50), totals(50))
    assert found == Balance(50, 50, 0, 0, 0, 0)
    assert found.holds


def test_lost_repeated_and_wrong_results_are_counted() -> None:
    wrong = {**totals(50), "customer-000": Total(99, 1)}
    found = balance(50, [*range(1, 50), 49], wrong, {})
    assert (found.lost, found.repeated, found.wrong_totals) == (1, 1, 1)
    assert found.wrong_states == len(totals(50))
    assert not found.holds
