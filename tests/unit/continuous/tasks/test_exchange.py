"""The rules of the channels between tasks."""

from __future__ import annotations

from dataclasses import replace

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
from epochal.errors import ExchangeError

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
