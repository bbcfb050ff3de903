"""Java's settings become librdkafka's; those without a counterpart are rejected."""

from __future__ import annotations

import confluent_kafka.admin
import pytest
from confluent_kafka import Producer

from epochal.connectors.kafka.kafka_settings import (
    PRODUCER_DEFAULTS,
    PRODUCER_REFUSED,
    PRODUCER_RENAMED,
    connection_settings,
    kafka_options,
    parse_properties,
    producer_settings,
    transactional_settings,
)
from epochal.errors import OptionError

PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="al\\"ice" password="s;e cret";'
)
SCRAM = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required username=bob password='pw';"
)
OAUTH = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'clientId="me" clientSecret="x" scope="s";'
)
KERBEROS = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;"


def test_options_of_a_source_are_those_with_the_prefix() -> None:
    options = {"kafka.bootstrap.servers": "a:1", "Kafka.Client.Id": "me", "subscribe": "t"}
    assert kafka_options(options) == {"bootstrap.servers": "a:1", "client.id": "me"}


def test_settings_about_reading_are_left_out() -> None:
    java = {
        "bootstrap.servers": "a:1",
        "max.poll.records": "5",
        "consumer.commit.groupid": "g",
        "fetch.max.wait.ms": "5",
        "key.deserializer": "x",
    }
    assert connection_settings(java) == {"bootstrap.servers": "a:1"}


@pytest.mark.parametrize(
    ("java", "found"),
    [
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN},
            {"sasl.mechanism": "PLAIN", "sasl.username": 'al"ice', "sasl.password": "s;e cret"},
        ),
        (
            {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": SCRAM},
            {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "bob", "sasl.password": "pw"},
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.jaas.config": OAUTH,
                "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1/token",
                "sasl.login.callback.handler.class": "Handler",
            },
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": "x",
                "sasl.oauthbearer.scope": "s",
                "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1/token",
            },
        ),
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"},
            {"ssl.ca.location": "/ca.pem"},
        ),
        ({"ssl.truststore.certificates": "PEM"}, {"ssl.ca.pem": "PEM"}),
        (
            {"ssl.keystore.certificate.chain": "C", "ssl.keystore.key": "K"},
            {"ssl.certificate.pem": "C", "ssl.key.pem": "K"},
        ),
        (
            {
                "ssl.keystore.location": "/k.p12",
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.password": "pw",
            },
            {"ssl.keystore.location": "/k.p12", "ssl.keystore.password": "pw"},
        ),
        (
            {"ssl.endpoint.identification.algorithm": "", "ssl.enabled.protocols": "TLSv1.3"},
            {"ssl.endpoint.identification.algorithm": "none"},
        ),
        (
            {"ssl.truststore.location": "/t.jks", "ssl.ca.location": "/ca.pem"},
            {"ssl.ca.location": "/ca.pem"},
        ),
    ],
    ids=["plain", "scram", "oauth", "pem", "ca", "keys", "pkcs12", "no hostname", "override"],
)
def test_security_is_translated(java: dict[str, str], found: dict[str, str]) -> None:
    assert connection_settings(java) == found


@pytest.mark.parametrize(
    ("java", "message"),
    [
        ({"ssl.truststore.location": "/t.jks"}, "Export the certificates as PEM"),
        ({"ssl.keystore.location": "/k.jks"}, "Convert it to PKCS12"),
        ({"sasl.jaas.config": KERBEROS}, "Krb5LoginModule"),
        ({"sasl.jaas.config": "nonsense"}, "cannot be parsed"),
        ({"ssl.engine.factory.class": "X"}, "ssl.engine.factory.class"),
        ({"sasl.client.callback.handler.class": "X"}, "sasl.client.callback.handler.class"),
    ],
)
def test_a_setting_without_a_counterpart_is_an_error_with_a_remedy(
    java: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        connection_settings(java)


def test_the_client_accepts_translated_settings() -> None:
    java = {
        "bootstrap.servers": "127.0.0.1:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": PLAIN,
        "ssl.endpoint.identification.algorithm": "",
        "reconnect.backoff.ms": "50",
        "client.dns.lookup": "use_all_dns_ips",
        "connections.max.idle.ms": "1000",
        "metadata.max.age.ms": "1000",
    }
    confluent_kafka.admin.AdminClient({**connection_settings(java), "log_level": "0"})


def test_a_properties_file_is_read_as_java_does() -> None:
    text = "# note\n! too\n\na=1\nb : 2\nlong=one,\\\n   two\njaas=X required u=\\=v;\npath=C\\:x\n"
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "long": "one,two",
        "jaas": "X required u==v;",
        "path": "C:x",
    }


def test_a_line_without_a_value_is_an_error() -> None:
    with pytest.raises(OptionError, match="key=value"):
        parse_properties("hello")
    with pytest.raises(OptionError, match="Setting 2 of the properties file") as refusal:
        parse_properties("a=b\nsasl.password s3cret")
    assert "s3cret" not in str(refusal.value)


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
