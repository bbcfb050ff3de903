"""The options that a Kafka source accepts, and those that it rejects with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from epochal.connectors.kafka.kafka_settings import CONSUMER_REFUSED, consumer_settings
from epochal.connectors.kafka.source.source_offsets import AtTimes, Everywhere, NoMatch
from epochal.connectors.kafka.source.source_options import (
    REFUSED,
    KafkaSourceOptions,
    TopicSelection,
    read_source_options,
)
from epochal.connectors.registry import source_schema
from epochal.errors import OptionError

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
