"""Which files make a version, and which may go."""

from __future__ import annotations

import pytest

from epochal.state.files.chain import (
    SnapshotPlan,
    StoreFile,
    deletable,
    files_by_version,
    files_for_version,
    latest_version,
    parse_name,
    plan_snapshots,
    prepared_name,
    snapshot_due,
)


def deltas(first: int, last: int) -> list[str]:
    return [f"{version}.delta" for version in range(first, last + 1)]


def plan(
    version: int, *snapshots: int, repair: bool = True, failures: int = 1, max_replay: int = 500
) -> SnapshotPlan:
    return plan_snapshots(
        version,
        snapshots,
        repair=repair,
        failures_before_repair=failures,
        max_replay=max_replay,
    )


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("7.delta", StoreFile(7, False)),
        ("18.snapshot", StoreFile(18, True)),
        (".7.delta.crc", None),
        ("7.delta.crc", None),
        (".7.delta.d7c5.tmp", None),
        ("abc.snapshot", None),
        ("7.zip", None),
        ("_metadata", None),
        (prepared_name(7, "3"), None),
    ],
)
def test_only_deltas_and_snapshots_of_a_version_are_its_files(
    name: str, file: StoreFile | None
) -> None:
    assert parse_name(name) == file


def test_a_snapshot_hides_the_delta_of_its_version_whichever_is_listed_first() -> None:
    found = [StoreFile(1, False), StoreFile(2, True)]
    assert files_by_version(["2.snapshot", "1.delta", "2.delta"]) == found
    assert files_by_version(["2.delta", "1.delta", "2.snapshot"]) == found


def test_a_version_is_its_nearest_snapshot_and_every_delta_since() -> None:
    files = files_by_version([*deltas(1, 9), "3.snapshot", "6.snapshot"])
    assert files_for_version(files, 8) == [
        StoreFile(6, True),
        StoreFile(7, False),
        StoreFile(8, False),
    ]
    assert files_for_version(files, 6) == [StoreFile(6, True)]
    assert files_for_version(files, 2) == [StoreFile(1, False), StoreFile(2, False)]


def test_a_version_behind_a_hole_or_without_a_file_has_no_chain() -> None:
    files = files_by_version(["3.snapshot", "4.delta", "6.delta"])
    assert files_for_version(files, 6) is None
    assert files_for_version(files, 5) is None
    assert files_for_version(files, 7) is None


def test_a_snapshot_is_due_at_strictly_more_deltas_than_the_minimum() -> None:
    assert snapshot_due(deltas(1, 5), {5}, 5) is None
    assert snapshot_due(deltas(1, 6), {6}, 5) == 6
    assert snapshot_due([*deltas(1, 11), "6.snapshot"], {11}, 5) is None
    assert snapshot_due([*deltas(1, 12), "6.snapshot"], {12}, 5) == 12


def test_no_snapshot_is_due_when_another_instance_wrote_the_newest_version() -> None:
    assert snapshot_due(deltas(1, 20), {18, 19}, 5) is None
    assert snapshot_due([], {1}, 5) is None


def test_no_snapshot_is_due_of_a_version_with_a_hole_below() -> None:
    assert snapshot_due(["1.snapshot", *deltas(3, 20)], {20}, 5) is None


def test_cleanup_keeps_the_snapshot_that_the_oldest_retained_version_needs() -> None:
    names = [*deltas(12, 21), "12.snapshot", "18.snapshot"]
    assert deletable(names, 2) == ["12.snapshot", *deltas(13, 17)]
    left = [name for name in names if name not in deletable(names, 2)]
    assert deletable(left, 2) == ["12.delta"]


def test_cleanup_without_a_snapshot_deletes_nothing() -> None:
    assert deletable(deltas(1, 200), 2) == []


def test_cleanup_waits_until_more_versions_exist_than_are_retained() -> None:
    assert deletable([*deltas(1, 5), "2.snapshot"], 5) == []
    assert deletable([*deltas(1, 6), "2.snapshot"], 5) == []
    assert deletable([*deltas(1, 7), "2.snapshot"], 5) == ["1.delta"]


def test_cleanup_deletes_nothing_when_the_oldest_version_to_retain_is_broken() -> None:
    assert deletable(["1.delta", "2.snapshot", "3.delta", "5.delta", "6.delta"], 1) == []
    assert deletable(["1.delta", "2.snapshot", "3.delta", "6.delta"], 1) == []


def test_cleanup_takes_checksum_files_of_versions_that_are_gone() -> None:
    names = ["1.delta", "1.delta.crc", "2.snapshot", "2.snapshot.crc", *deltas(3, 5), "0.delta.crc"]
    assert deletable(names, 2) == ["1.delta", "0.delta.crc", "1.delta.crc"]


def test_the_latest_version_is_the_newest_with_any_file() -> None:
    assert latest_version(["3.delta", "5.snapshot", "x.delta", "9.delta.crc"]) == 5
    assert latest_version([]) == 0


def test_a_load_tries_the_newest_snapshot_at_or_below_the_version() -> None:
    assert plan(5, 2, 4).attempts[:1] == (4,)
    assert plan(5, 2, 4, 6).attempts[:1] == (4,)
    assert plan(3).attempts == (0,)


def test_without_repair_a_bad_snapshot_is_tried_once_and_no_other() -> None:
    assert plan(5, 2, 4, repair=False, failures=3).attempts == (4,)


def test_with_repair_older_snapshots_follow_down_to_the_empty_store() -> None:
    found = plan(5, 2, 4)
    assert found.attempts == (4, 2, 0)
    assert found.repairs_from == 1


def test_repair_starts_only_after_the_failures_it_was_told_to_wait_for() -> None:
    found = plan(5, 2, 4, failures=3)
    assert found.attempts == (4, 4, 4, 2, 0)
    assert found.repairs_from == 3


@pytest.mark.parametrize(("max_replay", "selected"), [(1, (4,)), (2, (4,)), (3, (4, 2))])
def test_repair_replays_no_more_deltas_than_allowed(
    max_replay: int, selected: tuple[int, ...]
) -> None:
    found = plan(5, 2, 4, 5, max_replay=max_replay)
    assert found.latest == 5
    assert found.selected == selected
    assert found.eligible == (4, 2, 0)
    assert found.attempts == (5, *selected)
