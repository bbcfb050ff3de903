"""The at-least-once writer with two threads, what a producer holds, and calls that may hang."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import pyarrow as pa
import pytest

from epochal.connectors.kafka.sink.producer import RecordProducer
from epochal.connectors.kafka.sink.record_writers import PlainWriter, RecordWriters
from epochal.connectors.kafka.sink.sink_rows import Record, record_plan
from epochal.connectors.kafka.sink.transaction import returns_in_time
from epochal.errors import KafkaUnavailableError

SCHEMA = pa.schema([("value", pa.string())])


class Queue:
    """Accepts records; the test decides what a flush does."""

    def __init__(self, flushing: Callable[[], None] = lambda: None) -> None:
        self.sent: list[bytes] = []
        self.flushed: list[list[bytes]] = []
        self._flushing = flushing

    def send(self, records: Iterable[Record]) -> None:
        self.sent += [record[1] for record in records]

    def flush(self) -> None:
        self._flushing()
        self.flushed.append(list(self.sent))

    def check_topics(self, highest_partitions: Mapping[str, int]) -> None:
        raise AssertionError(f"{highest_partitions} are known since the query started")

    def close(self) -> None:
        pass


def writer_over(queue: Queue) -> PlainWriter:
    writers = RecordWriters(record_plan(SCHEMA, "t"), 1_000, {})
    return PlainWriter(writers, cast(RecordProducer, queue))


def row(value: str) -> Any:
    return pa.record_batch([[value]], schema=SCHEMA)


def test_an_epoch_is_prepared_when_its_rows_have_arrived() -> None:
    queue = Queue()
    writer = writer_over(queue)
    writer.write(row("a"))
    first = writer.cut(0)
    writer.write(row("b"))
    second = writer.cut(1)
    assert (first(), second()) == (b"", b"")
    assert queue.flushed == [[b"a", b"b"], [b"a", b"b"]]


def test_rows_that_come_during_a_flush_are_sent_afterwards() -> None:
    reached, let_go = threading.Event(), threading.Event()

    def flushing() -> None:
        reached.set()
        assert let_go.wait(10)

    queue = Queue(flushing)
    writer = writer_over(queue)
    writer.write(row("a"))
    preparing = threading.Thread(target=writer.cut(0))
    preparing.start()
    assert reached.wait(10)
    writer.write(row("b"))
    writer.write(row("c"))
    assert queue.sent == [b"a"]
    let_go.set()
    preparing.join()
    assert queue.sent == [b"a", b"b", b"c"]
    assert queue.flushed == [[b"a"]]
    writer.cut(1)()
    assert queue.flushed[1:] == [[b"a", b"b", b"c"]]


def test_rows_that_do_not_arrive_fail_the_epoch() -> None:
    def flushing() -> None:
        raise KafkaUnavailableError("servers", "timed out")

    writer = writer_over(Queue(flushing))
    writer.write(row("a"))
    with pytest.raises(KafkaUnavailableError, match="timed out"):
        writer.cut(0)()


NOBODY = {"bootstrap.servers": "127.0.0.1:1"}


def held() -> tuple[int, int]:
    """The open files and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts what Linux shows of a process")
@pytest.mark.parametrize("settings", [{}, {"transactional.id": "query"}], ids=["plain", "exact"])
def test_a_closed_producer_leaves_no_connection_and_no_thread(settings: dict[str, str]) -> None:
    RecordProducer({**NOBODY, **settings}).close()  # the library keeps what it opens once
    gc.disable()  # tasks freeze what they have, so nobody looks for cycles there
    try:
        before = held()
        for _ in range(3):
            producer = RecordProducer({**NOBODY, **settings})
            if not settings:
                producer.send([("topic", b"never arrives", None)])
            producer.close()
        assert held() == before
    finally:
        gc.enable()


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
