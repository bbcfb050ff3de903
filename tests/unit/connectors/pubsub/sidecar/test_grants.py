"""Grants: which sidecar fills a partition, which one acknowledges, and when there is a batch."""

from __future__ import annotations

import pytest

from epochal.connectors.pubsub.sidecar.grants import (
    BOOTSTRAP_EVERY_S,
    FLUSH_AFTER_S,
    BatchPlan,
    Grants,
    Reason,
)
from epochal.connectors.pubsub.sidecar.sidecar_messages import Grant, Settle, SidecarReport

MINE, HELD_BY_A = Grant(mine=True), Grant(mine=False, holder="a")
ROWS = SidecarReport(buffered_rows=100)


@pytest.fixture
def grants() -> Grants:
    return Grants(partitions=2, rows_per_partition=1000)


def planned(grants: Grants, *sidecars: str, now_s: float = 0.0) -> int:
    """Plan a batch of two partitions over the rows of some sidecars."""
    for sidecar in sidecars:
        grants.heard(sidecar, ROWS, now_s)
    plan = grants.next_batch(grants.latest, now_s)
    assert plan is not None
    return plan.batch


def test_a_sidecar_without_rows_sends_readers_to_one_with_rows(grants: Grants) -> None:
    grants.heard("a", SidecarReport(buffered_rows=100), 0)
    grants.heard("b", SidecarReport(), 0)
    batch = planned(grants)
    assert grants.claim((batch, 0), "b", 0, 0) == HELD_BY_A
    assert grants.claim((batch, 0), "a", 100, 0) == MINE
    assert grants.claim((batch, 1), "b", 0, 0) == HELD_BY_A


def test_rows_that_are_promised_are_not_promised_again() -> None:
    grants = Grants(partitions=3, rows_per_partition=60)
    grants.heard("a", SidecarReport(buffered_rows=100), 0)
    grants.heard("b", SidecarReport(), 0)
    batch = planned(grants)
    answers = [grants.claim((batch, number), "b", 0, 0) for number in range(3)]
    assert answers == [HELD_BY_A, HELD_BY_A, HELD_BY_A]
    richer = Grants(partitions=3, rows_per_partition=1000)
    richer.heard("a", SidecarReport(buffered_rows=2), 0)
    richer.heard("b", SidecarReport(), 0)
    batch = planned(richer)
    answers = [richer.claim((batch, number), "b", 0, 0) for number in range(3)]
    assert answers == [HELD_BY_A, HELD_BY_A, MINE]


def test_counting_goes_on_from_the_offset_that_spark_names(grants: Grants) -> None:
    grants.heard("a", ROWS, 0)
    assert grants.next_batch(41, 0) == BatchPlan(42, 2, 50, Reason.DATA)


def test_without_a_sidecar_a_batch_is_run_to_start_one_but_not_all_the_time(grants: Grants) -> None:
    plan = grants.next_batch(0, 0)
    assert plan == BatchPlan(1, 2, 1000, Reason.BOOTSTRAP)
    assert grants.next_batch(1, 0.1) is None
    again = grants.next_batch(1, BOOTSTRAP_EVERY_S)
    assert again is not None
    assert again.reason is Reason.BOOTSTRAP


def test_an_idle_stream_flushes_its_last_batch_once(grants: Grants) -> None:
    batch = planned(grants, "a")
    grants.claim((batch, 0), "a", 100, 0)
    grants.filled((batch, 0), "a", 50)
    grants.heard("a", SidecarReport(held_rows=50), 0)
    assert grants.next_batch(batch, FLUSH_AFTER_S / 2) is None
    flush = grants.next_batch(batch, FLUSH_AFTER_S)
    assert flush == BatchPlan(batch + 1, 0, 1000, Reason.FLUSH)
    grants.commit(batch)
    assert grants.orders("a") == Settle(batch, ((batch, 0),))
    assert grants.next_batch(batch + 1, FLUSH_AFTER_S * 9) is None


def test_a_drained_stream_flushes_at_once(grants: Grants) -> None:
    batch = planned(grants, "a")
    grants.claim((batch, 0), "a", 100, 0)
    grants.heard("a", SidecarReport(), 0)
    plan = grants.next_batch(batch, 0.0, draining=True)
    assert plan is not None
    assert plan.reason is Reason.FLUSH


def test_a_batch_without_rows_needs_no_flush(grants: Grants) -> None:
    plan = grants.next_batch(0, 0)
    assert plan is not None
    grants.heard("a", SidecarReport(), 0)
    grants.claim((plan.batch, 0), "a", 0, 0)
    grants.filled((plan.batch, 0), "a", 0)
    assert grants.next_batch(plan.batch, FLUSH_AFTER_S * 2) is None


def test_partitions_share_what_is_buffered_up_to_their_limit() -> None:
    grants = Grants(partitions=3, rows_per_partition=40)
    grants.heard("a", SidecarReport(buffered_rows=100), 0)
    plan = grants.next_batch(0, 0)
    assert plan is not None
    assert plan.rows == 34
    grants.heard("a", SidecarReport(buffered_rows=1000), 0)
    plan = grants.next_batch(1, 0)
    assert plan is not None
    assert plan.rows == 40


def test_an_idle_query_runs_one_more_batch_if_its_progress_shows_a_backlog(grants: Grants) -> None:
    batch = planned(grants, "a")
    grants.show(100)
    assert grants.claim((batch, 0), "a", 100, 0) == MINE
    grants.filled((batch, 0), "a", 100)
    grants.heard("a", SidecarReport(held_rows=100), 1)
    flush = grants.next_batch(batch, 2)
    assert flush == BatchPlan(batch + 1, 0, 1000, Reason.FLUSH)
    grants.show(100)
    grants.commit(batch)
    assert grants.next_batch(batch + 1, 3) is None  # the messages are not acknowledged yet
    grants.heard("a", SidecarReport(), 4)
    refresh = grants.next_batch(batch + 1, 4)
    assert refresh == BatchPlan(batch + 2, 0, 1000, Reason.REFRESH)
    grants.show(0)
    assert grants.next_batch(batch + 2, 5) is None


def test_without_progress_there_is_no_batch_to_refresh_it(grants: Grants) -> None:
    batch = planned(grants, "a")
    grants.claim((batch, 0), "a", 100, 0)
    grants.heard("a", SidecarReport(), 1)
    assert grants.next_batch(batch, 2) is not None
    grants.commit(batch)
    assert grants.next_batch(batch + 1, 9) is None
