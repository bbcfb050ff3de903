"""What the page says of a Spark checkpoint's batches and state, and of the runs of our queries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.golden.library import Golden, unpack
from tests.unit.metrics.runs import RUN, epoch, progress

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
from epochal.dashboard.query_runs import (
    KEPT_EPOCHS,
    RunView,
    group_of,
    names_of,
    place_of,
    report_json,
    status_of,
)
from epochal.errors import EpochalError
from epochal.files.local import LocalFiles
from epochal.metrics.run_records import Progressed, Record, RunEnded, StatusChanged
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


def test_what_comes_twice_counts_once() -> None:
    view = RunView(RUN)
    records: list[Record] = [
        StatusChanged(1, "Processing", -1, 0, 0),
        epoch(0),
        epoch(1),
        progress(),
    ]
    assert [view.add(record) for record in records] == [True] * 4
    assert [view.add(record) for record in [RUN, *records]] == [False] * 5
    assert view.add(epoch(2))
    assert [each.epoch for _, each in view.epochs] == [0, 1, 2]


def test_only_news_is_told() -> None:
    view = RunView(RUN)
    view.add(epoch(0))
    first = view.since(0)
    assert [each["epoch"] for each in first["epochs"]] == [0]
    view.add(progress())
    view.add(epoch(1))
    news = view.since(first["sequence"])
    assert [each["epoch"] for each in news["epochs"]] == [1]
    assert len(news["reports"]) == 1
    assert view.since(news["sequence"])["epochs"] == []


def test_epochs_that_are_kept_are_bounded() -> None:
    view = RunView(RUN)
    for number in range(KEPT_EPOCHS + 10):
        view.add(epoch(number))
    assert len(view.epochs) == KEPT_EPOCHS
    assert view.newest_epoch == KEPT_EPOCHS + 9


def test_a_run_is_running_stopped_failed_or_lost() -> None:
    view = RunView(RUN)
    assert view.state == "running"
    view.alive = False
    assert view.state == "lost"
    view.add(RunEnded(9, "it broke"))
    assert (view.state, view.summary()["error"]) == ("failed", "it broke")
    view.end = RunEnded(9)
    assert view.state == "stopped"


def test_a_summary_tells_what_a_list_needs() -> None:
    view = RunView(RUN)
    view.add(StatusChanged(1, "Processing", -1, 3, 2))
    view.add(epoch(4))
    view.add(progress())
    summary = view.summary()
    assert (summary["name"], summary["state"], summary["message"]) == (
        *("orders", "running", "Processing"),
    )
    assert (summary["epoch"], summary["attempt"], summary["restarts"]) == (4, 3, 2)
    assert (summary["input_rate"], summary["p50_ms"], summary["p99_ms"]) == (120.5, 30, 40)
    assert (summary["behind"], summary["state_rows"]) == (20, 42)


def test_a_report_tells_lag_by_source_and_partition() -> None:
    told = report_json(progress())
    assert [each["lag"] for each in told["sources"]] == [17, 3]
    assert (told["sources"][1]["at"], told["sources"][1]["latest"]) == (14, 17)
    assert told["sources"][1]["parts"] == [
        {"topic": "orders", "partition": 0, "at": 5, "latest": 8, "lag": 3},
        {"topic": "orders", "partition": 1, "at": 9, "latest": 9, "lag": 0},
    ]
    assert told["operators"][0]["rows"] == 42


@pytest.mark.parametrize(
    ("name", "offset", "unit"),
    [
        ("rate", 56, "rows; its position is in seconds"),
        ("rate[5 rows per second]", 56, "rows; its position is in seconds"),
        ("json[inbox]", {"logOffset": 3}, "batches of files"),
        ("kafka[orders]", {"orders": {"0": 5}}, "records"),
        ("pubsub", 7, "offsets"),
    ],
)
def test_lag_has_the_unit_in_which_its_source_counts(name: str, offset: Any, unit: str) -> None:
    source = {"description": name, "endOffset": offset, "latestOffset": offset}
    told = report_json(Progressed(1, {"sources": [source]}))
    assert [each["unit"] for each in told["sources"]] == [unit]


def test_the_watermark_is_compared_with_the_clock() -> None:
    at_ms = 1_704_067_200_500 + 2_000
    told = report_json(Progressed(at_ms, progress().report))
    assert (told["watermark_ms"], told["behind_ms"]) == (1_704_067_200_500, 2_000)
    for text in ("1970-01-01T00:00:00.000Z", "yesterday", None):
        report = {"eventTime": {"watermark": text}}
        assert report_json(Progressed(at_ms, report))["behind_ms"] is None


def test_restarts_are_marked_with_their_time() -> None:
    view = RunView(RUN)
    for at_ms, restarts in ((1_000, 0), (2_000, 1), (2_500, 1), (3_000, 2)):
        view.add(StatusChanged(at_ms, "Processing", 5, restarts, restarts))
    assert view.since(0)["restarts"] == [2_000, 3_000]


def test_a_report_of_another_making_is_no_reason_to_fail() -> None:
    told = report_json(Progressed(5, {"batchId": 1}))
    assert (told["epoch"], told["behind"], told["sources"]) == (1, None, [])


def test_rows_that_came_too_late_are_added_up() -> None:
    view = RunView(RUN)
    for at_ms, dropped in ((1_000, 2), (2_000, 0), (3_000, 5)):
        operator = {"operatorName": "stateStoreSave", "numRowsDroppedByWatermark": dropped}
        view.add(Progressed(at_ms, {"stateOperators": [operator], "sources": []}))
    assert view.summary()["late_rows"] == 7


@pytest.mark.parametrize(
    "names",
    [
        {"/data/orders": "orders", "s3://bucket/team/clicks/": "clicks"},
        {"/data/orders/checkpoint": "orders", "/data/clicks/_checkpoint": "clicks"},
        {"/data/orders/checkpoints": "orders", "/data/clicks/Checkpoint": "clicks"},
        {"/a/orders/checkpoint": "a/orders", "/b/orders/checkpoint": "b/orders"},
        {"/x/team/orders": "x/team/orders", "/y/team/orders": "y/team/orders", "/orders": "orders"},
        {"/checkpoint": "checkpoint"},
    ],
)
def test_a_query_has_the_name_of_its_directory_with_parents_where_two_would_be_the_same(
    names: dict[str, str],
) -> None:
    assert names_of(list(names)) == names


def test_the_place_of_a_query_is_above_what_gave_it_its_name() -> None:
    assert [place_of(each) for each in ("/data/orders/checkpoint", "/checkpoint")] == ["/data", "/"]


@pytest.mark.parametrize(
    ("state", "health", "status", "group"),
    [
        ("failed", "healthy", "failed", "attention"),
        ("lost", "unhealthy", "lost", "attention"),
        ("running", "unhealthy", "unhealthy", "attention"),
        ("checkpoint", "unreadable", "unreadable", "attention"),
        ("checkpoint", "missing", "unreadable", "attention"),
        ("running", "missing", "unreadable", "attention"),
        ("failed", "missing", "failed", "attention"),
        ("stopped", "missing", "missing", "idle"),
        ("lost", "missing", "missing", "idle"),
        ("running", "unknown", "running", "running"),
        ("running", "healthy", "running", "running"),
        ("active", "healthy", "active", "running"),
        ("stopped", "healthy", "healthy", "idle"),
        ("checkpoint", "healthy", "healthy", "idle"),
        ("checkpoint", "unknown", "unknown", "unchecked"),
    ],
)
def test_what_needs_attention_comes_before_what_the_query_does(
    state: str, health: str, status: str, group: str
) -> None:
    assert status_of(state, health) == status
    assert group_of(status) == group
