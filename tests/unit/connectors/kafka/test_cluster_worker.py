"""The thread that writes a cluster's groups: newest first, and it never gives up or breaks."""

from __future__ import annotations

import logging
import threading

import pytest
from tests.unit.connectors.kafka.cluster import CLUSTER, OTHER, QUERY, MemoryCluster, want
from tests.waiting import eventually

from epochal.clock import SystemClock
from epochal.connectors.kafka.cluster_worker import Lane
from epochal.connectors.kafka.commit_rules import Held
from epochal.connectors.kafka.offsets import Mark, Want

SECONDS = 20.0


@pytest.fixture
def kafka() -> MemoryCluster:
    return MemoryCluster()


def lane_of(kafka: MemoryCluster, *, allow_backwards: bool = False, max_pending: int = 99) -> Lane:
    return Lane(
        CLUSTER,
        kafka.open,
        clock=SystemClock(),
        allow_backwards=allow_backwards,
        max_pending=max_pending,
    )


def until_tried(kafka: MemoryCluster, lane: Lane, times: int) -> None:
    """Wait for a number of tries, sparing the backoff."""

    def is_tried() -> bool:
        if kafka.tries < times:
            lane.flush(0.05)
        return kafka.tries >= times

    eventually(is_tried, lambda: f"{times} tries, of which {kafka.tries} were made")


def test_one_client_serves_all_groups(kafka: MemoryCluster) -> None:
    lane = lane_of(kafka)
    for group in "abc":
        lane.put(want(5, group=group))
    assert lane.flush(SECONDS)
    assert [kafka.offsets(group) for group in "abc"] == [{("t", 0): 5}] * 3
    assert kafka.opened == 1


def test_while_a_broker_hangs_only_the_newest_is_kept(kafka: MemoryCluster) -> None:
    kafka.gate.clear()
    lane = lane_of(kafka)
    lane.put(want(1))
    eventually(lambda: kafka.tries, "the first try")
    for offset in range(2, 1000):
        lane.put(want(offset))
    assert lane.pending() == 1
    kafka.gate.set()
    assert lane.flush(SECONDS)
    assert kafka.writes == [("g", {("t", 0): 1}), ("g", {("t", 0): 999})]


def test_an_outage_is_caught_up_with_the_newest_and_said_once(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "epochal")
    kafka.goes_down()
    lane = lane_of(kafka)
    lane.put(want(1))
    until_tried(kafka, lane, 3)
    lane.put(want(2, batch=9))
    assert lane.stats["g"].last_error.startswith("KafkaUnavailableError")
    kafka.comes_back()
    assert lane.flush(SECONDS)
    assert kafka.writes == [("g", {("t", 0): 2})]
    assert lane.stats["g"].last_error == ""
    assert lane.stats["g"].failures >= 3
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "connection refused" in caplog.messages[0]
    assert caplog.messages[1] == "consumer group g is written again, up to batch 9"


def test_what_came_during_a_try_that_failed_is_newer_than_what_was_tried(
    kafka: MemoryCluster,
) -> None:
    kafka.gate.clear()
    lane = lane_of(kafka)
    lane.put(want(1))
    eventually(lambda: kafka.tries, "the first try")
    lane.put(want(2))
    kafka.goes_down()
    kafka.gate.set()
    until_tried(kafka, lane, 2)
    kafka.comes_back()
    assert lane.flush(SECONDS)
    assert kafka.writes == [("g", {("t", 0): 2})]


def test_a_flush_does_not_wait_for_the_next_try(
    kafka: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochal.connectors.kafka.cluster_worker.retry_seconds", lambda *_: 1000.0)
    kafka.goes_down()
    lane = lane_of(kafka)
    lane.put(want(1))
    until_tried(kafka, lane, 1)
    kafka.comes_back()
    assert lane.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 1}


def test_a_group_with_live_members_is_refused_until_they_leave(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.members.add("g")
    lane = lane_of(kafka)
    lane.put(want(1))
    lane.put(want(1, group="free"))
    until_tried(kafka, lane, 3)
    assert kafka.writes == [("free", {("t", 0): 1})]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    kafka.members.clear()
    assert lane.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 1}


def test_a_bug_of_ours_does_not_end_the_thread(kafka: MemoryCluster) -> None:
    kafka.failing = ZeroDivisionError("planted")
    lane = lane_of(kafka)
    lane.put(want(1))
    until_tried(kafka, lane, 2)
    assert lane.stats["g"].last_error == "ZeroDivisionError: planted"
    kafka.comes_back()
    assert lane.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 1}


def test_the_query_that_lost_its_group_stops_writing_and_says_so(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    lane = lane_of(kafka)
    lane.put(want(1))
    assert lane.flush(SECONDS)
    kafka.groups["g"] = {("t", 0): Held(2, Mark(OTHER, 0).to_text())}
    for offset in (3, 4):
        lane.put(want(offset))
        assert lane.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 2}
    assert lane.has_lost("g", QUERY)
    assert len(caplog.messages) == 1
    assert OTHER in caplog.messages[0]
    assert "claimed by two queries" in caplog.messages[0]
    lane.forget(QUERY)  # restarted: asks again, and is the later one now
    lane.put(want(5))
    assert lane.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 5}


def test_a_deleted_topic_does_not_keep_the_others_from_being_committed(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.missing.add(("gone", 3))
    lane = lane_of(kafka)
    lane.put(Want(CLUSTER, "g", QUERY, 0, {("t", 0): 1, ("gone", 3): 7}))
    assert lane.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 1}
    assert lane.stats["g"].committed == {("t", 0): 1}
    assert "gone-3" in caplog.text


def test_a_group_that_is_ahead_is_left_and_that_is_said_once(
    kafka: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.groups["g"] = {("t", 0): Held(50)}
    lane = lane_of(kafka)
    for offset in (10, 20):
        lane.put(want(offset))
        assert lane.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 50}
    assert lane.stats["g"].skipped_backwards == 2
    assert len(caplog.messages) == 1
    assert "t-0 holds 50, the query is at 10" in caplog.messages[0]
    lane.put(want(60))
    assert lane.flush(SECONDS)
    assert kafka.offsets("g") == {("t", 0): 60}


def test_what_is_pending_has_a_bound(kafka: MemoryCluster) -> None:
    kafka.goes_down()
    lane = lane_of(kafka, max_pending=2)
    for group in "abc":
        lane.put(want(1, group=group))
    assert lane.pending() + (1 if kafka.tries else 0) <= 3
    assert lane.dropped <= 1
    lane.put(Want(CLUSTER, "a", QUERY, 0, {("t", n): 1 for n in range(5)}))
    assert lane.dropped >= 1


def test_a_closed_lane_has_no_thread_left(kafka: MemoryCluster) -> None:
    lane = lane_of(kafka)
    lane.close(SECONDS)
    assert not [t for t in threading.enumerate() if t is lane._thread and t.is_alive()]
