"""A start waits for brokers that are silent, and for nothing else; why a request failed."""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from epochal.connectors.kafka.kafka_client import (
    LOG_SECONDS,
    RETRY_SECONDS,
    ConnectionErrors,
    await_brokers,
)
from epochal.errors import EpochalError, KafkaRejectedError, KafkaTopicError, KafkaUnavailableError
from epochal.testing.clock import ManualClock

SILENT = KafkaUnavailableError("kafka:9092", "connection refused")


def asking(*answers: str | EpochalError) -> Callable[[], str]:
    left = iter(answers)

    def ask() -> str:
        answer = next(left)
        if isinstance(answer, EpochalError):
            raise answer
        return answer

    return ask


def test_a_silent_broker_is_asked_again_until_it_answers() -> None:
    clock = ManualClock()
    ask = asking(SILENT, SILENT, "here")
    assert await_brokers(ask, seconds=60, clock=clock) == "here"
    assert clock.monotonic() == 2 * RETRY_SECONDS


def test_a_broker_that_stays_silent_is_given_up_in_time() -> None:
    clock = ManualClock()
    with pytest.raises(KafkaUnavailableError, match="connection refused"):
        await_brokers(asking(*[SILENT] * 100), seconds=5, clock=clock)
    assert clock.monotonic() == 5


def test_without_a_timeout_a_silent_broker_is_asked_once() -> None:
    with pytest.raises(KafkaUnavailableError):
        await_brokers(asking(SILENT, "too late"), seconds=0, clock=ManualClock())


@pytest.mark.parametrize(
    "wrong",
    [KafkaRejectedError("kafka:9092", "wrong password"), KafkaTopicError("kafka:9092", ("t",))],
    ids=lambda error: type(error).__name__,
)
def test_an_answer_that_will_not_change_is_raised_at_once(wrong: EpochalError) -> None:
    clock = ManualClock()
    with pytest.raises(type(wrong)):
        await_brokers(asking(wrong, "too late"), seconds=60, clock=clock)
    assert clock.monotonic() == 0


def test_the_wait_is_logged_once_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    rounds = int(2.5 * LOG_SECONDS / RETRY_SECONDS)
    await_brokers(asking(*[SILENT] * rounds, "here"), seconds=60, clock=ManualClock())
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 3
    assert "Kafka at kafka:9092 is unavailable: connection refused" in warned[0]
    assert "within 60 s" in warned[0]


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
