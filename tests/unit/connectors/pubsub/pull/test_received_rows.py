"""Both ways to decode responses return the same rows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from google.pubsub_v1.types import pubsub
from hypothesis import given
from hypothesis import strategies as st

from epochal.connectors.pubsub.pull import received_rows
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
