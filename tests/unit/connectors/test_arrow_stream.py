"""Batches as bytes, and small batches joined to larger ones."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from epochal.connectors import arrow_stream
from epochal.connectors.arrow_stream import JOINED_BYTES, decode_stream, encode_stream, joined

NUMBERS = pa.schema([("n", pa.int64())])
TEXTS = pa.schema([("text", pa.string())])


def numbers(*found: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(found, pa.int64())], schema=NUMBERS)


def test_an_encoded_stream_has_all_batches() -> None:
    found = decode_stream(encode_stream(NUMBERS, [numbers(1), numbers(2, 3)]).to_pybytes())
    assert found.column("n").to_pylist() == [1, 2, 3]


def test_small_batches_become_one() -> None:
    found = list(joined([numbers(1), numbers(), numbers(2, 3)]))
    assert found == [numbers(1, 2, 3)]


def test_batches_of_another_schema_are_kept_apart_and_in_order() -> None:
    text = pa.record_batch([["a"]], schema=TEXTS)
    found = list(joined([numbers(1), numbers(2), text, text, numbers(3)]))
    assert [each.to_pylist() for each in found] == [
        [{"n": 1}, {"n": 2}],
        [{"text": "a"}, {"text": "a"}],
        [{"n": 3}],
    ]


def test_a_large_batch_is_not_copied() -> None:
    large = numbers(*range(JOINED_BYTES // 8))
    found = list(joined([numbers(1), large, numbers(2)]))
    assert found == [numbers(1), large, numbers(2)]
    assert found[1] is large


@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=12), st.integers(1, 60))
def test_no_row_is_lost_and_no_joined_batch_is_too_large(rows: list[list[int]], limit: int) -> None:
    batches = [numbers(*each) for each in rows]
    before, arrow_stream.JOINED_BYTES = arrow_stream.JOINED_BYTES, limit
    try:
        found = list(joined(batches))
    finally:
        arrow_stream.JOINED_BYTES = before
    assert [n for each in found for n in each.column(0).to_pylist()] == [
        n for each in rows for n in each
    ]
    assert all(each.nbytes <= limit or each in batches for each in found)
