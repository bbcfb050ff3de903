from __future__ import annotations

from datetime import timedelta

import pytest

from epochal.connectors.rate import RateOptions, RatePosition, RateSource, Schedule
from epochal.errors import MalformedFileError, OptionError
from epochal.testing.clock import ManualClock
from epochal.testing.files import MemoryFiles

CREATED = 1_700_000_000_000


def source(clock: ManualClock, files: MemoryFiles | None = None, **options: int) -> RateSource:
    return RateSource(RateOptions(**options), files or MemoryFiles(), 0, clock=clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rate", "ramp"), [(1, 0), (7, 0), (1000, 0), (3333, 0), (10, 4), (3, 9)])
def test_a_row_is_read_in_the_millisecond_it_is_due_and_no_earlier(rate: int, ramp: int) -> None:
    schedule = Schedule(CREATED, rate, ramp)
    stamps = schedule.stamps_ms(range(4 * rate))
    for now_ms in range(CREATED - 2, CREATED + 2500, 7):
        assert schedule.due_before(now_ms) == min(int((stamps <= now_ms).sum()), 4 * rate)


def test_the_offset_is_the_last_second_that_every_partition_has_read() -> None:
    clock = ManualClock(CREATED)
    rate = source(clock, rows_per_second=10, num_partitions=2)
    at = {"0": RatePosition(30, 2).text(), "1": RatePosition(19, 2).text()}
    assert rate.offset(at) == "1"
    assert rate.boundary(at) == rate.resume("3")


def test_closing_waits_for_the_second_that_was_logged_to_pass() -> None:
    clock = ManualClock(CREATED)
    rate = source(clock, rows_per_second=1, num_partitions=1)
    reader = rate.readers.open(rate.initial())
    assert reader.read(10) is not None  # the row of second 0 is due at its beginning
    assert rate.offset(reader.positions()) == "1"
    rate.close()
    assert clock.now_ms() == CREATED + 1000


def test_no_partition_starves_when_there_is_more_than_fits() -> None:
    clock = ManualClock(CREATED)
    rate = source(clock, rows_per_second=1000, num_partitions=2)
    reader = rate.readers.open(rate.initial())
    clock.advance(100)
    for _ in range(4):
        reader.read(10)
    assert [int(at.split(":")[1].split(",")[0]) for at in reader.positions().values()] == [40, 41]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rows_per_second": 0}, "rowsPerSecond must be positive, not 0"),
        ({"num_partitions": 0}, "numPartitions must be positive"),
        ({"rows_per_second": 2**62, "ramp_up_time": timedelta(seconds=9)}, "rampUpTime must not"),
    ],
)
def test_impossible_options_are_rejected(options: dict[str, int], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        RateOptions(**options)  # type: ignore[arg-type]


def test_an_offset_that_is_not_a_number_is_rejected() -> None:
    with pytest.raises(MalformedFileError, match="not a number of seconds"):
        source(ManualClock()).resume('{"logOffset":3}')
