"""Rows under the names and types of Databricks' connector."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa

from epochal.connectors.pubsub.data_source.databricks_columns import renamed
from epochal.connectors.pubsub.pull.received_rows import MESSAGE_SCHEMA


def test_a_message_has_databricks_names_json_attributes_and_milliseconds() -> None:
    sent = datetime(1970, 1, 1, 0, 0, 1, 234_567, tzinfo=UTC)
    rows = [
        {"message_id": "1", "data": b"x", "attributes": [("a", "ü")], "publish_time": sent},
        {"message_id": "2", "data": b"", "attributes": [], "publish_time": sent},
    ]
    (found,) = renamed([pa.RecordBatch.from_pylist(rows, MESSAGE_SCHEMA)])
    assert found.to_pylist() == [
        {
            "messageId": "1",
            "payload": b"x",
            "attributes": '{"a": "\\u00fc"}',
            "publishTimestampInMillis": 1234,
        },
        {
            "messageId": "2",
            "payload": b"",
            "attributes": "{}",
            "publishTimestampInMillis": 1234,
        },
    ]
