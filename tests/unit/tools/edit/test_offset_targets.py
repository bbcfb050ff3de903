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


FILES, OTHER = '{"logOffset":7}', '{"offset":15,"timestamp":3000}'


@pytest.mark.parametrize(
    ("current", "target", "expected"),
    [
        # Of Kafka's partitions only those that are named move.
        (KAFKA, ToOffset(('{"a":{"0":1}}',)), '{"a":{"0":1,"1":20},"b":{"0":5}}'),
        (KAFKA, ToOffset(("a:1:7", "b:0:0")), '{"a":{"0":10,"1":7},"b":{"0":0}}'),
        (KAFKA, ToOffset(("c:2:9",)), '{"a":{"0":10,"1":20},"b":{"0":5},"c":{"2":9}}'),
        (KAFKA, ShiftBy(-7), '{"a":{"0":3,"1":13},"b":{"0":0}}'),
        (KAFKA, ShiftBy(3), '{"a":{"0":13,"1":23},"b":{"0":8}}'),
        (FILES, ToOffset(("4",)), '{"logOffset":4}'),
        (FILES, ToOffset(('{"logOffset":4}',)), '{"logOffset":4}'),
        (FILES, ShiftBy(-2), '{"logOffset":5}'),
        (FILES, ShiftBy(-100), '{"logOffset":-1}'),
        (FILES, ToEarliest(), '{"logOffset":-1}'),
        (FILES, ToLatest(), '{"logOffset":9}'),
        ("7", ToOffset(("3",)), "3"),
        ("7", ShiftBy(-2), "5"),
        ("7", ToEarliest(), "0"),
        # What has another form, or no offset yet, can only be replaced whole.
        (OTHER, ToOffset(('{"offset":5,"timestamp":1000}',)), '{"offset":5,"timestamp":1000}'),
        (None, ToOffset(('{"logOffset":1}',)), '{"logOffset":1}'),
    ],
)
def test_an_offset_moves_in_its_own_form(
    current: str | None, target: Target, expected: str
) -> None:
    assert move(current, target, latest_log_batch=9) == expected


@pytest.mark.parametrize(
    ("current", "target", "reason"),
    [
        (FILES, ShiftBy(5), "log ends at 9, so the source cannot continue from 12"),
        (OTHER, ShiftBy(1), "give the complete new offset"),
        (None, ShiftBy(1), "has no offset yet"),
        (KAFKA, ToEarliest(), "--bootstrap-servers"),
        *(
            (KAFKA, ToOffset((value,)), "--to-offset")
            for value in ("a:1", "a:x:1", "a:1:-5", ":0:1", "{", '{"a":[1]}')
        ),
    ],
)
def test_a_move_that_cannot_be_made_is_refused_with_the_reason(
    current: str | None, target: Target, reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        move(current, target, latest_log_batch=9)


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
