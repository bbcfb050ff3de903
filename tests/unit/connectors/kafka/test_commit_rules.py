"""What may be committed, by which query, and when to retry."""

from __future__ import annotations

import random

import pytest
from tests.unit.connectors.kafka.cluster import CLUSTER, OTHER, QUERY, commit_request

from epochal.connectors.kafka.commit_rules import (
    FIRST_RETRY_SECONDS,
    LAST_RETRY_SECONDS,
    Claims,
    CommitPlan,
    CommittedOffset,
    merge_requests,
    plan_commit,
    retry_seconds,
    servers_key,
)
from epochal.connectors.kafka.committer.listener_inbox import (
    Ended,
    FinishedBatch,
    ListenerEvent,
    ListenerInbox,
    Started,
)
from epochal.connectors.kafka.offsets import Cluster, CommitRequest, Mark, Position

PARTITION = ("t", 0)


def committed(offset: int, query: str | None = None) -> dict[tuple[str, int], CommittedOffset]:
    return {PARTITION: CommittedOffset(offset, "" if query is None else Mark(query, 0).to_text())}


def test_a_group_without_offsets_gets_them() -> None:
    plan = plan_commit(commit_request(5), {}, owned=False, allow_backwards=False)
    assert plan == CommitPlan({PARTITION: 5})


def test_a_group_moves_forward() -> None:
    plan = plan_commit(commit_request(5), committed(3, QUERY), owned=True, allow_backwards=False)
    assert plan == CommitPlan({PARTITION: 5})


def test_never_moves_a_group_backwards() -> None:
    plan = plan_commit(commit_request(3), committed(5, QUERY), owned=True, allow_backwards=False)
    assert plan == CommitPlan({}, behind={PARTITION: (5, 3)})


def test_moves_a_group_backwards_when_asked() -> None:
    plan = plan_commit(commit_request(3), committed(5, QUERY), owned=True, allow_backwards=True)
    assert plan == CommitPlan({PARTITION: 3})


def test_an_offset_that_is_already_committed_is_not_committed_again() -> None:
    assert plan_commit(
        commit_request(5), committed(5, QUERY), owned=True, allow_backwards=False
    ) == CommitPlan({})
    assert plan_commit(
        commit_request(5), committed(5), owned=False, allow_backwards=False
    ) == CommitPlan({})


def test_takes_over_the_group_of_another_query_and_reports_it() -> None:
    plan = plan_commit(commit_request(5), committed(5, OTHER), owned=False, allow_backwards=False)
    assert plan == CommitPlan({PARTITION: 5}, taken_from=OTHER)


def test_stops_when_another_query_took_the_group() -> None:
    plan = plan_commit(commit_request(9), committed(5, OTHER), owned=True, allow_backwards=True)
    assert plan == CommitPlan({}, taken_by=OTHER)


def test_offsets_committed_by_other_tools_do_not_count_as_another_query() -> None:
    plan = plan_commit(commit_request(9), committed(2), owned=True, allow_backwards=False)
    assert plan == CommitPlan({PARTITION: 9})


def test_partitions_are_decided_one_by_one() -> None:
    both = CommitRequest(CLUSTER, "g", QUERY, 1, {("t", 0): 5, ("t", 1): 5, ("t", 2): 5})
    there = {("t", 0): CommittedOffset(9), ("t", 1): CommittedOffset(1)}
    assert plan_commit(both, there, owned=False, allow_backwards=False) == CommitPlan(
        {("t", 1): 5, ("t", 2): 5}, behind={("t", 0): (9, 5)}
    )


@pytest.mark.parametrize("seed", range(100))
def test_no_sequence_of_requests_moves_a_group_backwards(seed: int) -> None:
    rng = random.Random(seed)
    there: dict[tuple[str, int], CommittedOffset] = {}
    for _ in range(50):
        offsets = {("t", rng.randrange(3)): rng.randrange(100) for _ in range(3)}
        asked = CommitRequest(CLUSTER, "g", QUERY, 0, offsets)
        plan = plan_commit(asked, there, owned=True, allow_backwards=False)
        for tp, offset in plan.commit.items():
            assert tp not in there or offset > there[tp].offset
            there[tp] = CommittedOffset(offset)


def test_pending_keeps_the_newest_of_each_partition() -> None:
    older = CommitRequest(CLUSTER, "g", QUERY, 1, {("t", 0): 5, ("gone", 0): 7})
    newer = CommitRequest(CLUSTER, "g", QUERY, 2, {("t", 0): 3, ("new", 0): 1})
    merged = {("t", 0): 3, ("gone", 0): 7, ("new", 0): 1}
    assert merge_requests(older, newer) == CommitRequest(CLUSTER, "g", QUERY, 2, merged)
    assert merge_requests(None, newer) is newer


def test_another_query_s_pending_offsets_are_not_mixed_in() -> None:
    theirs = CommitRequest(CLUSTER, "g", OTHER, 1, {("theirs", 0): 5})
    assert merge_requests(theirs, commit_request(3)) == commit_request(3)


def test_waits_longer_after_each_failure_up_to_a_limit() -> None:
    waits = [retry_seconds(n, 1.0) for n in range(1, 12)]
    assert waits[:4] == [FIRST_RETRY_SECONDS * 2**n for n in range(4)]
    assert waits[-1] == LAST_RETRY_SECONDS
    assert retry_seconds(10_000, 1.0) == LAST_RETRY_SECONDS
    assert retry_seconds(1, 0.0) == FIRST_RETRY_SECONDS / 2


def test_the_first_query_keeps_a_group_until_it_ends() -> None:
    claims = Claims()
    assert claims.claim(CLUSTER, "g", QUERY) is None
    assert claims.claim(CLUSTER, "g", QUERY) is None
    assert claims.claim(CLUSTER, "g", OTHER) == QUERY
    assert claims.claim(CLUSTER, "h", OTHER) is None
    claims.release(QUERY)
    assert claims.claim(CLUSTER, "g", OTHER) is None


def test_the_same_brokers_in_another_order_are_the_same_cluster() -> None:
    one, two = ({"bootstrap.servers": text} for text in ("a:1, B:2", "b:2,a:1,"))
    assert servers_key(Cluster.of(one)) == servers_key(Cluster.of(two)) == "a:1,b:2"


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
