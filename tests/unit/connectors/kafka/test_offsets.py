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


A, B, C = '{"a":{"0":10,"1":9}}', '{"b":{"0":2}}', '{"c":{"0":3}}'


@pytest.mark.parametrize(
    ("ends", "targets", "expected"),
    [
        ([A], [CommitTarget("g", ONE, 0)], [(ONE, "g", {("a", 0): 10, ("a", 1): 9})]),
        (
            [A, B, C],
            [CommitTarget("g1", ONE, 1), CommitTarget("g2", TWO, 2)],
            [(ONE, "g1", {("b", 0): 2}), (TWO, "g2", {("c", 0): 3})],
        ),
        (
            [B, C],
            [CommitTarget("g", ONE, 0), CommitTarget("g", ONE, 1)],
            [(ONE, "g", {("b", 0): 2, ("c", 0): 3})],
        ),
        (
            [B, '{"b":{"0":1}}'],
            [CommitTarget("g", ONE, 0), CommitTarget("g", ONE, 1)],
            [(ONE, "g", {("b", 0): 1})],
        ),
        (
            ['{"logOffset":3}', B, "42", None, "None"],
            [CommitTarget("g", ONE)],
            [(ONE, "g", {("b", 0): 2})],
        ),
        ([None], [CommitTarget("g", ONE, 0)], []),
        ([A], [CommitTarget("g", ONE, 5)], []),
    ],
    ids=["one", "apart", "one group", "the lower", "not of Kafka", "no offset", "no such source"],
)
def test_the_ends_of_sources_are_committed_to_the_groups_that_they_have(
    ends: list[str | None],
    targets: list[CommitTarget],
    expected: list[tuple[Cluster, str, dict[tuple[str, int], int]]],
) -> None:
    requests = [CommitRequest(cluster, group, "q", 7, at) for cluster, group, at in expected]
    assert commit_requests(Position("q", 7, tuple(ends)), targets) == requests


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


@pytest.mark.parametrize(
    ("offset", "there", "owned", "backwards", "plan"),
    [
        (5, {}, False, False, CommitPlan({PARTITION: 5})),
        (5, committed(3, QUERY), True, False, CommitPlan({PARTITION: 5})),
        (3, committed(5, QUERY), True, False, CommitPlan({}, behind={PARTITION: (5, 3)})),
        (3, committed(5, QUERY), True, True, CommitPlan({PARTITION: 3})),
        (5, committed(5, QUERY), True, False, CommitPlan({})),
        (5, committed(5), False, False, CommitPlan({})),
        (5, committed(5, OTHER), False, False, CommitPlan({PARTITION: 5}, taken_from=OTHER)),
        (9, committed(5, OTHER), True, True, CommitPlan({}, taken_by=OTHER)),
        (9, committed(2), True, False, CommitPlan({PARTITION: 9})),
    ],
    ids=[
        *("a new group", "forward", "never backwards", "backwards when asked", "there already"),
        *("there by another tool", "taken over", "taken away", "another tool is no query"),
    ],
)
def test_a_group_moves_forward_and_belongs_to_one_query(
    offset: int,
    there: dict[tuple[str, int], CommittedOffset],
    owned: bool,
    backwards: bool,
    plan: CommitPlan,
) -> None:
    request = commit_request(offset)
    assert plan_commit(request, there, owned=owned, allow_backwards=backwards) == plan


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


def test_the_same_brokers_in_another_order_are_the_same_cluster() -> None:
    one, two = ({"bootstrap.servers": text} for text in ("a:1, B:2", "b:2,a:1,"))
    assert servers_key(Cluster.of(one)) == servers_key(Cluster.of(two)) == "a:1,b:2"
