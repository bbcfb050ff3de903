"""Which snapshots are expired, which files are compacted, which files are leftovers."""

from __future__ import annotations

import itertools

from epochal.connectors.iceberg.iceberg_upkeep_rules import (
    ExpiryRule,
    KnownSnapshot,
    SmallFile,
    compaction_groups,
    expired_snapshots,
    leftovers,
    unreferenced,
)


def chain(*ids: int, queries: dict[int, str] | None = None) -> list[KnownSnapshot]:
    """Snapshots from the oldest on; a snapshot's time is its id in seconds."""
    parents = (None, *ids[:-1])
    found = queries or {}
    return [
        KnownSnapshot(snapshot, parent, snapshot * 1000, found.get(snapshot))
        for snapshot, parent in zip(ids, parents, strict=True)
    ]


def expired(
    snapshots: list[KnownSnapshot],
    branches: dict[str, int],
    *,
    keep: int | None = None,
    oldest_ms: int | None = None,
    tags: frozenset[int] = frozenset(),
) -> list[int]:
    rule = ExpiryRule(keep, oldest_ms)
    return expired_snapshots(snapshots, branches, tags, branch="main", query_id="q", rule=rule)


def test_a_number_of_snapshots_is_kept() -> None:
    assert expired(chain(1, 2, 3, 4, 5), {"main": 5}, keep=2) == [1, 2, 3]


def test_an_age_is_kept_and_the_end_of_a_branch_always() -> None:
    assert expired(chain(1, 2, 3, 4, 5), {"main": 5}, oldest_ms=4000) == [1, 2, 3]
    assert expired(chain(1, 2, 3), {"main": 3}, oldest_ms=9000) == [1, 2]


def test_with_number_and_age_both_must_let_go() -> None:
    assert expired(chain(1, 2, 3, 4, 5), {"main": 5}, keep=4, oldest_ms=4000) == [1]
    assert expired(chain(1, 2, 3, 4, 5), {"main": 5}, keep=1, oldest_ms=2000) == [1]


def test_the_chain_back_to_the_querys_newest_epoch_is_kept() -> None:
    snapshots = chain(1, 2, 3, 4, 5, queries={1: "q", 2: "q", 4: "other"})
    assert expired(snapshots, {"main": 5}, keep=1) == [1]


def test_tags_and_ends_of_other_branches_are_kept() -> None:
    snapshots = [*chain(1, 2, 3, 4), KnownSnapshot(9, 2, 9000, None)]
    found = expired(snapshots, {"main": 4, "audit": 9}, keep=1, tags=frozenset({1}))
    assert found == [2, 3]


def test_snapshots_on_no_branch_go_by_age_only() -> None:
    snapshots = [*chain(4, 5), KnownSnapshot(1, None, 1000, None)]
    assert expired(snapshots, {"main": 5}, keep=1) == [4]
    assert expired(snapshots, {"main": 5}, keep=5, oldest_ms=2000) == [1]


def file(path: str, size: int, partition: int = 0, spec: int = 0) -> SmallFile:
    return SmallFile(path, size, (partition,), spec)


def groups(*files: SmallFile, min_files: int = 2, max_bytes: int = 100) -> list[list[str]]:
    return compaction_groups(files, spec=0, below=30, min_files=min_files, max_bytes=max_bytes)


def test_small_files_of_a_partition_are_compacted_together() -> None:
    found = groups(file("a", 3), file("b", 2), file("c", 40), file("d", 1, 7), file("e", 1, 7))
    assert found == [["b", "a"], ["d", "e"]]


def test_few_files_and_files_of_an_old_spec_are_left_alone() -> None:
    assert groups(file("a", 3), file("b", 2), min_files=3) == []
    assert groups(file("a", 3), file("b", 2, spec=1)) == []


def test_a_compacted_file_does_not_become_too_large() -> None:
    found = groups(*(file(f"f{n}", 20) for n in range(9)), max_bytes=100)
    assert found == [["f0", "f1", "f2", "f3", "f4"], ["f5", "f6", "f7", "f8"]]


def test_an_hour_of_many_rows_leaves_at_most_a_file_of_full_size_per_target() -> None:
    """120 files of 2 MB per minute are more than one compacted file can hold."""
    names, live = itertools.count(), list[SmallFile]()
    megabyte = 1 << 20
    for _ in range(60):
        live += [file(f"f{next(names)}", 2 * megabyte) for _ in range(120)]
        for group in compaction_groups(
            live, spec=0, below=32 * megabyte, min_files=10, max_bytes=64 * megabyte
        ):
            size = sum(each.size for each in live if each.path in group)
            live = [each for each in live if each.path not in group]
            live.append(file(f"f{next(names)}", size))
    total = sum(each.size for each in live)
    assert total == 60 * 120 * 2 * megabyte
    assert len(live) <= total // (32 * megabyte) + 10


def test_what_a_kept_snapshot_refers_to_stays() -> None:
    assert unreferenced([{"a", "b"}, {"c"}], [{"b"}, {"d"}]) == {"a", "c"}
    assert unreferenced([], [{"a"}]) == set()


def test_only_unnamed_files_of_earlier_attempts_are_leftovers() -> None:
    found = [("a", 1), ("b", 2), ("c", 3), ("d", None), ("e", 1)]
    assert leftovers(found, attempt=3, known={"e"}) == ["a", "b"]
