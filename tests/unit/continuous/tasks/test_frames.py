"""Frames survive the wire, and nothing else passes for one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.continuous.tasks.frames import (
    Frame,
    FrameKind,
    Runs,
    decode_frame,
    encode_frame,
    split_rows,
)
from epochal.errors import FrameError

BATCH = pa.RecordBatch.from_pydict({"key": [1, 2, 3], "name": ["a", None, "c"]})
SCHEMA = BATCH.schema
DATA = Frame(FrameKind.DATA, 7, 1, 2, 41, 9, (-1, 1234), ((0, 1), (4, 2)), BATCH, ack=17)


def wire(frame: Frame) -> bytes:
    return encode_frame(frame, b"" if frame.batch is None else frame.batch.serialize())


def test_a_data_frame_comes_back_with_its_rows_runs_event_times_and_credit() -> None:
    size = BATCH.serialize().size
    assert decode_frame(wire(DATA), [SCHEMA, SCHEMA]) == replace(DATA, size=size)


@pytest.mark.parametrize("watermarks", range(3))
def test_numbers_of_a_received_body_are_aligned(watermarks: int) -> None:
    decoded = decode_frame(wire(replace(DATA, highs=(1,) * watermarks)), [SCHEMA, SCHEMA]).batch
    assert decoded is not None
    numbers = decoded.column(0).buffers()[1]
    assert numbers is not None
    assert numbers.address % 8 == 0


@pytest.mark.parametrize("kind", [FrameKind.MARKER, FrameKind.CREDIT])
def test_markers_and_credits_are_a_header_alone(kind: FrameKind) -> None:
    frame = Frame(kind, 7, 0, 2, 41, 10, (5,))
    assert len(wire(frame)) == 56
    assert decode_frame(wire(frame), [SCHEMA]) == frame
    with pytest.raises(FrameError, match="contradicts its counts"):
        decode_frame(encode_frame(frame, b"x"), [SCHEMA])


def test_a_sliced_batch_carries_only_its_rows() -> None:
    frame = replace(DATA, batch=BATCH.slice(1, 1), runs=((4, 1),))
    decoded = decode_frame(wire(frame), [SCHEMA, SCHEMA]).batch
    assert decoded is not None
    assert decoded.to_pydict() == {"key": [2], "name": [None]}


def test_a_frame_for_a_stage_that_the_query_does_not_have_is_refused() -> None:
    with pytest.raises(FrameError, match="edge 1, the query has 1"):
        decode_frame(wire(DATA), [SCHEMA])


def test_runs_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(FrameError, match="3 rows, but its runs add up to"):
        decode_frame(wire(replace(DATA, runs=((0, 2),))), [SCHEMA, SCHEMA])


def test_any_changed_or_missing_byte_is_an_error_and_nothing_worse() -> None:
    chance = random.Random(1)
    for _ in range(3_000):
        part = bytearray(wire(DATA))
        match chance.randrange(3):
            case 0:
                part[chance.randrange(len(part))] ^= 1 << chance.randrange(8)
            case 1:
                del part[chance.randrange(len(part)) :]
            case _:
                part += chance.randbytes(chance.randint(1, 20))
        with pytest.raises(FrameError):
            decode_frame(bytes(part), [SCHEMA, SCHEMA])
    for size in range(160):
        with pytest.raises(FrameError):
            decode_frame(chance.randbytes(size), [SCHEMA])


LISTS = pa.list_(pa.field("item", pa.int32()))


@st.composite
def rows_and_runs(draw: st.DrawFn) -> tuple[pa.RecordBatch, Runs]:
    """Rows of very different sizes, with the runs that a split by key may give them."""
    row = st.tuples(st.one_of(st.none(), st.integers(0, 3_000)), st.integers(0, 50), st.booleans())
    rows = draw(st.lists(row, min_size=1, max_size=40))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(range(len(rows)), pa.int64()),
            pa.array([None if size is None else "x" * size for size, _, _ in rows], pa.string()),
            pa.array([list(range(count)) for _, count, _ in rows], LISTS),
        ],
        names=["number", "text", "list"],
    )
    runs: list[tuple[int, int]] = []
    for _, _, is_new in rows:
        if is_new or not runs:
            runs.append((len(runs), 0))
        runs[-1] = (runs[-1][0], runs[-1][1] + 1)
    return batch, tuple(runs)


@given(rows_and_runs(), st.integers(1, 5_000), st.integers(0, 5))
def test_rows_are_split_into_frames_below_the_limit_in_their_order(
    given_rows: tuple[pa.RecordBatch, Runs], limit: int, before: int
) -> None:
    batch, runs = given_rows
    whole = cast(Any, pa).concat_batches([batch.slice(0, 1)] * before + [batch]).slice(before)
    parts = split_rows(whole, runs, limit)
    # Arrow adds a header, and aligns each of the buffers.
    assert all(part.num_rows == 1 or part.serialize().size <= limit + 1024 for part, _ in parts)
    assert pa.Table.from_batches([part for part, _ in parts]).to_pylist() == batch.to_pylist()
    partitions = [p for _, part_runs in parts for p, count in part_runs for _ in range(count)]
    assert partitions == [p for p, count in runs for _ in range(count)]
    assert all(sum(count for _, count in each) == part.num_rows for part, each in parts)
    for part, each in parts:
        frame = replace(DATA, batch=part, runs=each)
        assert decode_frame(wire(frame), [SCHEMA, batch.schema]).batch == part


def test_rows_within_the_limit_stay_one_frame() -> None:
    assert split_rows(BATCH, ((0, 1), (4, 2)), 1_000) == [(BATCH, ((0, 1), (4, 2)))]
