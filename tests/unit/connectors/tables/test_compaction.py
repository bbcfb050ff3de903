from __future__ import annotations

from itertools import count
from random import Random

from epochal.connectors.tables.compaction import LiveFile, choose_groups


def files(*sizes: int, part: str = "") -> list[LiveFile]:
    partition = (("p", part),) if part else ()
    return [LiveFile(f"{part}{number}", size, partition) for number, size in enumerate(sizes)]


def sizes(target: int, *given: int, min_files: int = 2) -> list[list[int]]:
    groups = choose_groups(files(*given), target, min_files)
    return [[file.size for file in group] for group in groups]


def test_small_files_become_one_up_to_the_target() -> None:
    assert sizes(100, 10, 10, 10) == [[10, 10, 10]]
    assert sizes(100, *[30] * 7) == [[30, 30, 30], [30, 30, 30]]
    assert sizes(100, 60, 60) == []


def test_a_file_is_rewritten_only_with_others_that_are_half_as_large_in_total() -> None:
    assert sizes(1000, 1, 1, 1, 500) == [[1, 1, 1]]
    assert sizes(1000, 1, 1, 2, 4, 8) == [[1, 1, 2, 4, 8]]
    assert sizes(1000, 100, 100, 1, 1) == [[1, 1], [100, 100]]
    assert sizes(1000, 10, 11, 12) == [[10, 11, 12]]
    assert sizes(1000, 10, 21) == []


def test_few_files_are_left_alone() -> None:
    assert sizes(100, 1, 1, min_files=3) == []
    assert sizes(100, 1, 1, 1, min_files=3) == [[1, 1, 1]]


def test_partitions_stay_apart() -> None:
    found = choose_groups([*files(1, 1, part="a"), *files(1, part="b"), *files(2, 2, part="c")], 9)
    assert [[file.path for file in group] for group in found] == [["a0", "a1"], ["c0", "c1"]]


def test_files_stay_few_and_each_byte_is_rewritten_a_few_times_only() -> None:
    rng, live, written, added = Random(5), [], 0, 0
    for number in range(300):
        fresh = [rng.randrange(80, 120) for _ in range(8)]
        added += sum(fresh)
        live += fresh
        while groups := sizes(100_000, *live):
            for group in groups:
                for size in group:
                    live.remove(size)
                live.append(sum(group))
                written += sum(group)
        assert len(live) < 40, f"round {number}"
    assert sum(live) == added
    assert written < 12 * added


def test_an_hour_of_many_rows_leaves_at_most_a_file_of_half_the_target_per_target() -> None:
    """120 files of 2 MB per minute are more than one compacted file can hold."""
    names, live, megabyte = count(), list[LiveFile](), 1 << 20
    for _ in range(60):
        live += [LiveFile(f"f{next(names)}", 2 * megabyte) for _ in range(120)]
        for group in choose_groups(live, 64 * megabyte, 10):
            live = [file for file in live if file not in group]
            live.append(LiveFile(f"f{next(names)}", sum(file.size for file in group)))
    total = sum(file.size for file in live)
    assert total == 60 * 120 * 2 * megabyte
    assert len(live) <= total // (32 * megabyte) + 10
