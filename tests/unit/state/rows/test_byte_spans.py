"""Spans: the byte strings they stand for, whichever way they are copied out."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from epochal.state.rows.byte_spans import Spans, as_spans, spans_of

LENGTHS = {
    "one length": [24],
    "only empty ones": [0],
    "a few lengths": [8, 16, 40],
    "a few lengths and empty ones": [0, 16, 24],
    "one length and empty ones": [0, 24],
    "many lengths": list(range(64)),
    "long ones": [8, 5000],
}


def shuffled(kind: str, count: int) -> tuple[Spans, list[bytes]]:
    """Spans in no order and partly repeated, over a buffer with gaps, and what they stand for."""
    rng = random.Random(kind)
    pieces = [rng.randbytes(rng.choice(LENGTHS[kind])) for _ in range(count)]
    gapped = spans_of([part for piece in pieces for part in (piece, b"\x01\x02\x03")])
    order = [rng.randrange(count) for _ in range(count)]
    return gapped.take(np.array(order) * 2), [pieces[index] for index in order]


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("count", [1, 2, 300, 9000])
def test_lists_and_arrow_arrays_hold_exactly_the_bytes_of_each_span(kind: str, count: int) -> None:
    spans, expected = shuffled(kind, count)
    assert spans.to_list() == expected
    assert {type(item) for item in spans.to_list()} == {bytes}
    array = spans.to_arrow()
    array.validate(full=True)
    assert array.to_pylist() == expected
    assert as_spans(array).to_list() == expected


def test_no_spans_are_an_empty_list_and_an_empty_array() -> None:
    spans = spans_of([])
    assert spans.to_list() == []
    assert spans.to_arrow().to_pylist() == []
    assert spans.to_arrow().type == pa.binary()


def test_keeps_zero_bytes_at_the_end_of_a_string() -> None:
    assert spans_of([b"a\x00\x00\x00", b"\x00\x00\x00\x00"]).to_list() == [
        b"a\x00\x00\x00",
        b"\x00\x00\x00\x00",
    ]


def test_a_slice_holds_the_spans_of_its_range() -> None:
    spans, expected = shuffled("many lengths", 100)
    assert spans.slice(10, 40).to_list() == expected[10:40]
    assert spans.slice(90, 200).to_list() == expected[90:]
