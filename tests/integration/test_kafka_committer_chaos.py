"""Faults of the broker, topics, groups or rights do not stop the query.

The committer reports the fault and catches up when it is over. In tests where the fault must affect
only the committer, the query reads from one broker, and its group is on another one that has a
topic of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.integration.kafka_world import (
    admin,
    held,
    make_topic,
    produce,
    read,
    start,
    unique,
    wait_for,
)
from tests.kafka_users import dismiss, enrol, grant, login, revoke_groups

from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.kafka import KafkaGroup, OffsetCommitter
from epochal.testing.kafka import Kafka, running_kafka

USER, PASSWORD = "lagger", "first-secret"


@pytest.fixture(scope="module")
def frail() -> Iterator[Kafka]:
    with running_kafka() as running:
        yield running


@pytest.fixture
def listen(kafka_spark: SparkSession) -> Iterator[Callable[..., OffsetCommitter]]:
    added: list[OffsetCommitter] = []

    def add(*groups: KafkaGroup) -> OffsetCommitter:
        committer = OffsetCommitter(
            groups, open_client=lambda cluster: KafkaClient(cluster, request_seconds=3)
        )
        kafka_spark.streams.addListener(committer)
        added.append(committer)
        return committer

    yield add
    for committer in added:
        kafka_spark.streams.removeListener(committer)
    for query in kafka_spark.streams.active:
        query.stop()
    for committer in added:
        committer.close(2)


def both(topic: str, count: int) -> dict[tuple[str, int], int]:
    return {(topic, 0): count, (topic, 1): count}


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_while_the_group_s_broker_is_away_the_query_goes_on_and_the_group_catches_up(
    kafka_spark: SparkSession,
    broker: Kafka,
    frail: Kafka,
    listen: Callable[..., OffsetCommitter],
    tmp_path: Path,
    how: str,
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique(how)
    make_topic(frail, topic)
    committer = listen(KafkaGroup(group, frail.bootstrap_servers))
    query = start(read(kafka_spark, broker, ("subscribe", topic), None), tmp_path)
    produce(broker, topic, 10)
    wait_for(lambda: held(frail, group) == both(topic, 10), committer.problems)
    (frail.kill if how == "killed" else frail.pause)()
    try:
        batches = []
        for _ in range(3):
            produce(broker, topic, 10)
            query.processAllAvailable()
            batches.append(query.lastProgress.batchId)
        wait_for(lambda: group in committer.problems())
        assert query.isActive
        assert batches == sorted(set(batches))
    finally:
        (frail.start if how == "killed" else frail.resume)()
    wait_for(lambda: held(frail, group) == both(topic, 40), committer.problems)
    wait_for(lambda: committer.problems() == {}, committer.problems)
    assert committer.errors == 0


def test_a_broker_that_source_and_group_share_is_killed_and_restarted(
    kafka_spark: SparkSession, frail: Kafka, listen: Callable[..., OffsetCommitter], tmp_path: Path
) -> None:
    topic, group = make_topic(frail, unique("orders")), unique("shared")
    committer = listen()
    query = start(read(kafka_spark, frail, ("subscribe", topic), group), tmp_path)
    produce(frail, topic, 10)
    wait_for(lambda: held(frail, group) == both(topic, 10), committer.problems)
    frail.kill()
    frail.start()
    produce(frail, topic, 10)
    wait_for(lambda: held(frail, group) == both(topic, 20), committer.problems)
    assert query.isActive
    assert committer.errors == 0


def test_a_topic_that_is_deleted_and_made_anew_is_followed_from_its_new_beginning(
    kafka_spark: SparkSession, broker: Kafka, listen: Callable[..., OffsetCommitter], tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("recreated")
    committer = listen()
    lenient = {"failOnDataLoss": "false", "kafka.metadata.max.age.ms": "300"}
    query = start(read(kafka_spark, broker, ("subscribe", topic), group, **lenient), tmp_path)
    produce(broker, topic, 10)
    wait_for(lambda: held(broker, group) == both(topic, 10), committer.problems)
    client = admin(broker)
    client.delete_topics([topic])[topic].result(30)
    wait_for(lambda: topic not in client.list_topics(timeout=10).topics)
    make_topic(broker, topic)
    produce(broker, topic, 3)
    wait_for(
        lambda: held(broker, group) == both(topic, 3),
        lambda: (held(broker, group), committer.problems(), query.exception()),
    )
    produce(broker, topic, 3)
    wait_for(lambda: held(broker, group) == both(topic, 6), committer.problems)
    assert query.isActive


def test_rights_and_credentials_that_are_revoked_are_named_and_used_again_when_they_are_back(
    kafka_spark: SparkSession,
    broker: Kafka,
    frail: Kafka,
    listen: Callable[..., OffsetCommitter],
    tmp_path: Path,
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("secured")
    make_topic(frail, topic)
    client = admin(frail)
    enrol(client, USER, PASSWORD)
    grant(client, USER)
    settings = {"security.protocol": "SASL_PLAINTEXT", **login(USER, PASSWORD)}
    committer = listen(KafkaGroup(group, frail.sasl_servers, settings=settings))
    query = start(read(kafka_spark, broker, ("subscribe", topic), None), tmp_path)

    def goes_to(count: int) -> None:
        wait_for(lambda: held(frail, group) == both(topic, count), committer.problems)
        wait_for(lambda: committer.problems() == {}, committer.problems)

    def says(text: str) -> None:
        produce(broker, topic, 10)
        query.processAllAvailable()
        wait_for(lambda: text in committer.problems().get(group, ""), committer.problems)
        assert query.isActive

    produce(broker, topic, 10)
    goes_to(10)
    revoke_groups(client, USER)
    says("The committer needs READ on the group")
    assert held(frail, group) == both(topic, 10)
    grant(client, USER)
    goes_to(20)
    dismiss(client, USER)
    frail.kill()  # open connections stay open; credentials are checked only for a new one
    frail.start()
    says("Authentication failed")
    enrol(client, USER, PASSWORD)
    goes_to(30)
    assert committer.errors == 0
