"""What the page of a Spark checkpoint says: its batches over time, its state while it is purged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.golden.library import Golden, unpack

from epochal.dashboard.batch_history import (
    COPIED,
    MAX_MEASURED_BATCHES,
    BatchFacts,
    EndOffset,
    Offset,
    batches_to_measure,
    history_json,
    offset_of,
    with_lag,
)
from epochal.dashboard.checkpoint_answers import (
    UNREADABLE_STATE,
    HistoryReader,
    StateSelection,
    state_page,
    stats,
    stores,
)
from epochal.errors import EpochalError
from epochal.files.local import LocalFiles
from epochal.testing.clock import ManualClock


def batch(number: int, offset: Any, **changes: Any) -> BatchFacts:
    usual: dict[str, Any] = {
        "batch_id": number,
        "started_ms": 10_000 + 1_000 * number,
        "watermark_ms": None,
        "offsets": {"0": offset_of(offset)},
        "committed": True,
        "committed_ms": 10_300 + 1_000 * number,
    }
    return BatchFacts(**{**usual, **changes})


def kafka(*ends: int) -> dict[str, dict[str, int]]:
    return {"orders": {str(number): end for number, end in enumerate(ends)}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"orders": {"0": 5, "1": 9}}, Offset("kafka", 14, {("orders", 0): 5, ("orders", 1): 9})),
        ({"logOffset": 3}, Offset("file", 3)),
        ({"offset": 50, "timestamp": 7}, Offset("rate", 50)),
        ({"sourceVersion": 1, "reservoirVersion": 4, "index": 0}, Offset("delta", 4)),
        (17, Offset("other", 17)),
        (None, Offset("other", None)),
        ("offset as text", Offset("other", None)),
        ({"shards": [1, 2]}, Offset("other", None)),
        ({"logOffset": "three"}, Offset("file", None)),
        (True, Offset("other", None)),
    ],
)
def test_a_source_is_recognized_by_its_offset(value: Any, expected: Offset) -> None:
    assert offset_of(value) == expected


def test_the_times_of_a_copy_are_not_taken_for_durations() -> None:
    copied_ms = 99_000_000
    told = history_json([batch(n, n, committed_ms=copied_ms) for n in range(3)], {}, {})
    # The last batch has no next one that could prove its time wrong.
    assert [each["took_ms"] for each in told["batches"]] == [None, None, copied_ms - 12_000]
    assert history_json([batch(0, 0, committed_ms=1)], {}, {})["note"] == COPIED


def test_a_batch_that_is_not_committed_has_no_duration_yet() -> None:
    told = history_json([batch(0, 1), batch(1, 2, committed=False, committed_ms=None)], {}, {})
    assert [each["took_ms"] for each in told["batches"]] == [300, None]
    assert (told["figures"]["newest"], told["figures"]["committed"]) == (1, 0)
    assert told["sources"][0]["at"] == 1, "what is not committed is not processed"


def test_records_are_counted_per_partition_and_new_partitions_from_where_they_appear() -> None:
    batches = [batch(4, kafka(10, 20)), batch(5, kafka(15, 26)), batch(6, kafka(15, 30, 7))]
    told = history_json(batches, {}, {})
    assert [each["read"] for each in told["batches"]] == [[None], [11], [4]]


def test_a_batch_after_a_gap_does_not_count_what_others_read() -> None:
    told = history_json([batch(4, kafka(10)), batch(7, kafka(90))], {}, {})
    assert [each["read"] for each in told["batches"]] == [[None], [None]]


def test_files_are_counted_by_the_log_of_their_source() -> None:
    batches = [batch(n, {"logOffset": at}) for n, at in enumerate([0, 1, 3, 3])]
    told = history_json(batches, {"0": {0: 9, 1: 2, 2: 5, 3: 1}}, {})
    assert [each["read"] for each in told["batches"]] == [[None], [2], [6], [0]]
    assert history_json(batches, {}, {})["batches"][1]["read"] == [None]
    assert told["sources"][0]["unit"] == "files"


def test_the_watermark_is_compared_with_the_clock_of_its_batch() -> None:
    told = history_json([batch(0, 1), batch(1, 2, watermark_ms=4_000)], {}, {})
    assert [each["behind_ms"] for each in told["batches"]] == [None, 7_000]


def source(offset: Any) -> dict[str, Any]:
    (found,) = history_json([batch(0, offset)], {}, {})["sources"]
    return dict(found)


def test_lag_counts_from_the_committed_offsets() -> None:
    ends = {("orders", 0): EndOffset(12, 3.5), ("orders", 1): EndOffset(9, 0.0)}
    found = with_lag(source(kafka(5, 9)), ends, None)
    assert (found["lag"], found["latest"], found["seconds"], found["why"]) == (7, 21, 3.5, None)
    assert [part["lag"] for part in found["parts"]] == [7, 0]


def test_a_topic_that_was_made_anew_has_no_negative_lag() -> None:
    assert with_lag(source(kafka(50)), {("orders", 0): EndOffset(3)}, None)["lag"] == 0


def test_partitions_that_the_brokers_do_not_have_are_named_so() -> None:
    found = with_lag(source(kafka(5)), {}, None)
    assert (found["lag"], found["why"]) == (None, "The brokers know none of these partitions.")


def test_the_same_batches_are_measured_while_others_are_added() -> None:
    assert batches_to_measure([]) == []
    assert batches_to_measure([3, 4, 5]) == [5, 4, 3]
    before, after = batches_to_measure(range(200, 400)), batches_to_measure(range(210, 401))
    assert len(before) <= MAX_MEASURED_BATCHES + 1
    assert before[0] == 399
    assert set(before[1:]) & set(range(210, 400)) == set(after[1:])


def test_state_that_cannot_be_read_is_not_called_unmeasured(tmp_path: Path) -> None:
    checkpoint = unpack(Golden("4.3.0", "windowed"), tmp_path).checkpoint
    reader = HistoryReader(ManualClock())
    assert reader.read(LocalFiles(str(checkpoint)))["state_note"] is None
    for file in (checkpoint / "state").glob("0/*/*.delta"):
        file.write_bytes(b"garbage")
    for file in (checkpoint / "state").glob("0/*/*.snapshot"):
        file.unlink()
    again = HistoryReader(ManualClock()).read(LocalFiles(str(checkpoint)))
    assert again["state_note"] == UNREADABLE_STATE


class Purging(LocalFiles):
    """Fails to find purged files: each name in `misses` is missing once."""

    def __init__(self, root: str | Path, misses: list[str]) -> None:
        super().__init__(root)
        self.misses = misses

    def at(self, path: str) -> LocalFiles:
        return Purging(super().at(path).url, self.misses)

    def read(self, path: str, *, large: bool = False) -> bytes:
        if path.endswith((".delta", ".snapshot")) and self.misses:
            raise FileNotFoundError(self.misses.pop())
        return super().read(path)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return unpack(Golden("4.3.0", "chained"), tmp_path).checkpoint


READS: dict[str, Callable[[LocalFiles, StateSelection], dict[str, Any]]] = {
    "rows": lambda files, selection: state_page(files, selection, 0, 50),
    "figures": stats,
}


@pytest.mark.parametrize("what", READS)
def test_the_newest_state_is_looked_up_again_when_it_was_purged_under_way(
    checkpoint: Path, what: str
) -> None:
    files = Purging(checkpoint, ["1.delta"])
    assert READS[what](files, StateSelection()) == READS[what](
        LocalFiles(checkpoint), StateSelection()
    )
    assert files.misses == []


@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize(("batch", "misses"), [(None, 1000), (1, 1)])
def test_state_that_stays_away_or_was_asked_for_by_number_is_said_to_be_gone(
    checkpoint: Path, what: str, batch: int | None, misses: int
) -> None:
    with pytest.raises((EpochalError, OSError)):
        READS[what](Purging(checkpoint, ["1.delta"] * misses), StateSelection(batch=batch))


def test_a_query_that_has_committed_nothing_has_no_stores_yet(checkpoint: Path) -> None:
    for commit in (checkpoint / "commits").iterdir():
        commit.unlink()
    nothing: dict[str, Any] = {"batch_id": None, "stores": [], "oldest": None, "newest": None}
    assert stores(LocalFiles(checkpoint), None) == nothing
