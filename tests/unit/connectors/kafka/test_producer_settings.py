"""Java's producer settings become librdkafka's."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from epochal.connectors.kafka.kafka_settings import (
    PRODUCER_DEFAULTS,
    PRODUCER_REFUSED,
    PRODUCER_RENAMED,
    producer_settings,
    transactional_settings,
)
from epochal.errors import OptionError

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}


def test_java_names_become_librdkafkas() -> None:
    java = {
        "max.request.size": "2000000",
        "buffer.memory": "33554432",
        "linger.ms": "20",
        "delivery.timeout.ms": "9000",
        "send.buffer.bytes": "-1",
        "compression.zstd.level": "3",
        "acks": "all",
    }
    assert producer_settings(SERVERS | java) == PRODUCER_DEFAULTS | SERVERS | {
        "message.max.bytes": "2000000",
        "queue.buffering.max.kbytes": "32768",
        "queue.buffering.max.ms": "20",
        "message.timeout.ms": "9000",
        "socket.send.buffer.bytes": "0",
        "compression.level": "3",
        "acks": "all",
    }


def test_keys_go_to_the_partitions_that_java_chooses() -> None:
    assert producer_settings(SERVERS)["partitioner"] == "murmur2_random"


@pytest.mark.parametrize("key", sorted(PRODUCER_REFUSED))
def test_a_setting_without_a_counterpart_is_rejected_by_name(key: str) -> None:
    with pytest.raises(OptionError, match=f"kafka.{key} is not supported"):
        producer_settings(SERVERS | {key: "x"})


def test_two_names_of_one_setting_are_refused() -> None:
    for key, name in PRODUCER_RENAMED.items():
        with pytest.raises(OptionError, match="are the same setting"):
            producer_settings(SERVERS | {key: "1", name: "1"})


def test_brokers_must_be_named() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers must be given"):
        producer_settings({})


def test_a_transactional_producer_must_be_idempotent() -> None:
    with pytest.raises(OptionError, match="cannot be exactly once"):
        transactional_settings(SERVERS | {"enable.idempotence": "false"}, "q")


def test_a_message_is_tried_no_longer_than_its_transaction_lives() -> None:
    found = transactional_settings(SERVERS | {"transaction.timeout.ms": "5000"}, "q")
    assert (found["transactional.id"], found["message.timeout.ms"]) == ("q", "5000")


def test_librdkafka_accepts_translated_settings() -> None:
    java = SERVERS | {
        "max.request.size": "2000000",
        "buffer.memory": "33554432",
        "send.buffer.bytes": "65536",
        "receive.buffer.bytes": "-1",
        "compression.type": "zstd",
        "compression.zstd.level": "3",
        "delivery.timeout.ms": "9000",
        "linger.ms": "1",
    }
    Producer(producer_settings(java) | {"log_level": "0"})
    Producer(transactional_settings(java, "q") | {"log_level": "0"})
