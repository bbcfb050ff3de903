"""Computes a source's new offset from its current one and the user's request. Pure.

A checkpoint does not record the kinds of its sources, so they are inferred from the form of the
offsets. A Kafka offset maps topics to partitions. A file source's offset is a batch of its log. A
rate source's offset is a number.

Note: every offset names the *next* row to read, except that of a file source. It names the last
batch that was read, and is -1 before the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from epochal.checkpoint.file_log import kafka_offsets_json, parse_kafka_offsets
from epochal.checkpoint.spark_json import LONG_MAX, JsonValue, to_json
from epochal.errors import MalformedFileError, OptionError

TopicOffsets: TypeAlias = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class ToOffset:
    """To these offsets: JSON, or `topic:partition:offset`. Other partitions do not change."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """Forward by a number of rows or log batches; backward if it is negative."""

    count: int


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """To the earliest offset that still exists."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """To the end, so that only new data is read."""


@dataclass(frozen=True, slots=True)
class ToTime:
    """To the first record that was written at or after a time."""

    moment_ms: int


Target: TypeAlias = ToOffset | ShiftBy | ToEarliest | ToLatest | ToTime

Asked: TypeAlias = ToEarliest | ToLatest | ToTime
AskBroker: TypeAlias = Callable[
    [Mapping[str, tuple[int, ...]], Asked], Mapping[str, Mapping[int, int]]
]
"""Returns the offset of each given topic and partition for a target."""


def no_broker(*_: object) -> NoReturn:
    """Raise the error for a target that only a broker can answer, when none is configured."""
    raise OptionError(
        "Only the broker knows these offsets of a Kafka source. Pass --bootstrap-servers, or give "
        "the offsets with --to-offset."
    )


def move(
    current: str | None,
    target: Target,
    *,
    latest_log_batch: int | None = None,
    ask_broker: AskBroker = no_broker,
) -> str:
    """Return the JSON of the new offset of a source whose offset is `current`."""
    if current is None:
        if isinstance(target, ToOffset) and len(target.values) == 1:
            return _json_text(target.values[0])
        raise OptionError(
            "This source has no offset yet, so it cannot be moved. Give a complete offset with "
            "--to-offset JSON."
        )
    parsed = _parse(current)
    if is_kafka(parsed):
        return _move_kafka(parse_kafka_offsets(current, "the offset"), target, ask_broker)
    if isinstance(parsed, dict) and set(parsed) == {"logOffset"}:
        batch = _move_number(_number(parsed["logOffset"]), target, -1, latest_log_batch)
        if latest_log_batch is not None and batch > latest_log_batch:
            raise OptionError(
                f"The source's log ends at {latest_log_batch}, so the source cannot continue from "
                f"{batch}. Choose an offset up to {latest_log_batch}."
            )
        return to_json({"logOffset": batch})
    if isinstance(parsed, int) and not isinstance(parsed, bool):
        return str(_move_number(parsed, target, 0, None))
    if isinstance(target, ToOffset) and len(target.values) == 1:
        return _json_text(target.values[0])
    raise OptionError(
        f"The offset {current} belongs to a source of unknown kind: give the complete new offset "
        f"with --to-offset JSON."
    )


def goes_back(current: str | None, moved: str) -> bool:
    """Whether the source would read rows again."""
    if current is None:
        return False
    old, new = _parse(current), _parse(moved)
    if isinstance(old, dict) and isinstance(new, dict):
        if is_kafka(old) and is_kafka(new):
            before, after = parse_kafka_offsets(current, ""), parse_kafka_offsets(moved, "")
            return any(
                after.get(topic, {}).get(partition, LONG_MAX) < offset
                for topic, partitions in before.items()
                for partition, offset in partitions.items()
            )
        return _number(new.get("logOffset", 0)) < _number(old.get("logOffset", 0))
    if isinstance(old, int) and isinstance(new, int):
        return new < old
    return False


def new_partitions(current: str | None, moved: str) -> list[str]:
    """The partitions of topics that only the new offset of a Kafka source has: `orders:3`."""
    if current is None or not is_kafka(_parse(current)) or not is_kafka(_parse(moved)):
        return []
    before, after = parse_kafka_offsets(current, ""), parse_kafka_offsets(moved, "")
    return [
        f"{topic}:{partition}"
        for topic, offsets in after.items()
        for partition in offsets
        if partition not in before.get(topic, {})
    ]


def is_file_offset(offset: str | None) -> bool:
    if offset is None:
        return False
    parsed = _parse(offset)
    return isinstance(parsed, dict) and set(parsed) == {"logOffset"}


def parse_topic_offsets(values: tuple[str, ...]) -> TopicOffsets:
    """Parse and merge `topic:partition:offset` and Kafka's JSON. Later values win."""
    offsets: TopicOffsets = {}
    for value in values:
        if value.lstrip().startswith("{"):
            try:
                by_topic = parse_kafka_offsets(value, "--to-offset")
            except MalformedFileError as error:
                raise OptionError(f"--to-offset {value}: {error.reason}.") from None
            for topic, partitions in by_topic.items():
                offsets.setdefault(topic, {}).update(partitions)
            continue
        topic, _, rest = value.partition(":")
        number, _, offset = rest.partition(":")
        numbers = (number, offset)
        if not (topic and all(text.isdecimal() and len(text) < 20 for text in numbers)):
            raise OptionError(
                f"--to-offset {value!r} cannot be parsed: give JSON such as "
                f'{{"topic":{{"0":42}}}}, or TOPIC:PARTITION:OFFSET.'
            )
        offsets.setdefault(topic, {})[int(number)] = int(offset)
    return offsets


def _move_kafka(
    current: Mapping[str, Mapping[int, int]], target: Target, ask_broker: AskBroker
) -> str:
    moved: TopicOffsets = {topic: dict(partitions) for topic, partitions in current.items()}
    match target:
        case ToOffset(values):
            for topic, partitions in parse_topic_offsets(values).items():
                moved.setdefault(topic, {}).update(partitions)
        case ShiftBy(count):
            for partitions in moved.values():
                for partition, offset in partitions.items():
                    partitions[partition] = max(0, offset + count)
        case ToEarliest() | ToLatest() | ToTime():
            asked = {topic: tuple(sorted(partitions)) for topic, partitions in moved.items()}
            answer = ask_broker(asked, target)
            for topic, numbers in asked.items():
                for partition in numbers:
                    if partition not in answer.get(topic, ()):
                        raise OptionError(
                            f"The broker did not answer for {topic}:{partition}: the partition "
                            f"does not exist any more, or this is another broker. Give the offset "
                            f"with --to-offset."
                        )
                    moved[topic][partition] = answer[topic][partition]
    for topic, partitions in moved.items():
        for partition, offset in partitions.items():
            if not 0 <= offset <= LONG_MAX:
                raise OptionError(
                    f"{topic}:{partition}: {offset} is not a valid offset. Use a number from 0 to "
                    f"{LONG_MAX}."
                )
    return kafka_offsets_json(moved)


def _move_number(current: int, target: Target, earliest: int, latest: int | None) -> int:
    match target:
        case ToOffset((value,)):
            given = _parse(_json_text(value))
            number = given.get("logOffset") if isinstance(given, dict) else given
            return max(earliest, _number(number))
        case ShiftBy(count):
            return max(earliest, current + count)
        case ToEarliest():
            return earliest
        case ToLatest() if latest is not None:
            return latest
        case _:
            raise OptionError(
                f"The offset {current} of this source can be moved only with --to-offset, "
                f"--shift-by or --to-earliest."
            )


def is_kafka(parsed: object) -> bool:
    """Whether a parsed offset belongs to a Kafka source."""
    return (
        isinstance(parsed, dict)
        and bool(parsed)
        and all(
            isinstance(partitions, dict)
            and all(key.isdecimal() and isinstance(value, int) for key, value in partitions.items())
            for partitions in parsed.values()
        )
    )


def _parse(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(f"{text[:200]!r} is not a valid offset: it is not JSON.") from None
    return value


def _json_text(value: str) -> str:
    return to_json(_parse(value))


def _number(value: JsonValue) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{value!r} is not a valid offset of this source: it is not a number.")
    return value
