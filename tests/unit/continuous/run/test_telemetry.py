from __future__ import annotations

from typing import Any

from tests.unit.metrics.runs import RUN

from epochal.continuous.run.telemetry import Telemetry, record_of
from epochal.epoch.committed import CommittedEpoch
from epochal.metrics.run_records import EpochDone, Record, RunEnded, RunStarted, StatusChanged
from epochal.testing.clock import ManualClock


class Kept:
    """An output that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.closed = 0

    def write(self, records: list[Record]) -> None:
        self.records += records

    def close(self) -> None:
        self.closed += 1

    def of(self, kind: type[Any]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]


class Broken(Kept):
    def write(self, records: list[Record]) -> None:
        raise OSError(28, "No space left on device")


def epoch(number: int, committed_ms: int) -> CommittedEpoch:
    return CommittedEpoch(
        epoch=number,
        started_ms=committed_ms - 100,
        cut_ms=committed_ms - 20,
        committed_ms=committed_ms,
        rows_in=(5,),
        rows_out=4,
        offsets=("{}",),
        state_ms=3.5,
    )


def tick(
    telemetry: Telemetry,
    message: str = "Processing",
    report: Any = None,
    degraded: str = "",
    at_ms: int = 5,
) -> None:
    telemetry.tick(StatusChanged(at_ms, message, 7, 0, 0, degraded), report)


def test_an_epoch_is_told_when_its_sources_know_of_it() -> None:
    clock, kept = ManualClock(now_ms=50_000), Kept()
    telemetry = Telemetry([kept], clock)
    telemetry.committed(epoch(0, 50_000), attempt=2)
    tick(telemetry)
    assert kept.of(EpochDone) == []
    telemetry.acknowledged(0, 0.0042)
    tick(telemetry)
    assert kept.of(EpochDone) == [record_of(epoch(0, 50_000), 2, 4.2)]
    assert kept.of(EpochDone)[0].ack_ms == 4.2


def test_an_epoch_does_not_wait_long_for_its_sources() -> None:
    clock, kept = ManualClock(now_ms=50_000), Kept()
    telemetry = Telemetry([kept], clock)
    telemetry.committed(epoch(0, 50_000), attempt=0)
    clock.sleep(1.0)
    tick(telemetry)
    assert [(each.epoch, each.ack_ms) for each in kept.of(EpochDone)] == [(0, None)]


def test_the_end_is_the_last_word_and_is_said_once() -> None:
    kept, ended = Kept(), []
    telemetry = Telemetry([kept], ManualClock(now_ms=5), lambda: ended.append(True))
    telemetry.committed(epoch(0, 5), attempt=0)
    telemetry.close("it broke")
    telemetry.close(None)
    tick(telemetry)
    assert [type(record) for record in kept.records] == [EpochDone, RunEnded]
    assert kept.of(RunEnded) == [RunEnded(5, "it broke")]
    assert (kept.closed, ended) == (1, [True])


def test_an_output_that_fails_is_dropped_and_the_others_go_on() -> None:
    kept = Kept()
    telemetry = Telemetry([Broken(), kept], ManualClock(now_ms=5))
    telemetry.begin(RUN)
    tick(telemetry)
    telemetry.close(None)
    assert [type(record) for record in kept.records] == [RunStarted, StatusChanged, RunEnded]


def test_a_source_that_cannot_be_reached_is_told_once_and_when_it_is_back() -> None:
    kept = Kept()
    telemetry = Telemetry([kept], ManualClock(now_ms=50_000))
    for degraded in ("", "Pub/Sub is away", "Pub/Sub is away", ""):
        tick(telemetry, degraded=degraded)
    assert [each.degraded for each in kept.of(StatusChanged)] == ["", "Pub/Sub is away", ""]
