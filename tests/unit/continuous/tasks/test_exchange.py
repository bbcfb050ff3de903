"""Which rows go to which task, and the rules of the channels between tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from epochal.continuous.plan.stages import SOURCES, Edge, Target
from epochal.continuous.tasks.exchange import (
    CREDIT_BYTES,
    CREDIT_FRAMES,
    MAX_UNACKED_BYTES,
    MAX_UNACKED_FRAMES,
    Exchange,
    ExchangeCounters,
    Inbox,
    Outbox,
)
from epochal.continuous.tasks.frames import Frame, FrameKind
from epochal.continuous.tasks.key_split import KeySplit
from epochal.errors import ExchangeError
from epochal.state.rows.arrow_types import spark_schema
from epochal.state.rows.murmur3 import partition_ids

BATCH = pa.RecordBatch.from_pydict({"key": [1]})
ATTEMPT, EPOCH = 3, 10


def data(sender: int, seq: int, epoch: int = EPOCH, highs: tuple[int, ...] = ()) -> Frame:
    return Frame(FrameKind.DATA, ATTEMPT, 0, sender, epoch, seq, highs, ((0, 1),), BATCH)


def marker(sender: int, seq: int, epoch: int = EPOCH) -> Frame:
    return Frame(FrameKind.MARKER, ATTEMPT, 0, sender, epoch, seq)


def inbox(tasks: int = 2) -> Inbox:
    return Inbox([(0, sender) for sender in range(tasks)], EPOCH, ExchangeCounters())


def received(*frames: Frame) -> Inbox:
    box = inbox()
    for frame in frames:
        box.receive(frame)
    return box


def seqs(frames: list[Frame]) -> list[tuple[int, int]]:
    return [(frame.sender, frame.seq) for frame in frames]


def test_a_missing_frame_ends_the_attempt() -> None:
    with pytest.raises(ExchangeError, match="at frame 3, and only 1 came before"):
        received(data(0, 1), data(0, 3))


def test_a_pulse_tells_that_the_last_frames_are_lost() -> None:
    pulse = replace(marker(0, 2), kind=FrameKind.PULSE)
    with pytest.raises(ExchangeError, match="at frame 2, and only 1 came before"):
        received(data(0, 1), pulse)


def test_a_pulse_on_a_whole_channel_has_credit_given_again() -> None:
    frames = [data(0, number) for number in range(1, CREDIT_FRAMES + 1)]
    box = received(*frames)
    box.take()
    assert box.acknowledgements() == [(0, 0, CREDIT_FRAMES)]
    box.receive(data(0, CREDIT_FRAMES + 1))
    box.take()
    box.receive(replace(marker(0, CREDIT_FRAMES + 1), kind=FrameKind.PULSE))
    assert box.acknowledgements() == [(0, 0, CREDIT_FRAMES + 1)]


def test_a_pulse_speaks_of_what_was_sent_not_of_what_waits_for_credit() -> None:
    box = Outbox(0, 0, range(2), ATTEMPT)
    for _ in range(MAX_UNACKED_FRAMES + 2):
        add(box, 1)
    box.flush()
    assert [(target, frame.seq) for target, frame in box.pulse()] == [(0, 0), (1, 8)]


def test_a_sender_beyond_its_credits_ends_the_attempt() -> None:
    box = inbox()
    for seq in range(1, MAX_UNACKED_FRAMES + 1):
        box.receive(data(0, seq))
    with pytest.raises(ExchangeError, match="9 frames wait"):
        box.receive(data(0, MAX_UNACKED_FRAMES + 1))


def test_credit_is_given_for_several_frames_at_a_time_and_once() -> None:
    box = received(*(data(0, number) for number in range(1, CREDIT_FRAMES)), data(1, 1))
    box.take()
    assert box.acknowledgements() == []
    box.receive(marker(0, CREDIT_FRAMES))
    box.receive(marker(1, 2))
    box.receive(data(0, CREDIT_FRAMES + 1, EPOCH + 1))
    box.take()
    assert box.acknowledgements() == []
    box.advance()
    box.take()
    assert box.acknowledgements() == [(0, 0, CREDIT_FRAMES + 1)]
    assert box.acknowledgements() == []


def test_credit_is_given_at_once_for_a_large_frame() -> None:
    box = received(replace(data(0, 1), size=CREDIT_BYTES - 1), replace(data(1, 1), size=1))
    box.take()
    assert box.acknowledgements() == []
    box.receive(replace(data(0, 2), size=1))
    box.take()
    assert box.acknowledgements() == [(0, 0, 2)]


def exchanges() -> list[Exchange]:
    edge = Edge(SOURCES, Target(0, 0), is_local=False)
    return [
        Exchange(edges=[edge], task=task, tasks=2, attempt=ATTEMPT, epoch=EPOCH)
        for task in range(2)
    ]


def turn(exchange: Exchange, frames: list[Frame], rows: bool) -> list[tuple[int, Frame]]:
    """Receive frames, send rows to the other task if there are any, process, acknowledge."""
    leaving: list[tuple[int, Frame]] = []
    exchange.receive(frames)
    if rows:
        add(exchange.outboxes[0], 1 - exchange.task)
    exchange.flush(0, lambda *each: leaving.append(each))
    exchange.inboxes[0].take()
    exchange.acknowledge(0, leaving)
    return leaving


def test_rows_that_go_the_other_way_carry_the_credit() -> None:
    one, other = exchanges()
    back: list[Frame] = []
    for _ in range(10 * MAX_UNACKED_FRAMES):
        there = [frame for _, frame in turn(one, back, True)]
        back = [frame for _, frame in turn(other, there, True)]
        assert [frame.kind for frame in (*there, *back)] == [FrameKind.DATA] * 2
        assert back[0].ack in (0, there[0].seq)


def test_a_task_that_sends_no_rows_gives_credit_in_frames_of_its_own() -> None:
    one, other = exchanges()
    back: list[Frame] = []
    credits = 0
    for _ in range(10 * MAX_UNACKED_FRAMES):
        there = [frame for _, frame in turn(one, back, True)]
        back = [frame for _, frame in turn(other, there, False)]
        assert all(frame.kind is FrameKind.CREDIT for frame in back)
        credits += len(back)
    assert credits == 10 * MAX_UNACKED_FRAMES // CREDIT_FRAMES


def test_a_credit_that_rows_carry_is_not_repeated_by_a_frame_of_its_own() -> None:
    one, other = exchanges()
    for _ in range(CREDIT_FRAMES):
        add(one.outboxes[0], 1)
    there = [frame for _, frame in one.outboxes[0].flush()]
    assert [frame.kind for _, frame in turn(other, there, True)] == [FrameKind.DATA]
    assert turn(other, [], False) == []


@pytest.mark.parametrize("size", [1, MAX_UNACKED_BYTES // MAX_UNACKED_FRAMES, MAX_UNACKED_BYTES])
def test_a_sender_that_stopped_always_gets_credit_for_what_it_sent(size: int) -> None:
    outbox, box = Outbox(0, 0, range(2), ATTEMPT), inbox()
    for _ in range(3 * MAX_UNACKED_FRAMES):
        outbox.add(1, BATCH, ((0, 1),), epoch=EPOCH, highs=(), size=size)
    while outbox.blocked:
        before = [frame for _, frame in outbox.flush()]
        assert before
        for frame in before:
            box.receive(frame)
        box.take()
        for _, _, seq in box.acknowledgements():
            outbox.acknowledge(1, seq)


def test_event_time_is_that_of_the_channel_farthest_behind_of_those_that_have_any() -> None:
    box = received(data(0, 1, highs=(100, -1)), data(1, 1, highs=(70, -1)))
    assert box.highs(2) == (-1, -1)
    box.take()
    assert box.highs(2) == (70, -1)
    box = received(data(0, 1, highs=(100,)), data(1, 1, highs=(-1,)))
    box.take()
    assert box.highs(1) == (100,)


def add(box: Outbox, target: int, size: int = 10) -> None:
    box.add(target, BATCH, ((0, 1),), epoch=EPOCH, highs=(), size=size)


def test_a_sender_stops_at_its_credits_and_goes_on_when_they_return() -> None:
    box = Outbox(0, 0, range(2), ATTEMPT)
    for _ in range(MAX_UNACKED_FRAMES + 2):
        add(box, 1)
    assert [frame.seq for _, frame in box.flush()] == list(range(1, MAX_UNACKED_FRAMES + 1))
    assert box.blocked
    box.acknowledge(1, 1)
    assert [frame.seq for _, frame in box.flush()] == [MAX_UNACKED_FRAMES + 1]
    box.acknowledge(1, MAX_UNACKED_FRAMES)
    box.flush()
    assert not box.blocked


def test_bytes_are_credits_too_but_one_large_frame_may_always_go() -> None:
    box = Outbox(0, 0, range(1), ATTEMPT)
    add(box, 0, MAX_UNACKED_BYTES * 3)
    add(box, 0, 1)
    assert [frame.seq for _, frame in box.flush()] == [1]
    assert box.blocked
    box.acknowledge(0, 1)
    assert [frame.seq for _, frame in box.flush()] == [2]


def test_old_acknowledgements_say_nothing_new_and_impossible_ones_are_errors() -> None:
    box = Outbox(0, 0, range(1), ATTEMPT)
    add(box, 0)
    box.flush()
    box.acknowledge(0, 1)
    box.acknowledge(0, 0)
    with pytest.raises(ExchangeError, match="acknowledged frame 2 of 1"):
        box.acknowledge(0, 2)


def test_frames_of_other_attempts_and_unknown_channels_are_counted_and_dropped() -> None:
    edges = [Edge(SOURCES, Target(0))]
    exchange = Exchange(edges=edges, task=0, tasks=2, attempt=ATTEMPT, epoch=EPOCH)
    exchange.receive(
        [
            replace(data(1, 1), attempt=ATTEMPT - 1),
            replace(data(1, 1), sender=2),
            replace(data(1, 1), edge=1),
            data(1, 1),
        ]
    )
    assert exchange.counters == ExchangeCounters(stale_attempt=1, unknown_channel=2)
    assert seqs(exchange.inboxes[0].take()) == [(1, 1)]


PARTITIONS, TASKS = 5, 2
COLUMNS: Any = [
    pa.field("key", pa.int64()),
    pa.field("small", pa.int16()),
    pa.field("part", pa.float64()),
    pa.field("day", pa.date32()),
    pa.field("at", pa.timestamp("us", tz="UTC")),
]
FIXED = pa.schema(COLUMNS)
MIXED = FIXED.append(pa.field("text", pa.string())).append(pa.field("yes", pa.bool_()))


def rows(schema: pa.Schema, count: int, *, nulls: bool) -> pa.RecordBatch:
    """Rows out of the middle of a batch, so that columns have an offset."""
    rng = np.random.default_rng(count)
    columns: dict[str, Any] = {}
    for field in schema:
        numbers = rng.integers(0, 40, count + 2).tolist()
        missing = rng.random(count + 2) < (0.3 if nulls else 0)
        given = [None if gone else n for n, gone in zip(numbers, missing, strict=True)]
        if field.type == pa.string():
            columns[field.name] = pa.array([None if n is None else f"text {n}" for n in given])
        elif field.type == pa.bool_():
            columns[field.name] = pa.array([None if n is None else n % 2 == 0 for n in given])
        else:
            columns[field.name] = (
                pa.array(given, pa.int64())
                .cast(pa.int32())
                .cast(pa.int32() if field.type == pa.date32() else pa.int64())
                .cast(field.type)
            )
    return pa.RecordBatch.from_pydict(columns, schema=schema).slice(1, count)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16, 17, 25, 128, 129, 1_000])
@pytest.mark.parametrize("nulls", [False, True], ids=["whole", "with nulls"])
@pytest.mark.parametrize("schema", [FIXED, MIXED], ids=["fixed width", "mixed"])
def test_every_row_goes_where_spark_would_have_it_in_the_order_it_came(
    schema: pa.Schema, nulls: bool, count: int
) -> None:
    split = KeySplit(schema, ["key"], PARTITIONS, TASKS)
    key = spark_schema(pa.schema([schema.field("key")]))
    for _ in range(2):  # the second time keys are known
        batch = rows(schema, count, nulls=nulls)
        ids = partition_ids([batch.column("key")], key, PARTITIONS).tolist()
        expected = {
            partition: [
                row for row, at in zip(batch.to_pylist(), ids, strict=True) if at == partition
            ]
            for partition in sorted(set(ids))
        }
        found = {}
        for task, part, runs in split.split(batch):
            part.validate(full=True)
            start = 0
            for partition, length in runs:
                assert partition % TASKS == task
                found[partition] = part.slice(start, length).to_pylist()
                start += length
            assert start == part.num_rows
        assert found == expected


def test_a_row_of_fixed_width_has_a_size_and_another_one_is_measured() -> None:
    fixed, mixed = (KeySplit(schema, ["key"], PARTITIONS, TASKS) for schema in (FIXED, MIXED))
    assert fixed.size(rows(FIXED, 10, nulls=False)) == 8 + 2 + 8 + 4 + 8
    batch = rows(MIXED, 10_000, nulls=False)
    assert mixed.size(batch.slice(5, 10)) == batch.slice(5, 10).nbytes / 10
    few = rows(MIXED, 10, nulls=False)
    assert few.nbytes / 10 <= mixed.size(few) <= (1 << 14) / 10


def test_few_rows_may_have_structs_as_keys_with_a_null_first() -> None:
    place = pa.struct([pa.field("city", pa.string())])
    schema = pa.schema([pa.field("place", place)])
    batch = pa.RecordBatch.from_pylist(
        [{"place": None}, {"place": {"city": "Ulm"}}, {"place": {"city": None}}], schema
    )
    split = KeySplit(schema, ["place"], PARTITIONS, TASKS)
    ids = partition_ids([batch.column(0)], spark_schema(schema), PARTITIONS)
    for _ in range(2):
        found = split.split(batch)
        assert sorted(p for _, _, runs in found for p, n in runs for _ in range(n)) == sorted(ids)
