"""A reader with a scripted client, the thread that waits for records, and messages as rows."""

from __future__ import annotations

import queue
import select
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from epochal.connectors.kafka.offsets import Cluster, KafkaPartition
from epochal.connectors.kafka.source import kafka_reader
from epochal.connectors.kafka.source.kafka_reader import KafkaReader, KafkaReaders, RecordWaiter
from epochal.connectors.kafka.source.reader_rows import MAX_MS, RowMaker, kafka_schema
from epochal.errors import KafkaDataLossError, KafkaTimestampError
from epochal.errors import KafkaError as BrokerError
from epochal.record_batches import FEW_ROWS

A, B = ("t", 0), ("t", 1)


@dataclass(frozen=True)
class Message:
    """A record, or an event of a partition."""

    tp: KafkaPartition
    at: int
    code: int | None = None

    def error(self) -> KafkaError | None:
        return None if self.code is None else KafkaError(self.code, "so it is")

    def topic(self) -> str:
        return self.tp[0]

    def partition(self) -> int:
        return self.tp[1]

    def offset(self) -> int:
        return self.at

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return f"{self.tp[1]}@{self.at}".encode()

    def timestamp(self) -> tuple[int, int]:
        return (1, 5)


def end(tp: KafkaPartition, at: int) -> Message:
    return Message(tp, at, KafkaError._PARTITION_EOF)


@dataclass
class Script:
    """What the client returns, call by call, and its position afterwards."""

    turns: list[list[Message]]
    positions: dict[KafkaPartition, int] = field(default_factory=dict)
    assigned: list[tuple[str, int, int]] = field(default_factory=list)
    errors: list[KafkaError] = field(default_factory=list)
    paused: set[KafkaPartition] = field(default_factory=set)
    known_ends: dict[KafkaPartition, int] = field(default_factory=dict)
    """What the broker's last answer said."""
    hear: Any = None

    def assign(self, partitions: list[Any]) -> None:
        self.assigned += [(each.topic, each.partition, each.offset) for each in partitions]

    incremental_assign = assign

    def incremental_unassign(self, partitions: list[Any]) -> None:
        del partitions

    def pause(self, partitions: list[Any]) -> None:
        self.paused |= {(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: list[Any]) -> None:
        self.paused -= {(each.topic, each.partition) for each in partitions}

    def consume(self, most: int, timeout: float) -> list[Message]:
        assert timeout == 0
        while self.errors:
            self.hear(self.errors.pop(0))
        return self.turns.pop(0) if self.turns else []

    def get_watermark_offsets(self, place: Any, *, cached: bool) -> tuple[int, int]:
        assert cached
        return 0, self.known_ends.get((place.topic, place.partition), OFFSET_INVALID)

    def position(self, asked: list[Any]) -> list[Any]:
        partitions = [(each.topic, each.partition) for each in asked]
        return [TopicPartition(*p, self.positions.get(p, OFFSET_INVALID)) for p in partitions]


@dataclass(frozen=True, slots=True)
class Scripted(KafkaReaders):
    """Readers with a scripted client."""

    script: Any = None

    def consumer(self, **callbacks: Any) -> Any:
        self.script.hear = callbacks["error_cb"]
        return self.script


def opened(script: Script, *, lenient: bool = False, a: int = 0, b: int = 0) -> KafkaReader:
    cluster = Cluster.of({"bootstrap.servers": "k:9092"})
    readers = Scripted(cluster, "g", fail_on_data_loss=not lenient, script=script)
    return KafkaReader(readers, {"t-0": str(a), "t-1": str(b)})


def values(reader: KafkaReader) -> list[str]:
    batch = reader.read(100)
    return [] if batch is None else [value.decode() for value in batch.to_pydict()["value"]]


def test_a_reader_tells_which_partitions_have_records_waiting() -> None:
    script = Script([[Message(A, 0)], [Message(A, 1), end(B, 3)]], known_ends={A: 2})
    reader = opened(script, b=3)
    assert reader.waiting() == {"t-0": "2", "t-1": ""}  # of b the client knows nothing yet
    values(reader)
    assert reader.last_read == ("t-0",)
    assert reader.waiting() == {"t-0": "2", "t-1": ""}
    values(reader)
    assert reader.waiting() == {}
    script.known_ends = {A: 9, B: 4}
    assert reader.waiting() == {"t-0": "9", "t-1": "4"}


def test_records_of_an_open_transaction_do_not_wait() -> None:
    script = Script([[Message(A, 0), end(A, 1), end(B, 0)]], known_ends={A: 7})
    cluster = Cluster.of({"bootstrap.servers": "k:9092", "isolation.level": "read_committed"})
    reader = KafkaReader(Scripted(cluster, "g", script=script), {"t-0": "0", "t-1": "0"})
    values(reader)
    assert reader.waiting() == {}


def test_records_behind_a_limit_wait() -> None:
    script = Script([[Message(A, 0), Message(A, 1), end(A, 2), end(B, 0)]])
    reader = opened(script)
    reader.limit({"t-0": "1", "t-1": "0"})
    values(reader)
    assert list(reader.waiting()) == ["t-0"]


def test_a_partition_that_is_far_behind_its_end_is_not_fetched_until_the_next_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_reader, "MOST_LATER", 2)
    script = Script([[Message(A, 0), Message(A, 1), Message(A, 2)], [Message(B, 0)]])
    reader = opened(script)
    reader.limit({"t-0": "0", "t-1": "1"})
    assert (values(reader), script.paused) == ([], set())
    assert (values(reader), script.paused) == (["1@0"], {A})
    reader.limit({"t-0": "3", "t-1": "1"})
    assert (values(reader), script.paused) == (["0@0", "0@1", "0@2"], set())


def test_a_deleted_partition_ends_the_task_or_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = Message(A, 0, KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(KafkaDataLossError, match="t-0 was deleted; 3 was next"):
        values(opened(Script([[gone]]), a=3))
    reader = opened(Script([[gone], [gone], [Message(B, 0)]]), lenient=True, a=3)
    assert [values(reader) for _ in range(3)] == [[], [], ["1@0"]]
    assert caplog.text.count("t-0 was deleted") == 1


def test_an_unrecoverable_partition_error_ends_the_task_with_the_brokers_message() -> None:
    bad = Message(B, 0, KafkaError._BAD_MSG)
    with pytest.raises(BrokerError, match="Kafka at k:9092: t-1 at offset 0: so it is"):
        values(opened(Script([[Message(A, 0), bad]])))


def test_connection_errors_are_logged_once_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "epochal")
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    script = Script([[], [], [Message(A, 0)]], errors=[down, down])
    reader = opened(script)
    assert values(reader) == []
    script.errors = [down]
    assert values(reader) == []
    assert caplog.text.count("1/1 brokers are down") == 1
    assert values(reader) == ["0@0"]
    assert "Kafka at k:9092 is read again" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        KafkaError(KafkaError._AUTHENTICATION, "no such user"),
        KafkaError(KafkaError._ALL_BROKERS_DOWN, "no such user", True),
    ],
    ids=["credentials", "fatal"],
)
def test_an_unrecoverable_client_error_ends_the_task(error: KafkaError) -> None:
    with pytest.raises(BrokerError, match="no such user"):
        values(opened(Script([], errors=[error])))


class Queued(Script):
    """A client with a queue. Its position is behind the last record that it has delivered."""

    def __init__(self, messages: list[Message]) -> None:
        super().__init__([])
        self.queue = deque(messages)

    def consume(self, most: int, timeout: float) -> list[Message]:
        assert timeout == 0
        return [self._next() for _ in range(min(most, len(self.queue)))]

    def poll(self, timeout: float) -> Message | None:
        del timeout
        return self._next() if self.queue else None

    def _next(self) -> Message:
        message = self.queue.popleft()
        if message.code is None:
            self.positions[message.tp] = message.at + 1
        return message


def test_an_error_that_a_wait_meets_is_raised_by_the_next_read() -> None:
    reader = opened(Queued([Message(A, -1, KafkaError._ALL_BROKERS_DOWN), Message(A, 0)]))
    assert reader.wait(0.0)
    with pytest.raises(BrokerError):
        values(reader)


@given(
    st.lists(st.tuples(st.sampled_from((A, B)), st.integers(1, 3), st.booleans()), max_size=12),
    st.lists(st.sampled_from(("read", "wait", "positions")), max_size=24),
    st.integers(1, 3),
)
def test_rows_and_positions_are_the_same_with_and_without_waits(
    steps: list[tuple[KafkaPartition, int, bool]], calls: list[str], most: int
) -> None:
    """Offsets grow by 1 to 3, because not every offset has a record; some steps are ends."""
    at, messages, records = {A: 0, B: 0}, [], []
    for tp, step, is_end in steps:
        at[tp] += step
        messages.append(end(tp, at[tp]) if is_end else Message(tp, at[tp]))
        if not is_end:
            records.append(messages[-1])
            at[tp] += 1
    reader = opened(Queued(messages))
    taken: list[Message] = []
    for call in [*calls, *(["read"] * (len(messages) + 1))]:
        if call == "wait":
            reader.wait(0.0)
        elif call == "read":
            batch = reader.read(most)
            count = 0 if batch is None else batch.num_rows
            assert count <= most
            found = [] if batch is None else batch.column("offset").to_pylist()
            expected = records[len(taken) : len(taken) + count]
            assert found == [each.at for each in expected]
            taken += expected
        positions = reader.positions()
        for tp, name in ((A, "t-0"), (B, "t-1")):
            before = [each.at for each in taken if each.tp == tp]
            after = [each.at for each in records[len(taken) :] if each.tp == tp]
            assert int(positions[name]) > max(before, default=-1)
            assert int(positions[name]) <= min(after, default=at[tp])
    assert taken == records
    assert reader.positions() == {"t-0": str(at[A]), "t-1": str(at[B])}


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


CREATED, APPENDED = 1, 2


@dataclass(frozen=True)
class Sent:
    """A message with the client's accessor methods."""

    tp: KafkaPartition
    at: int
    body: bytes | None = b"v"
    stamp: tuple[int, int] = (CREATED, 5)
    notes: list[tuple[str, bytes | None]] | None = field(default=None)
    name: bytes | None = None

    def topic(self) -> str:
        return self.tp[0]

    def partition(self) -> int:
        return self.tp[1]

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.name

    def value(self) -> bytes | None:
        return self.body

    def timestamp(self) -> tuple[int, int]:
        return self.stamp

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.notes


def made(
    messages: list[Sent], partitions: list[KafkaPartition]
) -> tuple[list[dict[str, Any]], dict[KafkaPartition, int]]:
    batch, last = RowMaker(kafka_schema(True), partitions).make(messages)
    assert batch.schema.equals(kafka_schema(True))
    return batch.to_pylist(), last


def test_kinds_of_timestamps_have_javas_numbers() -> None:
    messages = [Sent(("a", 0), n, stamp=(n, 1)) for n in range(3)]
    assert [row["timestampType"] for row in made(messages, [("a", 0)])[0]] == [-1, 0, 1]
    appended = [Sent(("a", 0), 0, stamp=(APPENDED, 1))]
    assert made(appended, [("a", 0)])[0][0]["timestampType"] == 1


@pytest.mark.parametrize("stamp", [2**62, -(2**62)])
def test_a_timestamp_beyond_microseconds_is_named_with_its_record(stamp: int) -> None:
    messages = [Sent(("a", 0), 0), Sent(("a", 0), 1, stamp=(CREATED, stamp))]
    with pytest.raises(KafkaTimestampError, match=f"offset 1 of a-0 has timestamp {stamp}"):
        made(messages, [("a", 0)])


@pytest.mark.parametrize("partitions", [[("a", 0)], [("a", 0), ("b", 1)]], ids=["one", "several"])
@pytest.mark.parametrize("column", kafka_schema(True).names)
def test_unused_columns_are_null_and_the_others_unchanged(
    column: str, partitions: list[KafkaPartition]
) -> None:
    messages = [Sent(tp, n, notes=[("h", b"1")]) for n in range(2) for tp in partitions]
    whole, last = RowMaker(kafka_schema(True), partitions).make(messages)
    part, same = RowMaker(kafka_schema(True), partitions, frozenset([column])).make(messages)
    assert part.schema.equals(whole.schema)
    assert part.column(column).equals(whole.column(column))
    assert same == last
    spared = set(whole.schema.names) - {column}
    assert [part.column(name).null_count for name in spared] == [part.num_rows] * len(spared)


PLACES = [("a", 0), ("a", 1), ("b", 0)]
BYTES = st.none() | st.binary(max_size=5)
MESSAGES = st.builds(
    Sent,
    tp=st.sampled_from(PLACES),
    at=st.integers(0, 2**63 - 1),
    body=BYTES,
    stamp=st.tuples(st.integers(0, 2), st.integers(-MAX_MS, MAX_MS)),
    notes=st.none() | st.lists(st.tuples(st.text(max_size=3), BYTES), max_size=3),
    name=BYTES,
)


@given(
    st.lists(MESSAGES, min_size=1, max_size=5),
    st.booleans(),
    st.none() | st.frozensets(st.sampled_from(kafka_schema(False).names)),
    st.booleans(),
)
def test_few_rows_and_many_become_the_same_batch(
    messages: list[Sent], with_headers: bool, wanted: frozenset[str] | None, headers_wanted: bool
) -> None:
    if wanted is not None and with_headers and headers_wanted:
        wanted |= {"headers"}
    places = sorted({each.tp for each in messages})
    maker = RowMaker(kafka_schema(with_headers), places, wanted)
    few, last_of_few = maker.by_row(messages)
    many, last_of_many = maker.by_column(messages)
    assert few.schema.equals(many.schema)
    assert few.equals(many)
    assert last_of_few == last_of_many
    few.validate(full=True)


@pytest.mark.parametrize("count", [FEW_ROWS - 1, FEW_ROWS])
def test_any_number_of_rows_keeps_its_order(count: int) -> None:
    messages = [Sent(("a", n % 2), n // 2, b"%d" % n) for n in range(count)]
    rows, last = made(messages, [("a", 0), ("a", 1)])
    assert [row["value"] for row in rows] == [b"%d" % n for n in range(count)]
    assert last == {("a", 0): (count - 1) // 2, ("a", 1): (count - 2) // 2}
