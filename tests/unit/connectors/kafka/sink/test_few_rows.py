"""Batches of a few rows give the records and the errors that large batches give."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochal.connectors.kafka.sink import sink_rows
from epochal.connectors.kafka.sink.producer import RecordProducer, RowPlaces
from epochal.connectors.kafka.sink.sink_plain import PlainWriter
from epochal.connectors.kafka.sink.sink_rows import (
    HEADERS,
    SMALL_BATCH_ROWS,
    Record,
    RecordPlan,
    places_of,
    record_plan,
    small_batch_records,
)
from epochal.errors import KafkaRecordError, OptionError

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
        patch.setattr(sink_rows, "SMALL_BATCH_ROWS", few)
        broker, places = Broker(), RowPlaces(plan, {})
        places._producer = cast(RecordProducer, broker)
        bad = [dict(places.bad_rows(batch, LIMIT)) for _ in range(2)]
        broker.asked.clear()
        writer = PlainWriter(plan, cast(RecordProducer, broker), LIMIT)
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
    assert outcome(case, SMALL_BATCH_ROWS) == outcome(case, 0)


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
    many = pa.record_batch([["v"] * SMALL_BATCH_ROWS], schema=schema)
    assert small_batch_records(record_plan(schema, "t"), many, LIMIT) is None
    assert small_batch_records(record_plan(schema, "t"), many.slice(1), LIMIT) is not None
