"""Frames over real sockets on loopback, and who is not let in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
import zmq
from tests.waiting import eventually

from epochal.continuous.tasks.channels import Channels
from epochal.continuous.tasks.frames import (
    MAX_BODY_BYTES,
    MAX_FRAME_BYTES,
    Frame,
    FrameKind,
    encode_frame,
)
from epochal.epoch.messages import Peer
from epochal.errors import RowTooLargeError
from epochal.rpc.curve import CurveKeys, introduce

BATCH = pa.RecordBatch.from_pydict({"key": [1, 2], "name": ["a", "b"]})
DATA = Frame(FrameKind.DATA, 1, 0, 0, 5, 1, (), ((0, 2),), BATCH)
CLIENTS = CurveKeys.new()


@contextmanager
def channels(count: int = 2, clients: CurveKeys = CLIENTS) -> Iterator[list[Channels]]:
    opened = [Channels("127.0.0.1", clients, [BATCH.schema]) for _ in range(count)]
    try:
        yield opened
    finally:
        for each in opened:
            each.close()


def received(channel: Channels, *others: Channels) -> list[Frame]:
    """What has arrived; everybody lets in whom they should."""
    for each in others:
        each.guard()
    channel.wait(0.02)
    return channel.receive()


def test_a_peer_without_the_keys_of_the_query_is_refused() -> None:
    with channels(1) as (target,), channels(1, CurveKeys.new()) as (stranger,):
        stranger.connect([Peer(0, target.url, target.key)])
        stranger.send(0, DATA)

        def is_refused() -> bool:
            assert received(target, stranger) == []
            return target.refused > 0

        eventually(is_refused, "the stranger is refused")


def test_what_is_not_a_frame_is_counted_and_dropped() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with channels(1) as (target,):
        push = context.socket(zmq.PUSH)
        introduce(push, target.key, CLIENTS)
        push.connect(target.url)
        push.send(b"not a frame")
        push.send(bytes(200))

        def both_are_counted() -> bool:
            assert received(target) == []
            return target.malformed >= 2

        eventually(both_are_counted, "two malformed frames")
        assert target.malformed == 2
        push.close(linger=0)
    context.term()


def test_a_row_that_the_receiver_would_refuse_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("epochal.continuous.tasks.channels.MAX_BODY_BYTES", 100_000)
    row = pa.RecordBatch.from_pydict({"key": [1], "name": ["x" * 300_000]})
    with channels() as (a, b):
        a.connect([Peer(1, b.url, b.key)])
        with pytest.raises(RowTooLargeError, match=r"A row of 0\.3 MB .* limit is 0\.1 MB per row"):
            a.send(1, replace(DATA, batch=row, runs=((0, 1),)))


def test_a_body_at_the_limit_fits_into_what_the_receiver_accepts() -> None:
    curve_overhead = 64
    header = encode_frame(DATA, b"")
    assert MAX_BODY_BYTES + len(header) + curve_overhead <= MAX_FRAME_BYTES
