"""Where a Kafka source starts: the option's text, and the offsets it means. Pure.

What a reader would get wrong: offsets and timestamps that are given one by one must name every
partition that is read, no more and no fewer, as Spark demands; -2 stands for the earliest offset
and -1 for the latest, as in Spark's own JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from epochal.checkpoint.spark_json import LONG_MAX, LONG_MIN, JsonValue, parse_object
from epochal.connectors.kafka.offsets import Place
from epochal.errors import KafkaStartError, MalformedFileError, OptionError

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
_OFFSETS = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMES = '{"topicA":{"0":1700000000000,"1":1700000000000}}'
_PARTITIONS = '{"topicA":[0,1],"topicB":[2,4]}'
_CLIP = 120


class NoMatch(StrEnum):
    """What to do about a partition that has no record at or after the time."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Everywhere:
    """At the same end of every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """At offsets that are given one by one."""

    offsets: Mapping[Place, int]


@dataclass(frozen=True, slots=True)
class AtTimes:
    """At the first record that is not older; None stands for every partition that is not named."""

    times_ms: Mapping[Place, int]
    everywhere_ms: int | None
    no_match: NoMatch


Starting: TypeAlias = Everywhere | AtOffsets | AtTimes


def parse_starting(
    offsets: str, by_timestamp: str | None, timestamp_ms: int | None, no_match: NoMatch
) -> Starting:
    """What the options say, in Spark's order of preference."""
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
                f"kafka: startingOffsets: {topic}-{partition} cannot start at {offset}: an offset "
                f"is not negative; -1 stands for the latest, -2 for the earliest."
            )
    return AtOffsets(found)


def parse_assigned(text: str) -> tuple[Place, ...]:
    """The partitions in `{"topic":[0,1]}`."""
    places: list[Place] = []
    for topic, numbers in _object(text, "assign", _PARTITIONS).items():
        if not isinstance(numbers, list):
            raise _wrong(text, "assign", _PARTITIONS)
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise _wrong(text, "assign", _PARTITIONS)
            places.append((topic, number))
    if not places:
        raise OptionError(f"kafka: assign must name a partition, and is {text[:_CLIP]!r}.")
    return tuple(dict.fromkeys(places))


def asked_times(starting: AtTimes, places: Iterable[Place]) -> dict[Place, int]:
    """The time to ask each partition for."""
    if starting.everywhere_ms is not None:
        return dict.fromkeys(places, starting.everywhere_ms)
    check_named("TIMESTAMP", "startingOffsetsByTimestamp", starting.times_ms, places)
    return dict(starting.times_ms)


def found_offsets(
    starting: AtTimes, asked: Mapping[Place, int], found: Mapping[Place, int | None]
) -> dict[Place, int]:
    """The offsets for times that were asked for; `LATEST_OFFSET` where that is to be taken."""
    offsets: dict[Place, int] = {}
    for place, time_ms in asked.items():
        offset = found.get(place)
        if offset is None and starting.no_match is NoMatch.ERROR:
            raise KafkaStartError(
                "",
                f"{_name(place)} has no record at or after timestamp {time_ms}",
                "start it at its end with startingOffsetsByTimestampStrategy=latest, or give an "
                "earlier time",
            )
        offsets[place] = LATEST_OFFSET if offset is None else offset
    return offsets


def settled(
    wanted: Mapping[Place, int], earliest: Mapping[Place, int], latest: Mapping[Place, int]
) -> tuple[dict[Place, int], list[tuple[str, str]]]:
    """Where to start, and what of it is out of range: (kind of loss, what happened).

    A start before the oldest record is moved to it; one behind the end, to the end, as in Spark. A
    partition that has no range was deleted meanwhile, and is left out.
    """
    offsets: dict[Place, int] = {}
    outside: list[tuple[str, str]] = []
    for place, at in wanted.items():
        first, last = earliest.get(place), latest.get(place)
        if first is None or last is None:
            told = f"{_name(place)} was deleted before it was read"
            outside.append(("INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", told))
            continue
        offsets[place] = {EARLIEST_OFFSET: first, LATEST_OFFSET: last}.get(at, at)
        has = f"{_name(place)} has offsets from {first} to {last}"
        if at > last:
            told = f"{has}: it cannot start at {at}, and would start at {last}"
            outside.append(("PARTITION_OFFSET_CHANGED", told))
            offsets[place] = last
        elif 0 <= at < first:
            told = f"{has}: it cannot start at {at}, and would start at {first}"
            outside.append(("COULD_NOT_READ_OFFSET_RANGE", told))
            offsets[place] = first
    return offsets, outside


def check_named(kind: str, option: str, named: Iterable[Place], assigned: Iterable[Place]) -> None:
    """Refuse a start that leaves a partition out, or names one that is not read."""
    given, there = set(named), set(assigned)
    if given != there:
        raise KafkaStartError(
            f"KAFKA_{kind}_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            f"{option} must name the partitions that are read, no more and no fewer. It names "
            f"{_names(given)}; to be read are {_names(there)}",
            "name them all; -1 stands for the latest offset, -2 for the earliest",
        )


def _numbers(text: str, option: str, example: str) -> dict[Place, int]:
    found: dict[Place, int] = {}
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


def _names(places: Iterable[Place]) -> str:
    return ", ".join(map(_name, sorted(places))) or "none"


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"
