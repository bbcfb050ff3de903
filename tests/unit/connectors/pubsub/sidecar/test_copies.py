"""Copies of partitions, which their first writer decides; duplicates are dropped if it is safe."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from epochal.connectors.pubsub.pull.received_rows import MESSAGE_SCHEMA
from epochal.connectors.pubsub.sidecar.copies import Copies, Seen, open_copies

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


@pytest.fixture
def seen() -> Seen:
    found = Seen()
    assert found.admit((1, 0), ["a", "b"]) == ([], [])
    return found


def test_a_message_with_a_copy_is_a_duplicate(seen: Seen) -> None:
    seen.settled((1, 0), copied=True)
    assert seen.admit((2, 0), ["b", "c", "a"]) == ([0, 2], [])


def test_a_message_whose_copy_is_not_written_yet_may_be_a_duplicate(seen: Seen) -> None:
    assert seen.admit((1, 1), ["c", "a"]) == ([], [1])


def test_a_message_whose_partition_was_dropped_is_new(seen: Seen) -> None:
    seen.settled((1, 0), copied=False)
    assert seen.admit((2, 0), ["a"]) == ([], [])


def test_a_batch_that_is_over_leaves_only_what_has_copies(seen: Seen) -> None:
    seen.admit((1, 1), ["c"])
    seen.settled((1, 1), copied=True)
    seen.commit(1)
    assert seen.admit((2, 0), ["a", "c"]) == ([1], [])


def test_a_message_twice_in_one_partition_is_a_duplicate(seen: Seen) -> None:
    assert seen.admit((2, 0), ["x", "y", "x"]) == ([2], [])


def test_a_second_call_for_a_partition_replaces_the_first(seen: Seen) -> None:
    assert seen.admit((1, 0), ["a", "c"]) == ([], [])
    assert seen.admit((1, 1), ["b"]) == ([], [])


def test_the_content_of_a_copy_counts_and_not_the_request(seen: Seen) -> None:
    seen.load((1, 0), ["z"])
    assert seen.admit((2, 0), ["a", "z"]) == ([1], [])


def test_a_window_that_is_over_is_forgotten(seen: Seen) -> None:
    seen.settled((1, 0), copied=True)
    seen.expire(1)
    assert len(seen) == 0
    assert seen.admit((2, 0), ["a"]) == ([], [])
