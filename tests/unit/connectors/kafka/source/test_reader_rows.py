"""Messages become rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.connectors.kafka.offsets import KafkaPartition
from epochal.connectors.kafka.source.reader_rows import MAX_MS, RowMaker, kafka_schema
from epochal.errors import KafkaTimestampError
from epochal.record_batches import FEW_ROWS

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
