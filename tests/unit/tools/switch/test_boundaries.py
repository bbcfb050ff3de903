"""Two queries are compared where both have read the same, and only there."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from epochal.tools.switch.boundaries import Boundary, ReadPosition, common_boundaries, why_none


def place(offset: str, watermark_ms: int = 0) -> ReadPosition:
    return ReadPosition((offset,), watermark_ms, (offset,))


def log(first: int, *ends: int | tuple[int, int]) -> Mapping[int, ReadPosition]:
    pairs = [each if isinstance(each, tuple) else (each, 0) for each in ends]
    return {first + at: place(str(end), mark) for at, (end, mark) in enumerate(pairs)}


def found(
    a: Mapping[int, ReadPosition], b: Mapping[int, ReadPosition]
) -> list[tuple[int, int, str]]:
    return [(each.a, each.b, each.offsets[0] or "") for each in common_boundaries(a, b)]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (
            log(5, 50, 60, 70, 80),
            log(5, 50, 55, 70, 80),
            [(5, 5, "50"), (7, 7, "70"), (8, 8, "80")],
        ),
        (log(5, 50, 60, 70), log(9, 50, 70), [(5, 9, "50"), (7, 10, "70")]),
        # The last of several epochs with one end counts.
        (log(0, 10, 20, 20, 20), log(0, 10, 20), [(0, 0, "10"), (3, 1, "20")]),
        # Boundaries never go back.
        (log(0, 10, 20, 30), log(0, 20, 10, 30), [(0, 1, "10"), (2, 2, "30")]),
    ],
)
def test_epochs_with_the_same_end_belong_together_whatever_their_numbers_are(
    a: Mapping[int, ReadPosition],
    b: Mapping[int, ReadPosition],
    expected: list[tuple[int, int, str]],
) -> None:
    assert found(a, b) == expected


def test_the_watermark_is_part_of_a_boundary() -> None:
    a, b = log(0, (10, 0), (20, 5), (20, 15)), log(0, (10, 0), (15, 0), (20, 7), (20, 15))
    assert found(a, b) == [(0, 0, "10"), (2, 3, "20")]
    without_state = common_boundaries(a, log(0, (10, 0), (20, 7)), timed=False)
    assert [(each.a, each.b) for each in without_state] == [(0, 0), (2, 1)]


def test_what_was_read_counts_and_not_how_it_is_logged() -> None:
    one = {3: ReadPosition(('{"logOffset":5}',), 0, ("6 files",))}
    other = {4: ReadPosition(('{"logOffset":2}',), 0, ("6 files",))}
    assert common_boundaries(one, other) == [Boundary(3, 4, ('{"logOffset":5}',), 0)]


def test_says_why_there_is_no_common_boundary() -> None:
    assert "the second query has not committed" in why_none(log(0, 1), {})
    assert "the watermarks are 5 and 7 ms" in why_none(log(0, (20, 5)), log(0, (20, 7)))
    apart = why_none(log(3, 20), log(4, 30))
    assert "of the first query, 3, ends at 20, that of the second, 4, at 30" in apart
