"""The source's options, and its driver's side with a fake cluster that has only offsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from epochal.connectors.contract import Positions
from epochal.connectors.kafka.kafka_settings import CONSUMER_REFUSED, consumer_settings
from epochal.connectors.kafka.offsets import KafkaPartition
from epochal.connectors.kafka.source.kafka_source import LIST_ATTEMPTS, KafkaSource
from epochal.connectors.kafka.source.source_offsets import AtTimes, Everywhere, NoMatch
from epochal.connectors.kafka.source.source_options import (
    REFUSED,
    KafkaSourceOptions,
    TopicSelection,
    read_source_options,
)
from epochal.connectors.registry import source_schema
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


USUAL = {"kafka.bootstrap.servers": "k:9092", "subscribe": "t"}


def options(**given: Any) -> KafkaSourceOptions:
    return read_source_options(USUAL | given)


def test_names_and_values_are_read_in_any_case() -> None:
    found = read_source_options(
        {
            "KAFKA.Bootstrap.Servers": "k:9092",
            "subscribePATTERN": " ^a ",
            "STARTINGOFFSETS": "Earliest",
            "failondataloss": "FALSE",
            "startingOffsetsByTimestampStrategy": "LATEST",
            "startingTimestamp": "7",
        }
    )
    assert found.servers == "k:9092"
    assert found.subscription == TopicSelection(pattern="^a")
    assert found.starting == AtTimes({}, 7, NoMatch.LATEST)
    assert found.fail_on_data_loss is False


def test_starts_at_the_end_and_fails_on_data_loss_by_default() -> None:
    assert options().starting == Everywhere(-1)
    assert options().fail_on_data_loss is True
    assert options().subscription == TopicSelection(topics=("t",))


@pytest.mark.parametrize("missing", ["kafka.bootstrap.servers", "subscribe"])
def test_a_cluster_and_a_choice_of_topics_must_be_given(missing: str) -> None:
    with pytest.raises(OptionError, match="must be given"):
        read_source_options({key: value for key, value in USUAL.items() if key != missing})


def test_two_choices_of_topics_are_rejected() -> None:
    with pytest.raises(OptionError, match="not subscribe and assign"):
        options(assign='{"t":[0]}')


@pytest.mark.parametrize(
    "given",
    [{"subscribe": " , "}, {"subscribePattern": " "}, {"subscribePattern": "("}, {"assign": "t"}],
)
def test_an_empty_choice_of_topics_is_rejected(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=next(iter(given))):
        read_source_options({"kafka.bootstrap.servers": "k:9092"} | given)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_options_that_only_apply_to_batches_are_rejected_with_the_reason(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_source_options(USUAL | {name.lower(): "1"})
    assert str(caught.value) == f"kafka: option {name} does not apply: {REFUSED[name]}."


def test_an_unknown_option_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(OptionError, match="Did you mean startingOffsets"):
        options(startingOffset="earliest")


def test_a_pattern_is_searched_anywhere_in_names_but_not_in_internal_ones() -> None:
    found = TopicSelection(pattern="o")
    names = ["orders", "hello", "__consumer_offsets", "x"]
    assert [name for name in names if found.includes((name, 0))] == ["orders", "hello"]
    assert found.wanted_topics is None


def test_assigned_partitions_are_all_that_is_read_of_their_topics() -> None:
    found = TopicSelection(partitions=(("a", 1), ("a", 2), ("b", 0)))
    assert found.wanted_topics == ("a", "b")
    assert [n for n in range(4) if found.includes(("a", n))] == [1, 2]


def test_the_group_to_commit_to_is_not_passed_to_the_client() -> None:
    found = options(**{"kafka.consumer.commit.groupid": "g"})
    assert found.commit_group == "g"
    assert "consumer.commit.groupid" not in found.settings
    assert options().commit_group is None


def test_settings_may_have_javas_or_librdkafkas_names() -> None:
    found = consumer_settings(
        {
            "bootstrap.servers": "k:9092",
            "fetch.max.wait.ms": "50",
            "receive.buffer.bytes": "-1",
            "queued.min.messages": "7",
            "isolation.level": "read_committed",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
        }
    )
    chosen = ("fetch.wait.max.ms", "socket.receive.buffer.bytes", "queued.min.messages")
    assert [found[name] for name in chosen] == ["50", "0", "7"]
    assert found["isolation.level"] == "read_committed"
    assert found["ssl.ca.location"] == "/ca.pem"
    assert not any(name.startswith("ssl.truststore") for name in found)


def test_uncommitted_records_are_read_by_default_as_in_spark() -> None:
    assert options().settings["isolation.level"] == "read_uncommitted"


@pytest.mark.parametrize("name", sorted(CONSUMER_REFUSED))
def test_settings_without_a_counterpart_are_refused_by_name(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        options(**{f"kafka.{name}": "x"})


def test_the_error_for_an_unreadable_store_names_where_to_set_another() -> None:
    with pytest.raises(OptionError, match=r"as an option of the source, with the prefix kafka\."):
        options(**{"kafka.ssl.truststore.location": "/store.jks"})


def test_the_schema_is_sparks_with_headers_only_where_asked_for() -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert source_schema("kafka", USUAL, None).names == names
    found = source_schema("kafka", USUAL | {"includeHeaders": "true"}, None)
    assert found.names == [*names, "headers"]


def test_passwords_are_in_no_repr() -> None:
    assert "secret" not in repr(options(**{"kafka.sasl.password": "secret"}))
