"""Why a request failed: nobody answered, or somebody did and refused."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from epochal.connectors.kafka.kafka_client import ConnectionErrors
from epochal.errors import KafkaRejectedError, KafkaUnavailableError

DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")


@pytest.mark.parametrize(
    "code", [KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL]
)
def test_a_rejection_counts_more_than_the_silence_that_follows(code: int) -> None:
    errors = ConnectionErrors(confluent_kafka)
    errors.note(KafkaError(code, "no such user"))
    errors.note(DOWN)
    found = errors.error("kafka:9092", "timed out")
    assert (type(found), found.reason) == (KafkaRejectedError, "no such user")


def test_silence_is_reported_with_its_cause() -> None:
    errors = ConnectionErrors(confluent_kafka)
    errors.note(DOWN)
    found = errors.error("kafka:9092", "timed out")
    assert (type(found), found.reason) == (
        KafkaUnavailableError,
        "timed out (1/1 brokers are down)",
    )


@pytest.mark.parametrize("order", [1, -1])
def test_why_a_connection_failed_counts_more_than_that_all_have(order: int) -> None:
    errors = ConnectionErrors(confluent_kafka)
    for error in (KafkaError(KafkaError._TRANSPORT, "Connection refused"), DOWN)[::order]:
        errors.note(error)
    found = errors.error("kafka:9092", "timed out")
    assert found.reason == "timed out (Connection refused)"


def test_a_rejection_is_forgotten_with_its_request() -> None:
    errors = ConnectionErrors(confluent_kafka)
    errors.note(KafkaError(KafkaError._AUTHENTICATION, "no such user"))
    errors.forget()
    assert type(errors.error("kafka:9092", "timed out")) is KafkaUnavailableError
