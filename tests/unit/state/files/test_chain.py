"""Which files make a version, and which may be deleted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations

import pytest

from epochal.state.files.chain import (
    HDFS_FILES,
    SnapshotPlan,
    StoreFile,
    VersionChain,
    attempt_label,
    deletable,
    files_by_version,
    files_to_load,
    files_to_retain,
    is_prepared,
    plan_snapshots,
    prepared_before,
    prepared_label,
    snapshot_due,
)


def deltas(first: int, last: int) -> list[str]:
    return [f"{version}.delta" for version in range(first, last + 1)]


def load(names: list[str], version: int) -> VersionChain:
    snapshots, deltas = HDFS_FILES.snapshot_versions(names), HDFS_FILES.delta_versions(names)
    return files_to_load(version, snapshots, deltas)


VERSIONS = range(1, 7)
ALL_FILES = [f"{version}.{kind}" for version in VERSIONS for kind in ("delta", "snapshot")]


def every_directory() -> Iterator[list[str]]:
    """All 4,096 directories of deltas and snapshots of versions 1 to 6, with every hole."""
    sizes = range(len(ALL_FILES) + 1)
    return map(list, chain.from_iterable(combinations(ALL_FILES, size) for size in sizes))


def plan(
    version: int, *snapshots: int, repair: bool = True, failures: int = 1, max_replay: int = 500
) -> SnapshotPlan:
    return plan_snapshots(
        version, snapshots, repair=repair, failures_before_repair=failures, max_replay=max_replay
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
        ("7.delta.prepared-3", None),
    ],
)
def test_only_deltas_and_snapshots_of_a_version_are_its_files(
    name: str, file: StoreFile | None
) -> None:
    assert HDFS_FILES.parse(name) == file


def test_a_hole_is_named_and_never_skipped() -> None:
    names = ["1.delta", "2.delta", "4.delta"]
    assert load(names, 4) == VersionChain(0, range(1, 5), (range(3, 4),))
    assert load(names, 4).first_missing == 3
    assert load(names, 2).first_missing is None
    assert load(["3.snapshot", "4.delta", "6.delta"], 8).missing == (range(5, 6), range(7, 9))


def test_an_astronomical_version_is_answered_at_once() -> None:
    assert load(["2.snapshot", "5.delta"], 10**18).missing == (range(3, 5), range(6, 10**18 + 1))


@pytest.mark.parametrize("version", VERSIONS)
def test_of_every_directory_the_same_files_are_loaded_as_the_rule_in_words_demands(
    version: int,
) -> None:
    """From `version` down: a snapshot ends the search, else the delta is needed. Below 1: empty."""
    for names in every_directory():
        needed: list[str] = []
        below = version
        while below > 0 and f"{below}.snapshot" not in names:
            needed.insert(0, f"{below}.delta")
            below -= 1
        found = load(names, version)
        assert found.snapshot == below, names
        assert [f"{each}.delta" for each in found.deltas] == needed, names
        lost = [name for name in needed if name not in names]
        assert [f"{each}.delta" for run in found.missing for each in run] == lost, names
        first = None if found.first_missing is None else f"{found.first_missing}.delta"
        assert first == next(iter(lost), None), names


@pytest.mark.parametrize("version", VERSIONS)
def test_of_every_directory_no_older_snapshot_loads_what_the_newest_does_not(version: int) -> None:
    for names in every_directory():
        complete = any(
            all(f"{each}.delta" in names for each in range(start + 1, version + 1))
            for start in [0, *HDFS_FILES.snapshot_versions(names)]
            if start <= version
        )
        assert complete is (not load(names, version).missing), names


@pytest.mark.parametrize("retained", range(1, 6))
def test_of_every_directory_cleanup_leaves_what_retained_versions_load(retained: int) -> None:
    for names in every_directory():
        gone = deletable(names, retained)
        if not gone:
            continue
        left = [name for name in names if name not in gone]
        newest = HDFS_FILES.latest_version(names)
        for version in range(max(newest - retained, 1), newest + 1):
            assert load(left, version) == load(names, version), (names, version)


@pytest.mark.parametrize("retained", range(1, 6))
def test_of_every_directory_cleanup_deletes_what_spark_deletes(retained: int) -> None:
    """All visible files below the newest snapshot whose files lead to the oldest retained one."""
    for names in every_directory():
        oldest = HDFS_FILES.latest_version(names) - retained
        there = {int(name.partition(".")[0]) for name in names}
        snapshots = HDFS_FILES.snapshot_versions(names)
        start = max((each for each in snapshots if each <= oldest), default=None)
        unbroken = start is not None and set(range(start, oldest + 1)) <= there
        old = {each for each in there if start is not None and each < start}
        kinds = {each: "snapshot" if f"{each}.snapshot" in names else "delta" for each in old}
        expected = [f"{each}.{kinds[each]}" for each in sorted(old)] if unbroken else []
        assert deletable(names, retained) == expected, names


def test_maintenance_keeps_nothing_for_a_version_behind_a_hole_or_without_a_file() -> None:
    files = files_by_version(["3.snapshot", "4.delta", "6.delta"])
    assert files_to_retain(files, 6) is None
    assert files_to_retain(files, 5) is None
    assert files_to_retain(files, 7) is None
    assert files_to_retain(files, 4) == [StoreFile(3, True), StoreFile(4, False)]


def test_without_a_snapshot_maintenance_keeps_every_file_and_overlooks_holes() -> None:
    files = files_by_version(["2.delta", "4.delta"])
    assert files_to_retain(files, 4) == [StoreFile(2, False), StoreFile(4, False)]


def test_a_prepared_delta_may_go_when_an_earlier_attempt_of_the_engine_wrote_it() -> None:
    name = f"7.delta{prepared_label(attempt_label(9))}"
    assert prepared_before(name, 10)
    assert not prepared_before(name, 9)
    assert not prepared_before("7.delta.prepared-of-another", 10)
    assert not prepared_before("7.delta", 10)
    for other in ("7.changelog.prepared-a9", "7.zip.prepared-a9"):
        assert prepared_before(other, 10)
        assert is_prepared(other)
    assert is_prepared(name)
    assert is_prepared("7.delta.prepared-of-another")
    assert not is_prepared("7.delta")


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


def test_cleanup_takes_checksum_files_of_versions_that_are_gone() -> None:
    names = ["1.delta", "1.delta.crc", "2.snapshot", "2.snapshot.crc", *deltas(3, 5), "0.delta.crc"]
    assert deletable(names, 2) == ["1.delta", "0.delta.crc", "1.delta.crc"]


@pytest.mark.parametrize(
    ("found", "attempts", "repairs_from"),
    [
        (plan(5, 2, 4), (4, 2, 0), 1),
        (plan(5, 2, 4, 6), (4, 2, 0), 1),
        (plan(3), (0,), 1),
        (plan(5, 2, 4, failures=3), (4, 4, 4, 2, 0), 3),
        (plan(5, 2, 4, repair=False, failures=3), (4,), 1),
    ],
)
def test_a_load_tries_the_newest_snapshot_and_with_repair_older_ones_down_to_the_empty_store(
    found: SnapshotPlan, attempts: tuple[int, ...], repairs_from: int
) -> None:
    assert (found.attempts, found.repairs_from) == (attempts, repairs_from)


@pytest.mark.parametrize(("max_replay", "selected"), [(1, (4,)), (2, (4,)), (3, (4, 2))])
def test_repair_replays_no_more_deltas_than_allowed(
    max_replay: int, selected: tuple[int, ...]
) -> None:
    found = plan(5, 2, 4, 5, max_replay=max_replay)
    assert found.latest == 5
    assert found.selected == selected
    assert found.eligible == (4, 2, 0)
    assert found.attempts == (5, *selected)
