"""From the offsets of sources to commit requests; what may be committed, and when to retry."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.connectors.kafka.cluster import CLUSTER, OTHER, QUERY, commit_request

from epochal.connectors.kafka.offsets import (
    FIRST_RETRY_SECONDS,
    LAST_RETRY_SECONDS,
    Claims,
    Cluster,
    CommitPlan,
    CommitRequest,
    CommitTarget,
    CommittedOffset,
    Mark,
    Position,
    commit_requests,
    merge_requests,
    parse_offsets,
    plan_commit,
    retry_seconds,
    servers_key,
)

PARTITION = ("t", 0)
ONE = Cluster.of({"bootstrap.servers": "one:9092"})
TWO = Cluster.of({"bootstrap.servers": "two:9092"})


def position(*ends: str | None) -> Position:
    return Position("q", 7, ends)


def request_to(cluster: Cluster, group: str, offsets: dict[tuple[str, int], int]) -> CommitRequest:
    return CommitRequest(cluster, group, "q", 7, offsets)


def test_the_end_offset_is_the_next_to_read_and_is_committed_unchanged() -> None:
    assert commit_requests(position('{"t":{"1":789,"0":456}}'), [CommitTarget("g", ONE, 0)]) == [
        request_to(ONE, "g", {("t", 0): 456, ("t", 1): 789})
    ]


def test_each_source_is_committed_to_its_own_group_if_it_has_one() -> None:
    ends = position('{"a":{"0":1}}', '{"b":{"0":2}}', '{"c":{"0":3}}')
    assert commit_requests(ends, [CommitTarget("g1", ONE, 0), CommitTarget("g2", TWO, 2)]) == [
        request_to(ONE, "g1", {("a", 0): 1}),
        request_to(TWO, "g2", {("c", 0): 3}),
    ]


def test_sources_that_share_a_group_make_one_request() -> None:
    ends = position('{"a":{"0":1}}', '{"b":{"0":2}}')
    assert commit_requests(ends, [CommitTarget("g", ONE, 0), CommitTarget("g", ONE, 1)]) == [
        request_to(ONE, "g", {("a", 0): 1, ("b", 0): 2})
    ]


def test_of_two_sources_on_one_partition_the_lower_offset_counts() -> None:
    ends = position('{"a":{"0":10}}', '{"a":{"0":4}}')
    assert commit_requests(ends, [CommitTarget("g", ONE, 0), CommitTarget("g", ONE, 1)]) == [
        request_to(ONE, "g", {("a", 0): 4})
    ]


def test_a_target_for_all_sources_skips_those_that_are_not_kafka() -> None:
    ends = position('{"logOffset":3}', '{"a":{"0":1}}', "42", None, "None")
    assert commit_requests(ends, [CommitTarget("g", ONE)]) == [request_to(ONE, "g", {("a", 0): 1})]


def test_a_source_without_an_offset_makes_no_request() -> None:
    assert commit_requests(position(None), [CommitTarget("g", ONE, 0)]) == []
    assert commit_requests(position('{"a":{"0":1}}'), [CommitTarget("g", ONE, 5)]) == []


@pytest.mark.parametrize(
    "text",
    [
        *(None, "", "null", "None", "-", "42", "[]", "{}", '"x"', "{", '{"t":5}', '{"t":[0,1]}'),
        *('{"t":{"0":"5"}}', '{"t":{"x":5}}', '{"t":{"0":true}}', '{"t":{"0":1.5}}', "{1:{2:3}}"),
        *('{"logOffset":345}', '{"t":{"-1":5}}', "{__import__('os')}"),
        '{"t":{"%s":5}}' % ("9" * 5000),  # more digits than Python turns into a number
    ],
)
def test_text_that_is_not_a_kafka_offset_is_none(text: str | None) -> None:
    assert parse_offsets(text) is None


def test_earliest_and_latest_are_not_positions() -> None:
    assert parse_offsets('{"t":{"0":-2,"1":-1,"2":5}}') == {("t", 2): 5}


def test_the_form_of_spark_connect_before_4_1_is_read_too() -> None:
    assert parse_offsets("{'t': {'0': 5}}") == {("t", 0): 5}


@given(st.text(max_size=60))
def test_any_text_parses_to_offsets_or_none(text: str) -> None:
    assert parse_offsets("{" + text) is None or isinstance(parse_offsets("{" + text), dict)


@given(st.uuids(), st.integers(-1, 2**62))
def test_a_mark_names_the_query_that_wrote_it(query: object, batch: int) -> None:
    mark = Mark(str(query), batch)
    assert Mark.parse(mark.to_text()) == mark


@pytest.mark.parametrize("text", [None, "", "x", "{}", '{"epochal":2}', '{"epochal":1,"query":1}'])
def test_metadata_of_other_programs_is_not_a_mark(text: str | None) -> None:
    assert Mark.parse(text) is None


def test_a_cluster_does_not_show_its_password() -> None:
    assert "secret" not in repr(Cluster.of({"bootstrap.servers": "a", "sasl.password": "secret"}))


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
