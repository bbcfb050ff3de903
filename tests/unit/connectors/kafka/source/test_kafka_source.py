"""The driver's side of the source, with a fake cluster that has only offsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from epochal.connectors.contract import Positions
from epochal.connectors.kafka.offsets import KafkaPartition
from epochal.connectors.kafka.source.kafka_source import LIST_ATTEMPTS, KafkaSource
from epochal.connectors.kafka.source.source_options import read_source_options
from epochal.errors import KafkaDataLossError, KafkaUnavailableError, OptionError
from epochal.testing.clock import ManualClock
from epochal.testing.files import MemoryFiles


@dataclass
class Logs:
    """The first and next offset of each partition, and how the answers change over time."""

    ranges: dict[KafkaPartition, tuple[int, int]]
    meanwhile: Callable[[], None] = lambda: None
    looks: int = 0
    silent: int = 0
    """How many looks nobody answers."""
    times: dict[KafkaPartition, int] = field(default_factory=dict)

    def partitions(self, topics: Iterable[str] | None) -> list[KafkaPartition]:
        self.looks += 1
        if self.silent > 0:
            self.silent -= 1
            raise KafkaUnavailableError("127.0.0.1:1", "connection refused")
        if self.looks > 1:
            self.meanwhile()
        return [tp for tp in self.ranges if topics is None or tp[0] in set(topics)]

    def earliest(self, partitions: Iterable[KafkaPartition]) -> dict[KafkaPartition, int]:
        return {tp: self.ranges[tp][0] for tp in partitions if tp in self.ranges}

    def latest(self, partitions: Iterable[KafkaPartition]) -> dict[KafkaPartition, int]:
        return {tp: self.ranges[tp][1] for tp in partitions if tp in self.ranges}

    def at_times(self, times_ms: Mapping[KafkaPartition, int]) -> dict[KafkaPartition, int | None]:
        return {tp: self.times.get(tp) for tp in times_ms}


def opened(logs: Logs, files: MemoryFiles | None = None, **given: str) -> KafkaSource:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "startingOffsets": "earliest", **given}
    if not {"subscribePattern", "assign"} & set(given):
        options = {"subscribe": "t", **options}
    files = files or MemoryFiles()
    asked = read_source_options(options)
    return KafkaSource(asked, files, 0, client=cast(Any, logs), clock=ManualClock())


def bounded(logs: Logs, clock: ManualClock | None = None, **given: str) -> KafkaSource:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", **given}
    asked, clock = read_source_options(options), clock or ManualClock()
    return KafkaSource(asked, MemoryFiles(), 0, client=cast(Any, logs), clock=clock)


def at(*offsets: int, topic: str = "t") -> Positions:
    return {f"{topic}-{n}": str(offset) for n, offset in enumerate(offsets)}


def test_new_partitions_start_at_their_first_offset() -> None:
    logs = Logs({("t", 0): (0, 4), ("t", 1): (0, 7), ("t", 2): (0, 0)})
    with closing(opened(logs)) as source:
        assert source.discover(at(4)) == {"t-1": "0", "t-2": "0"}
        assert source.discover(at(4, 0, 0)) == {}


def test_new_partitions_that_have_already_lost_records_are_an_error() -> None:
    logs = Logs({("t", 0): (0, 4), ("t", 1): (2, 7)})
    with (
        closing(opened(logs)) as source,
        pytest.raises(KafkaDataLossError, match="t-1 starts from 2 instead of 0"),
    ):
        source.discover(at(4))
    with closing(opened(logs, failOnDataLoss="false")) as source:
        assert source.discover(at(4)) == {"t-1": "2"}


def test_missing_partitions_are_listed_again_before_they_are_reported() -> None:
    logs = Logs({})
    with (
        closing(opened(logs)) as source,
        pytest.raises(KafkaDataLossError, match="partitions t-0, t-1 have been deleted"),
    ):
        source.discover(at(4, 4))
    assert logs.looks == LIST_ATTEMPTS


def test_a_broker_that_learns_its_topics_late_causes_no_data_loss_error() -> None:
    logs = Logs({})
    logs.meanwhile = lambda: logs.ranges.update({("t", 0): (0, 4)})
    with closing(opened(logs)) as source:
        assert source.discover(at(4)) == {}


def test_a_deleted_partition_is_logged_once_and_again_after_it_was_recreated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logs = Logs({("t", 0): (0, 4)})
    with closing(opened(logs, failOnDataLoss="false")) as source:
        counts = []
        for there in (False, False, True, False):
            logs.ranges = {("t", 0): (0, 4)} if there else {}
            assert source.discover(at(4)) == {}
            counts.append(caplog.text.count("have been deleted"))
    assert counts == [1, 1, 1, 2]


def test_lag_includes_partitions_that_are_not_read_yet() -> None:
    with closing(opened(Logs({("t", 0): (0, 9), ("t", 1): (0, 4)}))) as source:
        latest = source.latest()
        assert latest == at(9, 4)
        assert source.lag(at(7, 4), latest) == 2
        assert source.lag(at(7), latest) == 6
        assert source.lag(at(11, 4), latest) == 0


def test_nothing_is_committed_without_a_group_or_without_positions() -> None:
    with closing(opened(Logs({}))) as source:
        source.acknowledge(3, at(4))
    with closing(opened(Logs({}), None, **{"kafka.consumer.commit.groupid": "g"})) as source:
        source.acknowledge(3, {})


def test_a_start_waits_for_silent_brokers_but_a_later_look_does_not() -> None:
    logs = Logs({("t", 0): (0, 4)}, silent=3)
    with closing(opened(logs)) as source:
        assert source.discover(at(4)) == {}
        logs.silent = 1
        with pytest.raises(KafkaUnavailableError):
            source.discover(at(4))


def test_a_start_gives_up_after_the_brokers_timeout() -> None:
    for timeout, looks in (("0 s", 1), ("3 s", 4)):
        logs = Logs({("t", 0): (0, 4)}, silent=100)
        with (
            closing(opened(logs, brokerTimeout=timeout)) as source,
            pytest.raises(KafkaUnavailableError),
        ):
            source.initial()
        assert logs.looks == looks


def test_an_epoch_takes_a_share_of_each_partition_in_proportion_to_what_waits_in_it() -> None:
    logs = Logs({("t", 0): (0, 100), ("t", 1): (0, 50), ("t", 2): (0, 1), ("t", 3): (0, 0)})
    with closing(bounded(logs, maxOffsetsPerTrigger="10")) as source:
        assert source.bounds_epochs
        assert source.next_end(at(0, 0, 0, 0), None) == at(6, 3, 1, 0)
        assert source.next_end(at(0, 0, 0, 0), at(4, 2, 0, 0)) == at(4, 2, 0, 0)
        assert source.next_end(at(0, 0, 0, 0), None, bounded=False) == at(100, 50, 1, 0)
    with closing(bounded(logs)) as source:
        assert not source.bounds_epochs


def test_fewer_records_than_the_least_wait_except_in_the_first_epoch_and_at_a_fixed_end() -> None:
    logs, clock = Logs({("t", 0): (0, 5)}), ManualClock()
    given = {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "60s"}
    with closing(bounded(logs, clock, **given)) as source:
        assert source.next_end(at(0), None) == at(5)
        logs.ranges["t", 0] = (0, 14)
        clock.advance(50)
        assert source.next_end(at(5), None) == at(5)
        assert source.next_end(at(5), at(9)) == at(9)
        clock.advance(50)
        assert source.next_end(at(5), None) == at(5)  # the epoch before was planned 50 s ago
        clock.advance(10)
        assert source.next_end(at(5), None) == at(14)
        logs.ranges["t", 0] = (0, 24)
        assert source.next_end(at(14), None) == at(24)


def test_a_partition_that_ends_before_its_position_has_lost_records() -> None:
    logs, lost = Logs({("t", 0): (0, 3), ("t", 1): (0, 9)}), "the end of t-0 is 3, but 7 was next"
    with closing(bounded(logs, maxOffsetsPerTrigger="5")) as source:
        with pytest.raises(KafkaDataLossError, match=lost):
            source.next_end(at(7, 0), None)
        with pytest.raises(KafkaDataLossError, match=lost):
            source.last_end(at(7, 0))
    with closing(bounded(logs, maxOffsetsPerTrigger="5", failOnDataLoss="false")) as source:
        assert source.next_end(at(7, 0), None) == at(7, 5)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be positive, not 0"),
        (
            {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"},
            "minOffsetsPerTrigger (6) must not be greater than maxOffsetsPerTrigger (5)",
        ),
    ],
)
def test_bounds_that_contradict_are_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=re.escape(reason)):
        bounded(Logs({}), None, **given)
