from __future__ import annotations

from typing import Any

import pytest
from tests.unit.metrics.runs import RUN, epoch, progress

from epochal.dashboard.query_runs import (
    KEPT_EPOCHS,
    RunView,
    group_of,
    names_of,
    place_of,
    report_json,
    status_of,
)
from epochal.metrics.run_records import Progressed, Record, RunEnded, StatusChanged


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
