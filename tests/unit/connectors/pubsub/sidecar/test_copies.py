"""Copies of partitions: the first writer decides the content."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from epochal.connectors.pubsub.pull.received_rows import MESSAGE_SCHEMA
from epochal.connectors.pubsub.sidecar.copies import Copies, open_copies

SUBSCRIPTION = "projects/p/subscriptions/s"


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return open_copies(str(tmp_path), SUBSCRIPTION)


def rows(*ids: str) -> list[pa.RecordBatch]:
    sent = datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
    found = [
        {"message_id": each, "data": b"x", "attributes": [("k", "v")], "publish_time": sent}
        for each in ids
    ]
    return [pa.RecordBatch.from_pylist(found, schema=MESSAGE_SCHEMA)]


def test_a_copy_reads_as_it_was_written(copies: Copies, tmp_path: Path) -> None:
    assert copies.decide((3, 1), MESSAGE_SCHEMA, rows("a", "b")) is None
    assert copies.read((3, 1)) == rows("a", "b")
    assert (tmp_path / "pubsub" / "p.s" / "3" / "1.arrow").is_file()


def test_the_second_writer_gets_what_the_first_wrote(copies: Copies) -> None:
    copies.decide((3, 1), MESSAGE_SCHEMA, rows("a"))
    assert copies.decide((3, 1), MESSAGE_SCHEMA, rows("b")) == rows("a")


def test_a_partition_that_was_sealed_stays_empty(copies: Copies) -> None:
    assert copies.read_or_seal((3, 0), MESSAGE_SCHEMA) == []
    assert copies.decide((3, 0), MESSAGE_SCHEMA, rows("a")) == []
    assert copies.read((3, 0)) == []


def test_messages_are_known_by_id_and_time_from_all_copies_until_they_are_dropped(
    copies: Copies,
) -> None:
    copies.decide((3, 0), MESSAGE_SCHEMA, rows("a", "b"))
    copies.decide((4, 0), MESSAGE_SCHEMA, rows("c"))
    copies.read_or_seal((4, 1), MESSAGE_SCHEMA)
    assert list(copies.message_keys()) == [
        ((3, 0), ["a@5", "b@5"]),
        ((4, 0), ["c@5"]),
        ((4, 1), []),
    ]
    copies.drop(3)
    assert copies.batches() == [4]
