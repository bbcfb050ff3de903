"""The listener's callbacks return quickly and never raise. Groups are given explicitly here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.unit.connectors.kafka.cluster import QUERY, MemoryCluster, Query
from tests.waiting import eventually

from epochal.connectors.kafka.committer.offset_committer import (
    Ended,
    FinishedBatch,
    ListenerEvent,
    ListenerInbox,
    Started,
)
from epochal.connectors.kafka.committer.spark_queries import is_awaited
from epochal.connectors.kafka.offsets import Position
from epochal.errors import OptionError
from epochal.kafka import KafkaGroup, OffsetCommitter

SECONDS = 20.0


@pytest.fixture
def kafka() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def committer(kafka: MemoryCluster) -> Iterator[OffsetCommitter]:
    committer = committer_of(kafka, KafkaGroup("g", "kafka:9092"))
    yield committer
    kafka.gate.set()
    committer.close(1)


def committer_of(kafka: MemoryCluster, *groups: KafkaGroup) -> OffsetCommitter:
    return OffsetCommitter(groups, open_client=kafka.open)


def test_a_callback_returns_at_once_while_the_broker_hangs(
    kafka: MemoryCluster, committer: OffsetCommitter
) -> None:
    kafka.gate.clear()
    query = Query()
    for batch in range(2000):
        committer.onQueryProgress(query.progress(batch, batch=batch))
    # All callbacks have returned, and still no call to the broker has.
    assert (kafka.answers, kafka.writes) == (0, [])
    kafka.gate.set()
    assert committer.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 1999}


def test_callbacks_never_raise_even_for_malformed_events(
    kafka: MemoryCluster, committer: OffsetCommitter
) -> None:
    for event in (None, 5, SimpleNamespace(), SimpleNamespace(progress=None)):
        committer.onQueryStarted(event)
        committer.onQueryProgress(event)
        committer.onQueryIdle(event)
        committer.onQueryTerminated(event)
    assert committer.errors == 12
    committer.onQueryProgress(Query().progress(5))
    assert committer.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 5}


def test_a_failure_while_following_a_query_is_counted_and_the_next_event_is_handled(
    kafka: MemoryCluster, committer: OffsetCommitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("epochal.connectors.kafka.committer.offset_committer.commit_requests", None)
        committer.onQueryProgress(Query().progress(4))
        assert committer.flush(SECONDS)
    query = Query()
    committer.onQueryProgress(query.progress(5))
    assert committer.flush(SECONDS)
    assert committer.errors == 1
    assert kafka.offsets("g") == {("t", 0): 5}


def test_the_second_of_two_queries_with_one_group_is_refused_until_the_first_ends(
    kafka: MemoryCluster, committer: OffsetCommitter, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Query(), Query()
    committer.onQueryProgress(first.progress(5))
    committer.onQueryProgress(second.progress(7))
    committer.onQueryProgress(second.progress(8))
    assert committer.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 5}
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert str(first.id) in errors[0]
    assert str(second.id) in errors[0]
    assert committer.stats()["kafka:9092", "g"].refusals == 1
    committer.onQueryTerminated(first.ended())
    committer.onQueryProgress(second.progress(9))
    assert committer.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 9}


def test_explicit_groups_match_by_query_name_id_and_source(kafka: MemoryCluster) -> None:
    one, two = Query("orders"), Query()
    committer = committer_of(
        kafka,
        KafkaGroup("by-name", "kafka:9092", query="orders", source=1),
        KafkaGroup("by-id", "kafka:9092", query=str(two.id)),
    )
    committer.onQueryProgress(one.progress(1, 2))
    committer.onQueryProgress(two.progress(3))
    assert committer.close(SECONDS)
    assert kafka.offsets("by-name") == {("t", 0): 2}
    assert kafka.offsets("by-id") == {("t", 0): 3}


def test_a_query_without_a_group_is_not_committed_and_is_logged_once(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    committer = committer_of(kafka, KafkaGroup("g", "kafka:9092", query="orders"))
    query = Query("other")
    for batch in range(3):
        committer.onQueryProgress(query.progress(batch))
    assert committer.close(SECONDS)
    assert kafka.groups == {}
    assert len(caplog.messages) == 1
    assert "OffsetCommitter(groups=[…])" in caplog.messages[0]


def test_termination_retries_pending_commits_at_once(
    kafka: MemoryCluster, committer: OffsetCommitter
) -> None:
    query = Query()
    kafka.goes_down()
    committer.onQueryProgress(query.progress(5))
    eventually(lambda: kafka.tries, "the first try")
    kafka.comes_back()
    committer.onQueryTerminated(query.ended())
    assert committer.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 5}


def test_closing_logs_what_could_not_be_committed(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.goes_down()
    committer = committer_of(kafka, KafkaGroup("g", "kafka:9092"))
    committer.onQueryProgress(Query().progress(5))
    assert not committer.close(0.5)
    assert "closed with offsets uncommitted" in caplog.messages[-1]
    assert "connection refused" in committer.problems()["g"]


def test_a_flush_that_fails_logs_the_reason(
    kafka: MemoryCluster, committer: OffsetCommitter, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.goes_down()
    committer.onQueryProgress(Query().progress(5))
    assert not committer.flush(0.5)
    assert "not all offsets were committed within 0.5 s" in caplog.messages[-1]
    assert "connection refused" in caplog.messages[-1]


class RemoteQueries:
    """A session of Spark Connect, as far as the committer asks it."""

    def __init__(self, *active: Query) -> None:
        self.streams = self
        self._active = {str(query.id): query for query in active}

    def get(self, query_id: str) -> Query | None:
        return self._active.get(query_id)


def test_a_flush_in_spark_connect_waits_for_the_last_events_of_a_query_that_has_ended(
    kafka: MemoryCluster, committer: OffsetCommitter
) -> None:
    query, running = Query(), Query("running")
    committer.spark = RemoteQueries(running)
    committer.onQueryStarted(query.started())
    committer.onQueryStarted(running.started())
    assert not committer.flush(0.2)

    def tell() -> None:
        committer.onQueryProgress(query.progress(5))
        committer.onQueryTerminated(query.ended())

    later = threading.Timer(0.1, tell)
    later.start()
    assert committer.flush(SECONDS)
    later.join()
    assert kafka.offsets("g") == {("t", 0): 5}


def test_a_session_that_cannot_be_asked_is_the_reason_of_a_failed_flush(
    committer: OffsetCommitter, caplog: pytest.LogCaptureFixture
) -> None:
    committer.spark = SimpleNamespace()
    committer.onQueryStarted(Query().started())
    assert not committer.flush(SECONDS)
    assert "Spark could not be asked for its last events" in caplog.messages[-1]


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize("trigger", ["AvailableNowTrigger$", "ProcessingTimeTrigger"])
def test_only_the_end_of_a_running_query_without_end_is_not_awaited(
    is_active: bool, trigger: str
) -> None:
    kind = SimpleNamespace(getSimpleName=lambda: trigger)
    run = SimpleNamespace(
        trigger=lambda: SimpleNamespace(getClass=lambda: kind), isActive=lambda: is_active
    )
    assert is_awaited(run) == (not is_active or trigger == "AvailableNowTrigger$")


def test_a_flood_of_events_is_bounded_and_the_newest_is_committed(
    kafka: MemoryCluster, committer: OffsetCommitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "_inbox", ListenerInbox(4))
    query = Query()
    with committer._changed:  # the thread that takes things out cannot get in
        for batch in range(100):
            committer.onQueryProgress(query.progress(batch, batch=batch))
    assert committer.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 99}
    assert "epochal_kafka_committer_dropped_events_total 96\n" in committer.metrics_text()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: KafkaGroup("", "kafka:9092"),
        lambda: KafkaGroup("g", ""),
        lambda: KafkaGroup("g", "kafka:9092", source=-1),
        lambda: OffsetCommitter(
            [KafkaGroup("g", "k:1", settings={"ssl.truststore.location": "/x.jks"})]
        ),
    ],
)
def test_wrong_arguments_are_rejected_at_construction(wrong: object) -> None:
    with pytest.raises(OptionError):
        wrong()  # type: ignore[operator]


def progressed(batch: int) -> FinishedBatch:
    return FinishedBatch("r", None, Position(QUERY, batch, ()))


def drained(inbox: ListenerInbox) -> list[ListenerEvent]:
    return [inbox.take() for _ in range(len(inbox))]


def test_a_full_inbox_drops_its_oldest_progress_and_keeps_starts_and_ends() -> None:
    inbox = ListenerInbox(4)
    started, ended = Started(QUERY, "r", None), Ended(QUERY, "r")
    for event in (started, progressed(1), progressed(2), progressed(3), progressed(4), ended):
        inbox.put(event)
    assert inbox.dropped == 2
    assert drained(inbox) == [started, progressed(3), progressed(4), ended]


def test_an_inbox_full_of_starts_is_bounded_too() -> None:
    inbox = ListenerInbox(2)
    for run in "abc":
        inbox.put(Started(QUERY, run, None))
    assert drained(inbox) == [Started(QUERY, "b", None), Started(QUERY, "c", None)]
