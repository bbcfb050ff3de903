"""The source and the committer over TLS, and over TLS with a user: by Java's names of settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from tests.integration.kafka_reading import reading, texts, values_of
from tests.integration.kafka_world import admin, held, make_topic, unique, wait_for

from epochal.errors import KafkaUnavailableError
from epochal.testing.kafka import Kafka

USER, PASSWORD = "reader", "one-of-a-test"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def jaas(password: str) -> dict[str, str]:
    return {
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": f'{SCRAM} required username="{USER}" password="{password}";',
    }


def trust(broker: Kafka) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(broker.certificate)}


def by_tls(broker: Kafka) -> dict[str, str]:
    return {"bootstrap.servers": broker.tls_servers, "security.protocol": "SSL", **trust(broker)}


def by_user(broker: Kafka) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.sasl_servers,
        "security.protocol": "SASL_PLAINTEXT",
        **jaas(PASSWORD),
    }


def by_both(broker: Kafka) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.sasl_tls_servers,
        "security.protocol": "SASL_SSL",
        **trust(broker),
        **jaas(PASSWORD),
    }


@pytest.fixture(scope="module")
def user(broker: Kafka) -> None:
    client = admin(broker)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    made = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    client.alter_user_scram_credentials([made])[USER].result(30)
    wanted = [
        AclBinding(
            kind,
            "*",
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation.ALL,
            AclPermissionType.ALLOW,
        )
        for kind in (ResourceType.GROUP, ResourceType.TOPIC)
    ]
    for done in client.create_acls(wanted).values():
        done.result(30)


def given(topic: str, settings: dict[str, str]) -> dict[str, str]:
    named = {f"kafka.{name}": value for name, value in settings.items()}
    return {**named, "subscribe": topic, "startingOffsets": "earliest"}


@pytest.mark.parametrize("how", [by_tls, by_user, by_both])
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
        pytest.raises(KafkaUnavailableError, match="certificate verify failed"),
        reading(tmp_path, given("t", settings)),
    ):
        pass


@pytest.mark.usefixtures("user")
def test_a_wrong_password_is_told_in_the_brokers_words(broker: Kafka, tmp_path: Path) -> None:
    settings = by_both(broker) | jaas("another")
    with (
        pytest.raises(KafkaUnavailableError, match="Authentication failed"),
        reading(tmp_path, given("t", settings)),
    ):
        pass
