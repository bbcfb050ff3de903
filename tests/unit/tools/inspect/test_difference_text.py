"""What changed, in words."""

from __future__ import annotations

from typing import Any

import pytest

from epochal.tools.inspect.checkpoint_diff import (
    CheckpointDifference,
    change_lines,
    checkpoint_rows,
    diff_entries,
    first_lines,
    offsets_text,
)


def entry(offsets: list[Any], watermark: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "offsets": offsets,
        "watermark_ms": watermark,
        "timestamp_ms": 1_700_000_000_000,
        "conf": {"spark.sql.shuffle.partitions": "2"},
        **more,
    }


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ([{"logOffset": 8}], "8"),
        ([42], "42"),
        ([None], "-"),
        ([{"my.topic": {"0": 20, "1": 7}}], "my.topic 0:20 1:7"),
        ([{"t": {str(n): 10 for n in range(50)}}], "t 500 in 50 partitions"),
        ([{"logOffset": 8}, None], "0: 8; 1: -"),
        ({"orders": {"logOffset": 8}}, "orders: 8"),
        ([{"offset": 9, "partitions": {"0": 4, "1": 5}}], "offset 9, partitions 0:4 1:5"),
        ([{"a": [1, 2]}], "a [1, 2]"),
        (None, "?"),
    ],
)
def test_offsets_take_one_short_line(offsets: Any, text: str) -> None:
    assert offsets_text(offsets) == text


def test_an_entry_says_only_what_changed() -> None:
    before = entry([{"logOffset": 7}], 1_704_067_200_000)
    after = entry([{"logOffset": 8}], 1_704_067_256_300)
    assert change_lines(diff_entries(before, after), brief=True) == [
        "offset 8 (+1)",
        "watermark 2024-01-01T00:00:56.300Z (+56.3 s)",
    ]
    assert change_lines(diff_entries(before, after)) == [
        "offset 7 → 8 (+1)",
        "watermark 2024-01-01T00:00:00.000Z → 2024-01-01T00:00:56.300Z (+56.3 s)",
    ]
    assert change_lines(diff_entries(before, before)) == []


def test_the_first_entry_counts_its_settings() -> None:
    assert first_lines(entry([{"t": {"0": 5}}])) == ["t 0:5", "pins 1 setting"]


def test_a_changed_setting_and_a_new_attempt_are_told_but_not_an_epochs_files() -> None:
    ours = {"attempt": 0, "messages": ["abc"]}
    before = entry([1], epochal=ours)
    after = entry([1], epochal={"attempt": 1, "messages": ["def"]}) | {
        "conf": {"spark.sql.shuffle.partitions": "4"}
    }
    assert change_lines(diff_entries(before, after)) == [
        "spark.sql.shuffle.partitions: 2 → 4",
        "attempt: 0 → 1",
    ]


def test_many_partitions_that_moved_are_summed_up() -> None:
    before = entry([{"t": {str(n): 0 for n in range(50)}}])
    after = entry([{"t": {str(n): 3 for n in range(50)}}])
    assert change_lines(diff_entries(before, after)) == ["offset +150 in 50 partitions"]


def test_a_topic_with_dots_keeps_its_name() -> None:
    found = [CheckpointDifference("offsets.0.my.topic.3", 20, 30)]
    assert change_lines(found) == ["offset my.topic 3: 20 → 30 (+10)"]


def test_batches_that_differ_alike_share_a_line() -> None:
    setting = "conf.spark.sql.shuffle.partitions"
    found = [
        CheckpointDifference("query_id", "a", "b"),
        *(CheckpointDifference(f"batches.{n}.{setting}", "2", "4") for n in range(3)),
        *(CheckpointDifference(f"batches.{n}.timestamp_ms", 1, 2) for n in range(3, 5)),
        CheckpointDifference("batches.5.offsets.0.logOffset", 5, 7),
        CheckpointDifference("batches.6", {"batch_id": 6}, None),
        CheckpointDifference("batches.7", {"batch_id": 7}, None),
        CheckpointDifference("state.0.partitions", 2, 4),
    ]
    assert list(checkpoint_rows(found)) == [
        ("checkpoint", "query id: a → b"),
        ("batches 0 to 2", "spark.sql.shuffle.partitions: 2 → 4"),
        ("batches 3 to 4", "planned at other times"),
        ("batch 5", "offset 5 → 7 (+2)"),
        ("batches 6 to 7", "only before"),
        ("operator 0", "partitions: 2 → 4"),
    ]
