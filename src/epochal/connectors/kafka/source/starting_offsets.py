"""Parses the options that set where a Kafka source starts, and finds the offsets. Pure.

As in Spark, offsets or timestamps that are given per partition must name exactly the partitions
that are read. In the JSON, -2 stands for the earliest offset and -1 for the latest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from epochal.checkpoint.spark_json import LONG_MAX, LONG_MIN, JsonValue, parse_object
from epochal.connectors.kafka.offsets import KafkaPartition
from epochal.connectors.kafka.source.source_offsets import partition_id
from epochal.errors import KafkaStartError, MalformedFileError, OptionError

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
_OFFSETS = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMES = '{"topicA":{"0":1700000000000,"1":1700000000000}}'
_PARTITIONS = '{"topicA":[0,1],"topicB":[2,4]}'
_CLIP = 120


class NoMatch(StrEnum):
    """What to do with a partition that has no record at or after the time."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Everywhere:
    """Start at the same end, earliest or latest, of every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Start at an offset that is given for each partition."""

    offsets: Mapping[KafkaPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """Start at the first record at or after a time: one time for all, or one per partition."""

    times_ms: Mapping[KafkaPartition, int]
    everywhere_ms: int | None
    no_match: NoMatch


Starting: TypeAlias = Everywhere | AtOffsets | AtTimes


def parse_starting(
    offsets: str, by_timestamp: str | None, timestamp_ms: int | None, no_match: NoMatch
) -> Starting:
    """The start that the options choose, in Spark's order of preference."""
    if timestamp_ms is not None:
        return AtTimes({}, timestamp_ms, no_match)
    if by_timestamp is not None:
        return AtTimes(_numbers(by_timestamp, "startingOffsetsByTimestamp", _TIMES), None, no_match)
    match offsets.strip().lower():
        case "earliest":
            return Everywhere(EARLIEST_OFFSET)
        case "latest":
            return Everywhere(LATEST_OFFSET)
    found = _numbers(offsets, "startingOffsets", f"earliest, latest or {_OFFSETS}")
    for (topic, partition), offset in found.items():
        if offset < EARLIEST_OFFSET:
            raise OptionError(
                f"kafka: startingOffsets: {topic}-{partition} cannot start at {offset}, because an "
                f"offset is not negative. Use -1 for the latest offset, -2 for the earliest."
            )
    return AtOffsets(found)


def parse_assigned(text: str) -> tuple[KafkaPartition, ...]:
    """The partitions in `{"topic":[0,1]}`."""
    partitions: list[KafkaPartition] = []
    for topic, numbers in _object(text, "assign", _PARTITIONS).items():
        if not isinstance(numbers, list):
            raise _wrong(text, "assign", _PARTITIONS)
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise _wrong(text, "assign", _PARTITIONS)
            partitions.append((topic, number))
    if not partitions:
        raise OptionError(
            f"kafka: assign must name at least one partition, but it is {text[:_CLIP]!r}. Write "
            f"it as {_PARTITIONS}."
        )
    return tuple(dict.fromkeys(partitions))


def asked_times(
    starting: AtTimes, partitions: Iterable[KafkaPartition]
) -> dict[KafkaPartition, int]:
    """The time to look up in each partition."""
    if starting.everywhere_ms is not None:
        return dict.fromkeys(partitions, starting.everywhere_ms)
    check_named("TIMESTAMP", "startingOffsetsByTimestamp", starting.times_ms, partitions)
    return dict(starting.times_ms)


def offsets_for_times(
    starting: AtTimes,
    asked: Mapping[KafkaPartition, int],
    found: Mapping[KafkaPartition, int | None],
) -> dict[KafkaPartition, int]:
    """The offsets for the requested times; `LATEST_OFFSET` if a partition starts at its end."""
    offsets: dict[KafkaPartition, int] = {}
    for tp, time_ms in asked.items():
        offset = found.get(tp)
        if offset is None and starting.no_match is NoMatch.ERROR:
            raise KafkaStartError(
                "",
                f"{partition_id(tp)} has no record at or after timestamp {time_ms}",
                "start it at its end with startingOffsetsByTimestampStrategy=latest, or give an "
                "earlier time",
            )
        offsets[tp] = LATEST_OFFSET if offset is None else offset
    return offsets


def settled(
    wanted: Mapping[KafkaPartition, int],
    earliest: Mapping[KafkaPartition, int],
    latest: Mapping[KafkaPartition, int],
) -> tuple[dict[KafkaPartition, int], list[tuple[str, str]]]:
    """The offsets to start at, and the starts that were out of range: (kind of loss, message).

    As in Spark, a start before the oldest record moves to it, and a start after the end moves to
    the end. A partition without a range was deleted meanwhile, and is left out.
    """
    offsets: dict[KafkaPartition, int] = {}
    outside: list[tuple[str, str]] = []
    for tp, at in wanted.items():
        first, last = earliest.get(tp), latest.get(tp)
        if first is None or last is None:
            reason = f"{partition_id(tp)} was deleted before it was read"
            outside.append(("INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", reason))
            continue
        offsets[tp] = {EARLIEST_OFFSET: first, LATEST_OFFSET: last}.get(at, at)
        range_text = f"{partition_id(tp)} has offsets from {first} to {last}"
        if at > last:
            reason = f"{range_text}: it cannot start at {at}, and would start at {last}"
            outside.append(("PARTITION_OFFSET_CHANGED", reason))
            offsets[tp] = last
        elif 0 <= at < first:
            reason = f"{range_text}: it cannot start at {at}, and would start at {first}"
            outside.append(("COULD_NOT_READ_OFFSET_RANGE", reason))
            offsets[tp] = first
    return offsets, outside


def check_named(
    kind: str, option: str, named: Iterable[KafkaPartition], assigned: Iterable[KafkaPartition]
) -> None:
    """Raise if a start omits a partition that is read, or names one that is not."""
    given, there = set(named), set(assigned)
    if given != there:
        raise KafkaStartError(
            f"KAFKA_{kind}_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            f"{option} must name exactly the partitions that are read. It names "
            f"{_names(given)}; to be read are {_names(there)}",
            "name all of them; use -1 for the latest offset, -2 for the earliest",
        )


def _numbers(text: str, option: str, example: str) -> dict[KafkaPartition, int]:
    found: dict[KafkaPartition, int] = {}
    for topic, partitions in _object(text, option, example).items():
        if not isinstance(partitions, dict):
            raise _wrong(text, option, example)
        for partition, number in partitions.items():
            if not (partition.isascii() and partition.isdigit() and len(partition) <= 10):
                raise _wrong(text, option, example)
            if isinstance(number, bool) or not isinstance(number, int):
                raise _wrong(text, option, example)
            if not LONG_MIN <= number <= LONG_MAX:
                raise _wrong(text, option, example)
            found[topic, int(partition)] = number
    return found


def _object(text: str, option: str, example: str) -> dict[str, JsonValue]:
    try:
        return parse_object(text, option)
    except MalformedFileError:
        raise _wrong(text, option, example) from None


def _wrong(text: str, option: str, example: str) -> OptionError:
    return OptionError(f"kafka: {option} must be {example}, not {text[:_CLIP]!r}.")


def _names(partitions: Iterable[KafkaPartition]) -> str:
    return ", ".join(map(partition_id, sorted(partitions))) or "none"
