"""Both ways to decode responses return the same rows; the lease book is a dictionary of ids."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.pubsub_v1.types import pubsub
from hypothesis import given
from hypothesis import strategies as st

from epochal.connectors.pubsub.pull import ack_leases as leases
from epochal.connectors.pubsub.pull import received_rows
from epochal.connectors.pubsub.pull.ack_leases import Ids, LeaseBook, id_rows
from epochal.connectors.pubsub.pull.hand_back import decode_ids, encode_ids
from epochal.connectors.pubsub.pull.received_rows import (
    ACK_SCHEMA,
    FEW_BYTES,
    MESSAGE_SCHEMA,
    decode,
    decode_few,
    decode_many,
    to_databricks_columns,
)

Response: Any = pubsub.StreamingPullResponse.pb()
TEXTS = st.text(max_size=5)
MESSAGES = st.fixed_dictionaries(
    {"message_id": TEXTS, "data": st.binary(max_size=20)},
    optional={
        "attributes": st.dictionaries(TEXTS, TEXTS, max_size=3),
        "publish_time": st.fixed_dictionaries(
            {"seconds": st.integers(0, 4_000_000_000), "nanos": st.integers(0, 999_999_999)}
        ),
        "ordering_key": TEXTS,
    },
)
RECEIVED = st.fixed_dictionaries(
    {"ack_id": TEXTS}, optional={"message": MESSAGES, "delivery_attempt": st.integers(0, 1000)}
)
PROPERTIES = st.fixed_dictionaries({}, optional={"exactly_once_delivery_enabled": st.booleans()})
RESPONSES = st.lists(
    st.fixed_dictionaries(
        {"received_messages": st.lists(RECEIVED, max_size=4)},
        optional={"subscription_properties": PROPERTIES},
    ),
    max_size=3,
)


def rows(batch: Any) -> list[dict[str, Any]]:
    """The rows; attributes as dictionaries, because their order means nothing."""
    return [{**row, "attributes": dict(row["attributes"])} for row in batch.to_pylist()]


@given(RESPONSES)
def test_few_and_many_messages_are_decoded_alike(responses: list[dict[str, Any]]) -> None:
    raw = [Response(**each).SerializeToString() for each in responses]
    few, many = decode_few(raw), decode_many(raw)
    assert few.schema == many.schema == ACK_SCHEMA
    assert rows(few) == rows(many)


@pytest.mark.parametrize(("size", "chosen"), [(FEW_BYTES, "few"), (FEW_BYTES + 1, "many")])
def test_the_size_of_the_responses_decides(
    monkeypatch: pytest.MonkeyPatch, size: int, chosen: str
) -> None:
    for name in ("few", "many"):
        monkeypatch.setattr(received_rows, f"decode_{name}", lambda _responses, name=name: name)
    found: Any = decode([bytes(size - 1), bytes(1)])
    assert found == chosen


def test_a_message_has_databricks_names_json_attributes_and_milliseconds() -> None:
    sent = datetime(1970, 1, 1, 0, 0, 1, 234_567, tzinfo=UTC)
    rows = [
        {"message_id": "1", "data": b"x", "attributes": [("a", "ü")], "publish_time": sent},
        {"message_id": "2", "data": b"", "attributes": [], "publish_time": sent},
    ]
    (found,) = to_databricks_columns([pa.RecordBatch.from_pylist(rows, MESSAGE_SCHEMA)])
    assert found.to_pylist() == [
        {
            "messageId": "1",
            "payload": b"x",
            "attributes": '{"a": "\\u00fc"}',
            "publishTimestampInMillis": 1234,
        },
        {"messageId": "2", "payload": b"", "attributes": "{}", "publishTimestampInMillis": 1234},
    ]


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
