"""From the offsets of sources to commit requests for groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochal.connectors.kafka.offsets import (
    Cluster,
    CommitRequest,
    CommitTarget,
    Mark,
    Position,
    commit_requests,
    parse_offsets,
)

ONE = Cluster.of({"bootstrap.servers": "one:9092"})
TWO = Cluster.of({"bootstrap.servers": "two:9092"})


def position(*ends: str | None) -> Position:
    return Position("q", 7, ends)


def commit_request(
    cluster: Cluster, group: str, offsets: dict[tuple[str, int], int]
) -> CommitRequest:
    return CommitRequest(cluster, group, "q", 7, offsets)


def test_the_end_offset_is_the_next_to_read_and_is_committed_unchanged() -> None:
    assert commit_requests(position('{"t":{"1":789,"0":456}}'), [CommitTarget("g", ONE, 0)]) == [
        commit_request(ONE, "g", {("t", 0): 456, ("t", 1): 789})
    ]


def test_each_source_is_committed_to_its_own_group_if_it_has_one() -> None:
    ends = position('{"a":{"0":1}}', '{"b":{"0":2}}', '{"c":{"0":3}}')
    assert commit_requests(ends, [CommitTarget("g1", ONE, 0), CommitTarget("g2", TWO, 2)]) == [
        commit_request(ONE, "g1", {("a", 0): 1}),
        commit_request(TWO, "g2", {("c", 0): 3}),
    ]


def test_sources_that_share_a_group_make_one_request() -> None:
    ends = position('{"a":{"0":1}}', '{"b":{"0":2}}')
    assert commit_requests(ends, [CommitTarget("g", ONE, 0), CommitTarget("g", ONE, 1)]) == [
        commit_request(ONE, "g", {("a", 0): 1, ("b", 0): 2})
    ]


def test_of_two_sources_on_one_partition_the_lower_offset_counts() -> None:
    ends = position('{"a":{"0":10}}', '{"a":{"0":4}}')
    assert commit_requests(ends, [CommitTarget("g", ONE, 0), CommitTarget("g", ONE, 1)]) == [
        commit_request(ONE, "g", {("a", 0): 4})
    ]


def test_a_target_for_all_sources_skips_those_that_are_not_kafka() -> None:
    ends = position('{"logOffset":3}', '{"a":{"0":1}}', "42", None, "None")
    assert commit_requests(ends, [CommitTarget("g", ONE)]) == [
        commit_request(ONE, "g", {("a", 0): 1})
    ]


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
