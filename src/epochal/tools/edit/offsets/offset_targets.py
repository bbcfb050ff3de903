"""Decides a source's new offset from its old one and what the user asked for. Pure.

A checkpoint does not say what its sources are; the form of their offsets does. Kafka is a map from
topics to partitions, a file source counts the batches of its own log, the rate source is a number.
What a reader would get wrong: every offset is where the *next* row is read, except a file source's,
which is the last batch that was read; before the first it is -1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from epochal.checkpoint.source_logs import kafka_offsets_json, parse_kafka_offsets
from epochal.checkpoint.spark_json import LONG_MAX, JsonValue, to_json
from epochal.errors import MalformedFileError, OptionError

TopicOffsets: TypeAlias = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class ToOffset:
    """Exactly there: JSON, or `topic:partition:offset`, which leaves other partitions alone."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """So many further, or back if negative."""

    count: int


@dataclass(frozen=True, slots=True)
class ToEarliest:
    """Everything that is still there."""


@dataclass(frozen=True, slots=True)
class ToLatest:
    """Only what is still to come."""


@dataclass(frozen=True, slots=True)
class ToTime:
    """What was written at or after a moment."""

    moment_ms: int


Target: TypeAlias = ToOffset | ShiftBy | ToEarliest | ToLatest | ToTime

AskBroker: TypeAlias = Callable[
    [Mapping[str, tuple[int, ...]], ToEarliest | ToLatest | ToTime], Mapping[str, Mapping[int, int]]
]
"""Topics with partitions, and a target; answers an offset for each of them."""


def no_broker(
    partitions: Mapping[str, tuple[int, ...]], target: ToEarliest | ToLatest | ToTime
) -> Mapping[str, Mapping[int, int]]:
    """What to say when only a broker can answer and none was named."""
    del partitions, target
    raise OptionError(
        "Only the broker knows these offsets of a Kafka source. Give --bootstrap-servers, or name "
        "the offsets with --to-offset."
    )


def move(
    current: str | None,
    target: Target,
    *,
    latest_log_batch: int | None = None,
    ask_broker: AskBroker = no_broker,
) -> str:
    """The JSON of the new offset of a source whose offset was `current`."""
    if current is None:
        if isinstance(target, ToOffset) and len(target.values) == 1:
            return _json_text(target.values[0])
        raise OptionError(
            "This source has no offset yet, so there is nothing to move from. Give a complete "
            "offset with --to-offset JSON."
        )
    held = _parse(current)
    if _is_kafka(held):
        return _move_kafka(parse_kafka_offsets(current, "the offset"), target, ask_broker)
    if isinstance(held, dict) and set(held) == {"logOffset"}:
        batch = _move_number(_number(held["logOffset"]), target, -1, latest_log_batch)
        if latest_log_batch is not None and batch > latest_log_batch:
            raise OptionError(
                f"The source's log ends at {latest_log_batch}; it cannot go on from {batch}."
            )
        return to_json({"logOffset": batch})
    if isinstance(held, int) and not isinstance(held, bool):
        return str(_move_number(held, target, 0, None))
    if isinstance(target, ToOffset) and len(target.values) == 1:
        return _json_text(target.values[0])
    raise OptionError(
        f"The offset {current} is of a source unknown here: give the new one whole, with "
        f"--to-offset JSON."
    )


def goes_back(current: str | None, moved: str) -> bool:
    """Whether anything would be read again."""
    if current is None:
        return False
    old, new = _parse(current), _parse(moved)
    if isinstance(old, dict) and isinstance(new, dict):
        if _is_kafka(old) and _is_kafka(new):
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


def is_file_offset(offset: str | None) -> bool:
    """Whether an offset is a file source's."""
    if offset is None:
        return False
    held = _parse(offset)
    return isinstance(held, dict) and set(held) == {"logOffset"}


def parse_places(values: tuple[str, ...]) -> TopicOffsets:
    """`topic:partition:offset` or Kafka's JSON, merged; later values win."""
    found: TopicOffsets = {}
    for value in values:
        if value.lstrip().startswith("{"):
            try:
                given = parse_kafka_offsets(value, "--to-offset")
            except MalformedFileError as error:
                raise OptionError(f"--to-offset {value}: {error.reason}.") from None
            for topic, partitions in given.items():
                found.setdefault(topic, {}).update(partitions)
            continue
        topic, partition, offset = _place(value)
        found.setdefault(topic, {})[partition] = offset
    return found


def _place(value: str) -> tuple[str, int, int]:
    topic, _, rest = value.partition(":")
    partition, _, offset = rest.partition(":")
    if not (topic and partition.isdigit() and offset.isdigit()):
        raise OptionError(
            f"--to-offset {value!r}: give JSON such as "
            f'{{"topic":{{"0":42}}}}, or TOPIC:PARTITION:OFFSET.'
        )
    return topic, int(partition), int(offset)


def _move_kafka(
    held: Mapping[str, Mapping[int, int]], target: Target, ask_broker: AskBroker
) -> str:
    moved: TopicOffsets = {topic: dict(partitions) for topic, partitions in held.items()}
    match target:
        case ToOffset(values):
            for topic, partitions in parse_places(values).items():
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
                    moved[topic][partition] = _answered(answer, topic, partition)
    for topic, partitions in moved.items():
        for partition, offset in partitions.items():
            if not 0 <= offset <= LONG_MAX:
                raise OptionError(f"{topic}:{partition}: {offset} is no offset.")
    return kafka_offsets_json(moved)


def _answered(answer: Mapping[str, Mapping[int, int]], topic: str, partition: int) -> int:
    try:
        return answer[topic][partition]
    except KeyError:
        raise OptionError(
            f"The broker did not answer for {topic}:{partition}: the partition is gone, or the "
            f"broker is another one. Name the offset with --to-offset."
        ) from None


def _move_number(held: int, target: Target, earliest: int, latest: int | None) -> int:
    match target:
        case ToOffset((value,)):
            given = _parse(_json_text(value))
            number = given.get("logOffset") if isinstance(given, dict) else given
            return max(earliest, _number(number))
        case ShiftBy(count):
            return max(earliest, held + count)
        case ToEarliest():
            return earliest
        case ToLatest() if latest is not None:
            return latest
        case _:
            raise OptionError(
                f"The offset {held} of this source can be moved with --to-offset, --shift-by or "
                f"--to-earliest only."
            )


def _is_kafka(held: JsonValue) -> bool:
    return (
        isinstance(held, dict)
        and bool(held)
        and all(
            isinstance(partitions, dict)
            and all(key.isdigit() and isinstance(value, int) for key, value in partitions.items())
            for partitions in held.values()
        )
    )


def _parse(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        raise OptionError(f"{text!r} is not JSON, so it is no offset.") from None
    return value


def _json_text(value: str) -> str:
    return to_json(_parse(value))


def _number(value: JsonValue) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionError(f"{value!r} is no number, so it is no offset of this source.")
    return value
