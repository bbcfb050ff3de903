"""The lease book, compared with a plain dictionary of ids, and ids that are handed back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from google.pubsub_v1.types import pubsub
from hypothesis import given
from hypothesis import strategies as st

from epochal.connectors.pubsub.pull import ack_leases as leases
from epochal.connectors.pubsub.pull.ack_leases import Ids, LeaseBook, id_rows
from epochal.connectors.pubsub.pull.hand_back import decode_ids, encode_ids


def texts(lots: list[Ids]) -> list[str]:
    return [text for lot in lots for text in lot.texts()]


def ids(first: int, count: int, width: int = 8) -> list[str]:
    return [f"{number:0{width}d}" for number in range(first, first + count)]


def test_held_messages_can_be_listed() -> None:
    book = LeaseBook()
    book.add(id_rows(pa.array(ids(0, 6))))
    book.settle([(2, 4)])
    assert texts(book.all_held()) == [*ids(0, 2), *ids(4, 2)]
    assert book.spans() == [(0, 2), (4, 6)]


def test_ids_are_encoded_as_google_does_it() -> None:
    book = LeaseBook()
    book.add(id_rows(pa.array([*ids(0, 3, 200), *ids(3, 2, 7)])))  # of different lengths
    book.add(id_rows(pa.array(ids(5, 4, 176))))
    for lot in book.all_held():
        request = pubsub.AcknowledgeRequest.deserialize(lot.encoded(2))
        assert list(request.ack_ids) == lot.texts()
        modify = pubsub.ModifyAckDeadlineRequest.deserialize(lot.encoded(4))
        assert list(modify.ack_ids) == lot.texts()


def test_requests_stay_within_pubsubs_limits() -> None:
    book = LeaseBook()
    for start in range(0, 10_000, 1000):
        book.add(id_rows(pa.array(ids(start, 1000, 176))))
    lots = book.all_held()
    assert max(len(lot) for lot in lots) <= leases.MAX_IDS
    assert max(len(lot.encoded(2)) for lot in lots) <= leases.MAX_REQUEST_BYTES
    assert len(lots) == 4


def test_picking_keeps_numbers_and_ids_together() -> None:
    book = LeaseBook()
    book.add(id_rows(pa.array(ids(0, 5))))
    (lot,) = book.all_held()
    picked = lot.pick({"00000001", "00000003"})
    assert (picked.numbers.tolist(), picked.texts()) == ([1, 3], ["00000001", "00000003"])


@given(st.lists(st.text("ab", max_size=2), max_size=4), st.integers(0, 3))
def test_few_and_many_ids_become_the_same_rows(texts: list[str], start: int) -> None:
    array = pa.array(texts, pa.string()).slice(start)
    few = id_rows(array)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "FEW_IDS", 0)
        many = id_rows(array)
    assert type(few) is type(many)
    assert np.array_equal(few, many)


@given(
    st.lists(st.integers(0, 12), max_size=12),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 30)), max_size=20),
)
def test_the_book_holds_what_a_dictionary_would(
    sizes: list[int], cuts: list[tuple[int, int]]
) -> None:
    book, model = LeaseBook(), dict[int, str]()
    for size in sizes:
        first = book.next_number
        given_ids = ids(first, size, 4 if first % 2 else 6)
        assert book.add(id_rows(pa.array(given_ids, pa.string()))) == first
        model.update(zip(range(first, first + size), given_ids, strict=True))
    for start, length in cuts:
        due = [model.pop(n) for n in range(start, start + length) if n in model]
        assert sorted(texts(book.settle([(start, start + length)]))) == sorted(due)
        assert book.held == len(model)
    assert sorted(texts(book.all_held())) == sorted(model.values())


@pytest.mark.parametrize("ids", [["one", "two"], ["one", "three"], ["", ""], ["x" * 180] * 100])
def test_ids_survive_the_pipe(ids: list[str]) -> None:
    rows = id_rows(pa.array(ids))
    found = decode_ids(encode_ids(rows))
    assert type(found) is type(rows)
    assert np.array_equal(found, rows)
