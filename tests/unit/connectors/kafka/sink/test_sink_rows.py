"""From rows to records, and the at-least-once writer with two threads and calls that may hang."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.connectors.kafka.sink import sink_rows
from epochal.connectors.kafka.sink.producer import RecordProducer
from epochal.connectors.kafka.sink.record_writers import PlainWriter, RecordWriters, RowPlaces
from epochal.connectors.kafka.sink.sink_rows import (
    HEADERS,
    Record,
    RecordPlan,
    places_of,
    record_plan,
    small_batch_records,
)
from epochal.connectors.kafka.sink.transaction import returns_in_time
from epochal.errors import KafkaRecordError, KafkaUnavailableError, OptionError
from epochal.record_batches import FEW_ROWS

FULL: pa.Schema = pa.schema(
    [
        ("other", pa.int64()),
        ("partition", pa.int32()),
        ("headers", HEADERS),
        ("value", pa.binary()),
        ("key", pa.string()),
        ("topic", pa.string()),
    ]
)


def schema_of(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


def rows(schema: pa.Schema, *found: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(found), schema=schema)


def records(plan: RecordPlan, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    chosen = plan.chosen(batch)
    plan.check(chosen, 100)
    return list(plan.records(chosen))


def test_value_alone_is_enough() -> None:
    schema = pa.schema([("value", pa.string())])
    batch = rows(schema, {"value": "é"}, {"value": None}, {"value": ""})
    assert records(record_plan(schema, "t"), batch) == [
        ("t", "é".encode(), None),
        ("t", None, None),
        ("t", b"", None),
    ]


def test_rows_may_set_every_part_of_a_record() -> None:
    header = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    batch = rows(
        FULL,
        {"topic": "a", "key": "k", "value": b"v", "partition": 3, "headers": header, "other": 1},
        {"topic": "b", "key": None, "value": b"w", "partition": None, "headers": None},
    )
    assert records(record_plan(FULL, None), batch) == [
        ("a", b"v", b"k", 3, None, None, 0, [("h", b"1"), ("h", None)]),
        ("b", b"w", None, -1, None, None, 0, None),
    ]


def test_the_option_overrides_the_column() -> None:
    schema = schema_of(topic=pa.string(), value=pa.binary())
    batch = rows(schema, {"topic": None, "value": b"v"})
    assert records(record_plan(schema, "t"), batch) == [("t", b"v", None)]


@pytest.mark.parametrize(("topic", "highest"), [(None, {"a": 3, "b": -1}), ("t", {"t": 3})])
def test_the_highest_partition_of_each_topic_is_found(
    topic: str | None, highest: dict[str, int]
) -> None:
    batch = rows(
        FULL,
        {"topic": "a", "value": b"", "partition": 3},
        {"topic": "a", "value": b"", "partition": 0},
        {"topic": "b", "value": b"", "partition": None},
    )
    plan = record_plan(FULL, topic)
    assert plan.highest_partitions(plan.chosen(batch)) == highest


def test_without_a_partition_column_only_topics_are_found() -> None:
    schema = schema_of(topic=pa.string(), value=pa.binary())
    batch = rows(schema, {"topic": "a", "value": b""}, {"topic": "b", "value": b""})
    for topic, highest in ((None, {"a": -1, "b": -1}), ("t", {"t": -1})):
        plan = record_plan(schema, topic)
        assert plan.highest_partitions(plan.chosen(batch)) == highest


@pytest.mark.parametrize(
    ("fields", "topic", "message"),
    [
        ([("key", pa.string())], "t", "must have a column named value"),
        ([("value", pa.int64())], "t", "value must be binary or string, but it is int64"),
        ([("value", pa.string()), ("key", pa.int32())], "t", "key must be binary or string"),
        ([("value", pa.string())], None, "option topic, or add a column named topic"),
        ([("value", pa.string()), ("topic", pa.binary())], None, "topic must be string"),
        ([("value", pa.string()), ("partition", pa.int64())], "t", "partition must be int"),
        ([("value", pa.string()), ("headers", pa.string())], "t", "headers must be array<struct"),
    ],
)
def test_a_schema_that_cannot_be_written_is_refused(
    fields: list[tuple[str, pa.DataType]], topic: str | None, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        record_plan(pa.schema(fields), topic)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"topic": None, "value": b""}, "topic is null"),
        ({"topic": "a", "value": b"", "partition": -1}, "names partition -1"),
        ({"topic": "a", "value": b"x" * 100, "key": "k"}, "101 bytes, but the limit is 100"),
    ],
)
def test_a_row_that_cannot_be_written_is_refused(row: dict[str, Any], message: str) -> None:
    plan = record_plan(FULL, None)
    with pytest.raises(OptionError, match=message):
        plan.check(plan.chosen(rows(FULL, row)), 100)


LIMIT = 6
KINDS: dict[str, tuple[pa.DataType, ...]] = {
    "value": (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()),
    "key": (pa.binary(), pa.string(), pa.large_string()),
    "topic": (pa.string(), pa.large_string()),
    "partition": (pa.int32(),),
    "headers": (HEADERS, pa.large_list(HEADERS.value_type)),
}
TEXTS = st.text("aé", max_size=4)
HEADER = st.fixed_dictionaries(
    {"key": st.sampled_from(["h", "i", None]), "value": st.sampled_from([b"", b"1", None])}
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "value": TEXTS,
    "key": TEXTS,
    "topic": st.sampled_from(["a", "b", "gone"]),
    "partition": st.integers(-1, 3),
    "headers": st.lists(st.one_of(HEADER, st.none()), max_size=2),
}
Case = tuple[RecordPlan, pa.RecordBatch]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A plan and rows for it; few rows are bad, so that most batches have none."""
    names = ["value", *(name for name in KINDS if name != "value" and draw(st.booleans()))]
    topic = draw(st.sampled_from(["t", None])) if "topic" in names else "t"
    letters = draw(st.sampled_from(["letters", None]))
    schema = pa.schema([(name, draw(st.sampled_from(KINDS[name]))) for name in names])
    count = draw(st.integers(0, 5))
    null = st.integers(0, 9).map(lambda number: number == 0)
    arrays = []
    for name in names:
        found = [None if draw(null) else draw(VALUES[name]) for _ in range(count)]
        if "binary" in str(schema.field(name).type) and name in ("value", "key"):
            found = [each if each is None else each.encode() for each in found]
        arrays.append(pa.array(found, schema.field(name).type))
    return record_plan(schema, topic, letters), pa.record_batch(arrays, schema=schema)


def by_columns(plan: RecordPlan, batch: pa.RecordBatch) -> list[Record] | str:
    chosen = plan.chosen(batch)
    try:
        plan.check(chosen, LIMIT)
    except OptionError as error:
        return str(error)
    return list(plan.records(chosen))


class Broker:
    """A producer of topics with two partitions each; `gone` does not exist."""

    def __init__(self) -> None:
        self.sent: list[Record] = []
        self.asked: list[dict[str, int]] = []

    def check_topics(self, highest_partitions: dict[str, int]) -> None:
        self.asked.append(dict(highest_partitions))
        for topic, partition in highest_partitions.items():
            if topic == "gone" or partition > 1:
                raise KafkaRecordError("servers", topic, f"no partition {partition}")

    def send(self, records: Any) -> None:
        self.sent += records


def outcome(case: Case, few: int) -> Any:
    """What a writer does with the rows, and which rows it refuses before."""
    plan, batch = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink_rows, "FEW_ROWS", few)
        broker, places = Broker(), RowPlaces(plan, {})
        places._producer = cast(RecordProducer, broker)
        bad = [dict(places.bad_rows(batch, LIMIT)) for _ in range(2)]
        broker.asked.clear()
        writer = PlainWriter(RecordWriters(plan, LIMIT, {}), cast(RecordProducer, broker))
        try:
            writer.write(batch)
            error = ""
        except (OptionError, KafkaRecordError) as caught:
            error = str(caught)
        return broker.sent, broker.asked, error, bad


@settings(max_examples=300, deadline=None)
@given(cases())
def test_few_rows_become_the_records_that_many_rows_become(case: Case) -> None:
    plan, batch = case
    few, expected = small_batch_records(plan, batch, LIMIT), by_columns(plan, batch)
    assert few is None or few == expected
    if few and plan.topic is None:
        assert places_of(few) == plan.highest_partitions(plan.chosen(batch))


@settings(max_examples=300, deadline=None)
@given(cases())
def test_a_writer_of_few_rows_does_what_it_does_with_many(case: Case) -> None:
    assert outcome(case, FEW_ROWS) == outcome(case, 0)


def test_good_rows_of_every_column_take_the_short_way() -> None:
    schema = pa.schema([(name, kinds[0]) for name, kinds in KINDS.items()])
    header = [{"key": "h", "value": b"1"}]
    row = {"value": b"v", "key": b"k", "topic": "a", "partition": 1, "headers": header}
    batch = pa.RecordBatch.from_pylist([row], schema=schema)
    assert small_batch_records(record_plan(schema, None), batch, LIMIT) == [
        ("a", b"v", b"k", 1, None, None, 0, [("h", b"1")])
    ]


def test_many_rows_take_the_long_way() -> None:
    schema = pa.schema([("value", pa.string())])
    many = pa.record_batch([["v"] * FEW_ROWS], schema=schema)
    assert small_batch_records(record_plan(schema, "t"), many, LIMIT) is None
    assert small_batch_records(record_plan(schema, "t"), many.slice(1), LIMIT) is not None


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
