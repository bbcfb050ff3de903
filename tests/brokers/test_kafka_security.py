"""The Kafka source and the committer over TLS, without and with a user, with Java's settings."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from tests.integration.kafka_reading import reading, texts, values_of
from tests.integration.kafka_world import admin, described, held, make_topic, unique, wait_for
from tests.kafka_users import enrol, grant, login
from tests.unit.connectors.kafka.cluster import Query

from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.connectors.registry import open_sink
from epochal.errors import KafkaRejectedError
from epochal.files.local import LocalFiles
from epochal.kafka import KafkaGroup, OffsetCommitter
from epochal.testing.kafka import Kafka

USER, PASSWORD = "reader", "one-of-a-test"
SECONDS = 60.0


def trust(broker: Kafka) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(broker.certificate)}


def by_tls(broker: Kafka) -> dict[str, str]:
    return {"bootstrap.servers": broker.tls_servers, "security.protocol": "SSL", **trust(broker)}


def by_user(broker: Kafka) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.sasl_servers,
        "security.protocol": "SASL_PLAINTEXT",
        **login(USER, PASSWORD),
    }


def by_both(broker: Kafka, user: str = USER, password: str = PASSWORD) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.sasl_tls_servers,
        "security.protocol": "SASL_SSL",
        **trust(broker),
        **login(user, password),
    }


WAYS = pytest.mark.parametrize("how", [by_tls, by_user, by_both])


@pytest.fixture(scope="module")
def user(broker: Kafka) -> None:
    client = admin(broker)
    enrol(client, USER, PASSWORD)
    grant(client, USER)


def given(topic: str, settings: dict[str, str]) -> dict[str, str]:
    named = {f"kafka.{name}": value for name, value in settings.items()}
    return {**named, "subscribe": topic, "startingOffsets": "earliest"}


@WAYS
@pytest.mark.usefixtures("user")
def test_a_source_reads_and_its_group_is_written(
    broker: Kafka, tmp_path: Path, how: Callable[[Kafka], dict[str, str]]
) -> None:
    topic, group = make_topic(broker, unique("secured"), 1), unique("secured")
    texts(broker, topic, ["a", "b"])
    chosen = given(topic, how(broker)) | {"kafka.consumer.commit.groupid": group}
    with reading(tmp_path, chosen) as (opened, reader):
        assert values_of(reader, 2) == ["a", "b"]
        opened.acknowledge(0, reader.positions())
        wait_for(lambda: held(broker, group) == {(topic, 0): 2})


@pytest.mark.usefixtures("user")
def test_a_broker_that_nobody_vouches_for_is_not_talked_to(broker: Kafka, tmp_path: Path) -> None:
    settings = by_tls(broker)
    del settings["ssl.truststore.type"], settings["ssl.truststore.location"]
    with (
        pytest.raises(KafkaRejectedError, match="certificate verify failed"),
        reading(tmp_path, given("t", settings)),
    ):
        pass


@pytest.mark.usefixtures("user")
def test_a_wrong_password_is_told_in_the_brokers_words(broker: Kafka, tmp_path: Path) -> None:
    settings = by_both(broker, password="another")
    with (
        pytest.raises(KafkaRejectedError, match="Authentication failed"),
        reading(tmp_path, given("t", settings)),
    ):
        pass


@pytest.mark.usefixtures("user")
def test_a_sink_with_a_wrong_password_does_not_wait(broker: Kafka, tmp_path: Path) -> None:
    settings = by_both(broker, password="another")
    named = {f"kafka.{name}": value for name, value in settings.items()}
    with pytest.raises(KafkaRejectedError, match="Authentication failed"):
        open_sink(
            "kafka",
            {**named, "topic": "t"},
            pa.schema([("value", pa.string())]),
            checkpoint=LocalFiles(tmp_path, durable=False),
            query_id=str(uuid.uuid4()),
        )


@contextmanager
def committing(group: str, settings: dict[str, str]) -> Iterator[OffsetCommitter]:
    known = KafkaGroup(group, settings["bootstrap.servers"], settings=settings)
    committer = OffsetCommitter(
        [known], open_client=lambda cluster: KafkaClient(cluster, request_seconds=3)
    )
    try:
        yield committer
    finally:
        committer.close(1)


def test_a_committer_with_a_wrong_password_says_so_in_a_line_and_catches_up_when_it_is_right(
    broker: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group, name = make_topic(broker, unique("secured"), 1), unique("late"), unique("user")
    texts(broker, topic, ["a", "b", "c", "d", "e", "f"])
    client = admin(broker)
    enrol(client, name, "of-the-broker")
    grant(client, name)
    query = Query()
    with committing(group, by_both(broker, name, "of-the-committer")) as committer:

        def failures() -> int:
            known = committer.stats().get((broker.sasl_tls_servers, group))
            return 0 if known is None else known.failures

        committer.onQueryStarted(query.started())
        committer.onQueryProgress(query.progress(2, topic=topic))
        wait_for(lambda: failures() >= 2, committer.problems)
        committer.onQueryProgress(query.progress(5, batch=1, topic=topic))
        wait_for(lambda: failures() >= 3, committer.problems)
        assert "Authentication failed" in committer.problems()[group]
        said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert [line.count("\n") for line in said] == [0]
        for part in (group, broker.sasl_tls_servers, "Authentication failed"):
            assert part in said[0]
        assert "of-the-committer" not in said[0]
        assert held(broker, group) == {}
        enrol(client, name, "of-the-committer")
        assert committer.flush(SECONDS), committer.problems()
        assert described(broker, group) == {(topic, 0): (5, 6, 1)}
        assert (committer.problems(), committer.errors) == ({}, 0)
