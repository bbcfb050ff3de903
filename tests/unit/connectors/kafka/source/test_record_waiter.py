"""The thread that waits for records: none is lost or overtakes another, its errors are raised."""

from __future__ import annotations

import queue
import select
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from epochal.connectors.kafka.source.kafka_reader import RecordWaiter


class Client:
    """Returns what a test puts into its queue."""

    def __init__(self) -> None:
        self.records: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def poll(self, timeout: float) -> str | None:
        try:
            found = self.records.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        return found


@contextmanager
def waiting() -> Iterator[tuple[Client, RecordWaiter]]:
    client = Client()
    waiter = RecordWaiter(client, lambda found: found.startswith("end"))
    try:
        yield client, waiter
    finally:
        waiter.close()


def is_readable(waiter: RecordWaiter, seconds: float) -> bool:
    return bool(select.select([waiter.fd], [], [], seconds)[0])


def test_a_record_that_comes_later_makes_the_descriptor_readable() -> None:
    with waiting() as (client, waiter):
        waiter.wait()
        assert not is_readable(waiter, 0.0)
        assert waiter.take() is None
        client.records.put("first")
        assert is_readable(waiter, 10.0)
        assert waiter.take() == ["first"]
        assert not is_readable(waiter, 0.0)


def test_only_one_record_is_taken_until_the_next_wait() -> None:
    with waiting() as (client, waiter):
        client.records.put("first")
        client.records.put("second")
        for record in ("first", "second"):
            waiter.wait()
            assert is_readable(waiter, 10.0)
            assert waiter.take() == [record]


def test_a_wait_goes_on_until_the_reader_has_what_it_brought() -> None:
    with waiting() as (client, waiter):
        assert not waiter.is_waiting
        waiter.wait()
        client.records.put("first")
        assert is_readable(waiter, 10.0)
        assert waiter.is_waiting
        waiter.take()
        assert not waiter.is_waiting


def test_the_end_of_a_partition_wakes_nobody_and_comes_before_the_next_record() -> None:
    with waiting() as (client, waiter):
        for found in ("end of 0", "end of 1", "first", "end of 0"):
            client.records.put(found)
        waiter.wait()
        assert is_readable(waiter, 10.0)
        assert waiter.take() == ["end of 0", "end of 1", "first"]
        waiter.wait()
        while not (ends := waiter.take_ends()):
            pass
        assert (ends, is_readable(waiter, 0.0), waiter.take()) == (["end of 0"], False, None)


def test_an_error_of_the_client_is_raised_by_the_reader() -> None:
    with waiting() as (client, waiter):
        client.records.put(RuntimeError("the client is closed"))
        waiter.wait()
        assert is_readable(waiter, 10.0)
        with pytest.raises(RuntimeError, match="the client is closed"):
            waiter.take()


def test_a_waiter_ends_while_nothing_comes() -> None:
    with waiting() as (_, waiter):
        waiter.wait()
    assert not waiter.is_alive()
