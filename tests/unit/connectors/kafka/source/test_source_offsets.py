"""Positions and Spark's offset JSON."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from epochal.connectors.kafka.offsets import KafkaPartition
from epochal.connectors.kafka.source.source_offsets import (
    AtOffsets,
    AtTimes,
    NoMatch,
    Starting,
    parse_assigned,
    parse_logged,
    parse_partition_id,
    parse_starting,
    partition_id,
    partition_names,
    settle_start,
    to_offsets,
    to_positions,
    wanted_offsets,
)
from epochal.errors import KafkaStartError, MalformedFileError, OptionError


def test_a_partition_id_can_be_parsed_for_any_topic_name() -> None:
    for tp in [("t", 0), ("a-b", 12), ("a-1", 2), ("a.b_c", 999)]:
        assert parse_partition_id(partition_id(tp)) == tp


def test_positions_are_offsets() -> None:
    offsets = {("a", 0): 4, ("a", 1): 2**53}
    assert to_offsets(to_positions(offsets)) == offsets
    assert to_positions(offsets) == {"a-0": "4", "a-1": "9007199254740992"}


def test_offsets_that_spark_logged_are_read() -> None:
    assert parse_logged('{"t":{"1":5,"0":0}}') == {("t", 1): 5, ("t", 0): 0}
    assert parse_logged("{}") == {}


@pytest.mark.parametrize("text", ["", "5", '{"t":5}', '{"t":{"0":-1}}', '{"t":{"x":1}}'])
def test_negative_offsets_are_rejected(text: str) -> None:
    with pytest.raises(MalformedFileError):
        parse_logged(text)


def test_many_partitions_are_named_by_the_first_few() -> None:
    assert partition_names([("t", n) for n in range(7)]) == "t-0, t-1, t-2, t-3, t-4 and 2 more"


def starting(
    offsets: str = "latest", by_timestamp: str | None = None, timestamp_ms: int | None = None
) -> Starting:
    return parse_starting(offsets, by_timestamp, timestamp_ms, NoMatch.ERROR)


def test_a_time_for_all_overrides_times_per_partition_which_override_offsets() -> None:
    times = '{"t":{"0":7}}'
    assert starting("earliest", times, 9) == AtTimes({}, 9, NoMatch.ERROR)
    assert starting("earliest", times) == AtTimes({("t", 0): 7}, None, NoMatch.ERROR)


@pytest.mark.parametrize(
    "text",
    ["yesterday", "", "[]", '{"t":[0]}', '{"t":{"a":1}}', '{"t":{"0":1.5}}', '{"t":{"0":true}}'],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(OptionError, match=r"startingOffsets must be .*topicA.*not "):
        starting(text)


def test_an_offset_below_minus_two_is_rejected() -> None:
    with pytest.raises(OptionError, match=r"t-1 cannot start at -3"):
        starting('{"t":{"0":1,"1":-3}}')


def test_assigned_partitions_are_read_once_each() -> None:
    assert parse_assigned('{"a":[1,0,1],"b":[2]}') == (("a", 1), ("a", 0), ("b", 2))


@pytest.mark.parametrize("text", ["t", "{}", '{"t":[]}', '{"t":{"0":1}}', '{"t":[-1]}'])
def test_assignments_of_nothing_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="assign must"):
        parse_assigned(text)


def wanted(
    start: Starting, *numbers: int, records: Mapping[int, int | None] | None = None
) -> list[int]:
    """Where partitions start; `records` has their first offsets after the times."""

    def at_times(times_ms: Mapping[KafkaPartition, int]) -> dict[KafkaPartition, int | None]:
        assert times_ms == {("t", number): 9 for number in numbers}
        return {("t", number): offset for number, offset in (records or {}).items()}

    return list(wanted_offsets(start, [("t", number) for number in numbers], at_times).values())


def test_a_start_must_name_every_partition_and_no_other() -> None:
    assert wanted(AtOffsets({("t", 0): 5}), 0) == [5]
    with pytest.raises(KafkaStartError, match=r"names t-0, t-2; to be read are t-0, t-1") as caught:
        wanted(AtOffsets({("t", 0): 5, ("t", 2): 5}), 0, 1)
    assert caught.value.condition == "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"
    with pytest.raises(KafkaStartError) as caught:
        wanted(AtTimes({("t", 0): 9}, None, NoMatch.ERROR), 0, 1)
    assert caught.value.condition == "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"


def test_one_time_is_looked_up_in_every_partition() -> None:
    assert wanted(AtTimes({}, 9, NoMatch.ERROR), 0, 1, records={0: 4, 1: 7}) == [4, 7]


def test_no_record_after_a_time_is_an_error_or_the_end_as_configured() -> None:
    assert wanted(AtTimes({}, 9, NoMatch.LATEST), 0, 1, records={0: 4, 1: None}) == [4, -1]
    with pytest.raises(KafkaStartError, match="t-1 has no record at or after timestamp 9"):
        wanted(AtTimes({}, 9, NoMatch.ERROR), 0, 1, records={0: 4, 1: None})


def test_starts_are_moved_into_the_existing_range() -> None:
    partitions = [("t", n) for n in range(6)]
    wanted = dict(zip(partitions, [-2, -1, 5, 9, 3, 10], strict=True))
    offsets, outside = settle_start(
        wanted, dict.fromkeys(partitions, 4), dict.fromkeys(partitions, 9)
    )
    assert list(offsets.values()) == [4, 9, 5, 9, 4, 9]
    assert [kind for kind, _ in outside] == [
        "COULD_NOT_READ_OFFSET_RANGE",
        "PARTITION_OFFSET_CHANGED",
    ]
    assert (
        outside[1][1] == "t-5 has offsets from 4 to 9: it cannot start at 10, and would start at 9"
    )


def test_a_partition_without_a_range_is_left_out_and_reported() -> None:
    offsets, outside = settle_start({("t", 0): -2, ("t", 1): -2}, {("t", 0): 3}, {("t", 0): 5})
    assert offsets == {("t", 0): 3}
    assert [kind for kind, _ in outside] == ["INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS"]
