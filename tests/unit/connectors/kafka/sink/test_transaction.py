"""Calls that may hang in the client."""

from __future__ import annotations

import threading

import pytest

from epochal.connectors.kafka.sink.transaction import returns_in_time


def test_a_call_is_made_once_with_its_time_limit() -> None:
    called: list[float] = []
    assert returns_in_time(called.append, 3.0)
    assert called == [3.0]


def test_an_exception_of_the_call_is_raised() -> None:
    def refuse(seconds: float) -> None:
        raise ValueError(f"not within {seconds} s")

    with pytest.raises(ValueError, match=r"not within 2\.0 s"):
        returns_in_time(refuse, 2.0)


def test_a_call_that_does_not_return_is_abandoned() -> None:
    let_go = threading.Event()
    try:
        assert not returns_in_time(lambda _: let_go.wait(), 0.0, hang_seconds=0.01)
    finally:
        let_go.set()
