"""The thread that commits to a cluster's groups, and what waits for brokers that are silent."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from tests.unit.connectors.kafka.cluster import CLUSTER, OTHER, QUERY, MemoryCluster, commit_request

from epochal.clock import SystemClock
from epochal.connectors.kafka.cluster_worker import ClusterWorker
from epochal.connectors.kafka.kafka_client import (
    LOG_SECONDS,
    RETRY_SECONDS,
    ConnectionErrors,
    await_brokers,
)
from epochal.connectors.kafka.offsets import CommitRequest, CommittedOffset, Mark
from epochal.errors import EpochalError, KafkaRejectedError, KafkaTopicError, KafkaUnavailableError
from epochal.testing.clock import ManualClock

SECONDS = 20.0


@pytest.fixture
def kafka() -> MemoryCluster:
    return MemoryCluster()


def worker_of(
    kafka: MemoryCluster, *, allow_backwards: bool = False, max_pending: int = 99
) -> ClusterWorker:
    return ClusterWorker(
        CLUSTER,
        kafka.open,
        clock=SystemClock(),
        allow_backwards=allow_backwards,
        max_pending=max_pending,
    )


def until_tried(kafka: MemoryCluster, worker: ClusterWorker, times: int) -> None:
    """Wait for a number of attempts, without the backoff."""
    for _ in range(400):
        if kafka.tries >= times:
            return
        worker.flush(0.05)
    raise AssertionError(f"{kafka.tries} tries")


def test_one_client_serves_all_groups(kafka: MemoryCluster) -> None:
    worker = worker_of(kafka)
    for group in "abc":
        worker.put(commit_request(5, group=group))
    assert worker.flush(SECONDS)
    assert [kafka.offsets(group) for group in "abc"] == [{("t", 0): 5}] * 3
    assert kafka.opened == 1


def test_while_a_broker_hangs_only_the_newest_request_is_kept(kafka: MemoryCluster) -> None:
    kafka.gate.clear()
    worker = worker_of(kafka)
    worker.put(commit_request(1))
    while kafka.tries == 0:
        threading.Event().wait(0.005)
    for offset in range(2, 1000):
        worker.put(commit_request(offset))
    assert worker.pending() == 1
    kafka.gate.set()
    assert worker.flush(SECONDS)
    assert kafka.writes == [("g", {("t", 0): 1}), ("g", {("t", 0): 999})]


def test_after_an_outage_the_newest_offset_is_committed_and_the_outage_is_logged_once(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "epochal")
    kafka.goes_down()
    worker = worker_of(kafka)
    worker.put(commit_request(1))
    until_tried(kafka, worker, 3)
    worker.put(commit_request(2, batch=9))
    assert worker.stats["g"].last_error.startswith("KafkaUnavailableError")
    kafka.comes_back()
    assert worker.flush(SECONDS)
    assert kafka.writes == [("g", {("t", 0): 2})]
    assert worker.stats["g"].last_error == ""
    assert worker.stats["g"].failures >= 3
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "connection refused" in caplog.messages[0]
    assert caplog.messages[1] == "commits to consumer group g work again, up to batch 9"


def test_a_request_during_a_failed_attempt_is_newer_than_the_failed_one(
    kafka: MemoryCluster,
) -> None:
    kafka.gate.clear()
    worker = worker_of(kafka)
    worker.put(commit_request(1))
    while kafka.tries == 0:
        threading.Event().wait(0.005)
    worker.put(commit_request(2))
    kafka.goes_down()
    kafka.gate.set()
    until_tried(kafka, worker, 2)
    kafka.comes_back()
    assert worker.flush(SECONDS)
    assert kafka.writes == [("g", {("t", 0): 2})]


def test_a_flush_does_not_wait_for_the_next_retry(
    kafka: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochal.connectors.kafka.cluster_worker.retry_seconds", lambda *_: 1000.0)
    kafka.goes_down()
    worker = worker_of(kafka)
    worker.put(commit_request(1))
    until_tried(kafka, worker, 1)
    kafka.comes_back()
    assert worker.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 1}


def test_a_group_with_live_members_is_refused_until_they_leave(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.members.add("g")
    worker = worker_of(kafka)
    worker.put(commit_request(1))
    worker.put(commit_request(1, group="free"))
    until_tried(kafka, worker, 3)
    assert kafka.writes == [("free", {("t", 0): 1})]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    kafka.members.clear()
    assert worker.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 1}


def test_a_bug_does_not_end_the_thread(kafka: MemoryCluster) -> None:
    kafka.failing = ZeroDivisionError("planted")
    worker = worker_of(kafka)
    worker.put(commit_request(1))
    until_tried(kafka, worker, 2)
    assert worker.stats["g"].last_error == "ZeroDivisionError: planted"
    kafka.comes_back()
    assert worker.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 1}


def test_a_query_that_lost_its_group_stops_committing_and_logs_it(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_of(kafka)
    worker.put(commit_request(1))
    assert worker.flush(SECONDS)
    kafka.groups["g"] = {("t", 0): CommittedOffset(2, Mark(OTHER, 0).to_text())}
    for offset in (3, 4):
        worker.put(commit_request(offset))
        assert worker.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 2}
    assert worker.has_lost("g", QUERY)
    assert len(caplog.messages) == 1
    assert OTHER in caplog.messages[0]
    assert "claimed by two queries" in caplog.messages[0]
    worker.forget(QUERY)  # restarted: asks again, and is the later one now
    worker.put(commit_request(5))
    assert worker.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 5}


def test_a_deleted_topic_does_not_block_the_other_offsets(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.missing.add(("gone", 3))
    worker = worker_of(kafka)
    worker.put(CommitRequest(CLUSTER, "g", QUERY, 0, {("t", 0): 1, ("gone", 3): 7}))
    assert worker.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 1}
    assert worker.stats["g"].committed == {("t", 0): 1}
    assert "gone-3" in caplog.text


def test_a_group_that_is_ahead_is_left_alone_and_logged_once(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.groups["g"] = {("t", 0): CommittedOffset(50)}
    worker = worker_of(kafka)
    for offset in (10, 20):
        worker.put(commit_request(offset))
        assert worker.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 50}
    assert worker.stats["g"].skipped_backwards == 2
    assert len(caplog.messages) == 1
    assert "t-0 holds 50, the query is at 10" in caplog.messages[0]
    worker.put(commit_request(60))
    assert worker.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 60}


def test_pending_work_is_bounded(kafka: MemoryCluster) -> None:
    kafka.goes_down()
    worker = worker_of(kafka, max_pending=2)
    for group in "abc":
        worker.put(commit_request(1, group=group))
    assert worker.pending() + (1 if kafka.tries else 0) <= 3
    assert worker.dropped <= 1
    worker.put(CommitRequest(CLUSTER, "a", QUERY, 0, {("t", n): 1 for n in range(5)}))
    assert worker.dropped >= 1


def test_a_closed_worker_has_no_thread_left(kafka: MemoryCluster) -> None:
    worker = worker_of(kafka)
    worker.close(SECONDS)
    assert not [t for t in threading.enumerate() if t is worker._thread and t.is_alive()]


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
