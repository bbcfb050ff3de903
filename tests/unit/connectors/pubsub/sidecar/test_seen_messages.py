"""Messages that a query has seen: duplicates are dropped, unless the first one may be lost."""

from __future__ import annotations

import pytest

from epochal.connectors.pubsub.sidecar.seen_messages import Seen


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
