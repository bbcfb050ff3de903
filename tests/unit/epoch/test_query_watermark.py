"""The watermark formula that driver and tasks share, held against Spark's rules."""

from __future__ import annotations

import pytest

from epochal.epoch.event_time.query_watermark import (
    NO_WATERMARK,
    NONE_SEEN,
    NOT_ADVANCED,
    watermark_of,
)


@pytest.mark.parametrize(
    ("highs", "delays", "floor", "expected"),
    [
        ((), (), 7, 7),
        ((5000,), (1000,), 0, 4000),
        ((500,), (1000,), 0, 0),
        ((5000,), (1000,), 4500, 4500),
        ((5000, 9000), (1000, 1000), 0, 4000),
    ],
)
def test_the_slowest_watermark_counts_and_never_goes_back(
    highs: tuple[int, ...], delays: tuple[int, ...], floor: int, expected: int
) -> None:
    assert watermark_of(highs, delays, floor) == expected


@pytest.mark.parametrize(
    ("highs", "floor", "expected"),
    [
        ((NONE_SEEN, 9000), NOT_ADVANCED, 0),
        ((9000, NONE_SEEN), NOT_ADVANCED, 0),
        ((NONE_SEEN, NONE_SEEN), NOT_ADVANCED, 0),
        # After a restart a side may have seen nothing, while the logs know the watermark.
        ((NONE_SEEN, 9000), 3, 3),
    ],
)
def test_a_side_that_has_seen_nothing_holds_the_watermark_at_zero(
    highs: tuple[int, ...], floor: int, expected: int
) -> None:
    assert watermark_of(highs, (1000, 1000), floor) == expected


def test_a_query_without_a_watermark_has_none() -> None:
    assert watermark_of((), (), NO_WATERMARK) == NO_WATERMARK
