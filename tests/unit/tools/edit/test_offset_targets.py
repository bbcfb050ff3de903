"""A source's new offset, computed from its current one and the user's request."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from epochal.errors import OptionError
from epochal.tools.edit.offset_targets import (
    ShiftBy,
    Target,
    ToEarliest,
    ToLatest,
    ToOffset,
    ToTime,
    goes_back,
    move,
)

KAFKA = '{"a":{"0":10,"1":20},"b":{"0":5}}'


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (ToOffset(('{"a":{"0":1}}',)), '{"a":{"0":1,"1":20},"b":{"0":5}}'),
        (ToOffset(("a:1:7", "b:0:0")), '{"a":{"0":10,"1":7},"b":{"0":0}}'),
        (ToOffset(("c:2:9",)), '{"a":{"0":10,"1":20},"b":{"0":5},"c":{"2":9}}'),
        (ShiftBy(-7), '{"a":{"0":3,"1":13},"b":{"0":0}}'),
        (ShiftBy(3), '{"a":{"0":13,"1":23},"b":{"0":8}}'),
    ],
)
def test_kafka_moves_only_the_partitions_that_were_named(target: Target, expected: str) -> None:
    assert move(KAFKA, target) == expected


@pytest.mark.parametrize("target", [ToEarliest(), ToLatest(), ToTime(1_700_000_000_000)])
def test_kafkas_ends_and_moments_are_the_brokers_to_say(target: Target) -> None:
    asked: list[object] = []

    def ask(
        partitions: Mapping[str, tuple[int, ...]], what: object
    ) -> Mapping[str, Mapping[int, int]]:
        asked.append((dict(partitions), what))
        return {"a": {0: 100, 1: 101}, "b": {0: 102}, "unasked": {0: 1}}

    moved = move(KAFKA, target, ask_broker=ask)
    assert moved == '{"a":{"0":100,"1":101},"b":{"0":102}}'
    assert asked == [({"a": (0, 1), "b": (0,)}, target)]


def test_a_partition_that_the_broker_does_not_know_is_named() -> None:
    with pytest.raises(OptionError, match="did not answer for a:1"):
        move(KAFKA, ToLatest(), ask_broker=lambda _, __: {"a": {0: 1}, "b": {0: 1}})


def test_without_a_broker_the_message_says_which_option_is_missing() -> None:
    with pytest.raises(OptionError, match="--bootstrap-servers"):
        move(KAFKA, ToEarliest())


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (ToOffset(("4",)), '{"logOffset":4}'),
        (ToOffset(('{"logOffset":4}',)), '{"logOffset":4}'),
        (ShiftBy(-2), '{"logOffset":5}'),
        (ShiftBy(-100), '{"logOffset":-1}'),
        (ToEarliest(), '{"logOffset":-1}'),
        (ToLatest(), '{"logOffset":9}'),
    ],
)
def test_a_file_source_moves_within_its_own_log(target: Target, expected: str) -> None:
    assert move('{"logOffset":7}', target, latest_log_batch=9) == expected


def test_a_file_source_cannot_go_beyond_its_log() -> None:
    with pytest.raises(OptionError, match="log ends at 9, so the source cannot continue from 12"):
        move('{"logOffset":7}', ShiftBy(5), latest_log_batch=9)


@pytest.mark.parametrize(
    ("target", "expected"), [(ToOffset(("3",)), "3"), (ShiftBy(-2), "5"), (ToEarliest(), "0")]
)
def test_a_number_is_moved_as_a_number(target: Target, expected: str) -> None:
    assert move("7", target) == expected


def test_an_unknown_form_can_only_be_replaced_whole() -> None:
    held = '{"offset":15,"timestamp":3000}'
    whole = '{"offset":5,"timestamp":1000}'
    assert move(held, ToOffset((whole,))) == whole
    with pytest.raises(OptionError, match="give the complete new offset"):
        move(held, ShiftBy(1))


def test_a_source_without_an_offset_needs_a_whole_one() -> None:
    assert move(None, ToOffset(('{"logOffset":1}',))) == '{"logOffset":1}'
    with pytest.raises(OptionError, match="has no offset yet"):
        move(None, ShiftBy(1))


@pytest.mark.parametrize(
    "value", ["a:1", "a:x:1", "a:1:-5", ":0:1", "a:\u00b2:1", f"a:0:{9:9<5000}", "{", '{"a":[1]}']
)
def test_what_is_no_offset_is_refused(value: str) -> None:
    with pytest.raises(OptionError, match="--to-offset"):
        move(KAFKA, ToOffset((value,)))


@pytest.mark.parametrize(
    ("current", "moved", "back"),
    [
        (KAFKA, '{"a":{"0":10,"1":20},"b":{"0":5}}', False),
        (KAFKA, '{"a":{"0":11,"1":19},"b":{"0":5}}', True),
        ('{"logOffset":7}', '{"logOffset":6}', True),
        ('{"logOffset":7}', '{"logOffset":8}', False),
        ("7", "6", True),
        (None, "6", False),
    ],
)
def test_going_back_is_noticed(current: str | None, moved: str, back: bool) -> None:
    assert goes_back(current, moved) is back
