from __future__ import annotations

from random import Random

from epochal.connectors.delta.delta_bins import LiveFile, choose_bins


def files(*sizes: int, part: str = "") -> list[LiveFile]:
    partition = (("p", part),) if part else ()
    return [LiveFile(f"{part}{number}", size, partition) for number, size in enumerate(sizes)]


def sizes(target: int, *given: int) -> list[list[int]]:
    return [[file.size for file in group] for group in choose_bins(files(*given), target)]


def test_small_files_become_one_up_to_the_target() -> None:
    assert sizes(100, 10, 10, 10) == [[10, 10, 10]]
    assert sizes(100, *[30] * 7) == [[30, 30, 30], [30, 30, 30]]
    assert sizes(100, 60, 60) == []


def test_a_file_is_rewritten_only_with_others_that_are_as_large_in_total() -> None:
    assert sizes(1000, 1, 1, 1, 500) == [[1, 1, 1]]
    assert sizes(1000, 1, 1, 2, 4, 8) == [[1, 1, 2, 4, 8]]
    assert sizes(1000, 100, 100, 1, 1) == [[1, 1], [100, 100]]


def test_partitions_stay_apart() -> None:
    found = choose_bins([*files(1, 1, part="a"), *files(1, part="b"), *files(2, 2, part="c")], 9)
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
