"""Kafka offsets, Spark's JSON of them, and the options that set where a source starts. Pure.

As in Spark, offsets or timestamps that are given per partition must name exactly the partitions
that are read. In the JSON, -2 stands for the earliest offset and -1 for the latest.

Note: Spark writes topics and partitions in the iteration order of a Scala hash map, not sorted by
name. The same order is produced here, so the bytes of a checkpoint do not depend on the engine that
wrote it, and equal offsets have equal texts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, TypeVar

from epochal.checkpoint.file_log import KafkaOffsets, kafka_offsets_json, parse_kafka_offsets
from epochal.checkpoint.spark_json import parse_object
from epochal.connectors.contract import Offset, Position, Positions
from epochal.connectors.kafka.offsets import KafkaPartition
from epochal.errors import KafkaStartError, MalformedFileError, OptionError

K = TypeVar("K", bound=Hashable)

_INITIAL_TABLE_SIZE = 16
_INT = 1 << 32


def partition_id(tp: KafkaPartition) -> str:
    """The engine's id of a partition, `topic-0`; Kafka's own logs use the same form."""
    return f"{tp[0]}-{tp[1]}"


def parse_partition_id(partition: str) -> KafkaPartition:
    """The topic and number in an id; the inverse of `partition_id`."""
    topic, _, number = partition.rpartition("-")
    return topic, int(number)


def to_positions(offsets: Mapping[KafkaPartition, int]) -> dict[str, Position]:
    return {partition_id(tp): str(offset) for tp, offset in offsets.items()}


def to_offsets(positions: Positions) -> dict[KafkaPartition, int]:
    return {parse_partition_id(partition): int(at) for partition, at in positions.items()}


def by_partition(offsets: KafkaOffsets) -> dict[KafkaPartition, int]:
    """Offsets that are grouped by topic, by partition."""
    return {(topic, n): at for topic, partitions in offsets.items() for n, at in partitions.items()}


def parse_logged(offset: Offset) -> dict[KafkaPartition, int]:
    offsets = by_partition(parse_kafka_offsets(offset, "kafka offset"))
    for tp, at in offsets.items():
        if at < 0:
            raise MalformedFileError(
                "kafka offset", f"{partition_id(tp)} is at {at}, but offsets are not negative"
            )
    return offsets


def spark_json(offsets: Mapping[KafkaPartition, int]) -> Offset:
    """`{"topic":{"0":23}}` as Spark writes it."""
    return kafka_offsets_json(spark_order(offsets))


def spark_order(offsets: Mapping[KafkaPartition, int]) -> KafkaOffsets:
    """Offsets by topic and partition, in the order in which Spark writes them."""
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(offsets, key=lambda tp: (_utf16(tp[0]), tp[1])):
        numbers.setdefault(topic, []).append(number)
    # Spark puts a topic once per partition, and Scala's table may grow even if the key is already
    # there. So the topic must be repeated here to get the same table size.
    puts = [topic for topic, of_topic in numbers.items() for _ in of_topic]
    return {
        topic: {
            number: offsets[topic, number] for number in _scala_order(numbers[topic], lambda n: n)
        }
        for topic in _scala_order(puts, _java_hash)
    }


def _scala_order(puts: Sequence[K], hash_of: Callable[[K], int]) -> list[K]:
    """The keys of a `scala.collection.mutable.HashMap` after these puts, as it iterates."""
    table_size, hashes = _INITIAL_TABLE_SIZE, dict[K, int]()
    for key in puts:
        if len(hashes) + 1 >= table_size * 3 // 4:
            table_size *= 2
        hashes.setdefault(key, _improve_hash(hash_of(key)))
    # Iteration goes by bucket; within a bucket, nodes are linked in the order of their hash.
    return sorted(hashes, key=lambda key: (hashes[key] & (table_size - 1), hashes[key]))


def _improve_hash(code: int) -> int:
    """Scala folds the upper half of a hash code into the lower; the result is a signed int."""
    code &= _INT - 1
    code ^= code >> 16
    return code - _INT if code >= _INT >> 1 else code


def _java_hash(text: str) -> int:
    code = 0
    for unit in _utf16(text):
        code = (code * 31 + unit) & (_INT - 1)
    return code


def _utf16(text: str) -> list[int]:
    units = text.encode("utf-16-be")
    return [units[n] << 8 | units[n + 1] for n in range(0, len(units), 2)]


def partition_names(partitions: Iterable[KafkaPartition], most: int = 5) -> str:
    """Partitions for a message: the first few, and the number of others."""
    ordered = sorted(partitions)
    text = ", ".join(map(partition_id, ordered[:most]))
    return text if len(ordered) <= most else f"{text} and {len(ordered) - most} more"


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
    numbers = _numbers(offsets, "startingOffsets", f"earliest, latest or {_OFFSETS}")
    for (topic, partition), offset in numbers.items():
        if offset < EARLIEST_OFFSET:
            raise OptionError(
                f"kafka: startingOffsets: {topic}-{partition} cannot start at {offset}, because an "
                f"offset is not negative. Use -1 for the latest offset, -2 for the earliest."
            )
    return AtOffsets(numbers)


def parse_assigned(text: str) -> tuple[KafkaPartition, ...]:
    """The partitions in `{"topic":[0,1]}`."""
    try:
        by_topic = parse_object(text, "assign")
    except MalformedFileError:
        raise _wrong(text, "assign", _PARTITIONS) from None
    partitions: list[KafkaPartition] = []
    for topic, numbers in by_topic.items():
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


def wanted_offsets(
    starting: Starting,
    partitions: Sequence[KafkaPartition],
    at_times: Callable[[Mapping[KafkaPartition, int]], Mapping[KafkaPartition, int | None]],
) -> dict[KafkaPartition, int]:
    """Where partitions start; `EARLIEST_OFFSET` and `LATEST_OFFSET` stand for their ends.

    `at_times` looks up the first record at or after a time, in the partitions that it gets.
    """
    match starting:
        case Everywhere(offset):
            return dict.fromkeys(partitions, offset)
        case AtOffsets(offsets):
            _check_named("START", "startingOffsets", offsets, partitions)
            return dict(offsets)
    times_ms = starting.times_ms
    if starting.everywhere_ms is not None:
        times_ms = dict.fromkeys(partitions, starting.everywhere_ms)
    else:
        _check_named("TIMESTAMP", "startingOffsetsByTimestamp", times_ms, partitions)
    by_time = at_times(times_ms)
    wanted: dict[KafkaPartition, int] = {}
    for tp, time_ms in times_ms.items():
        offset_then = by_time.get(tp)
        if offset_then is None and starting.no_match is NoMatch.ERROR:
            raise KafkaStartError(
                "",
                f"{partition_id(tp)} has no record at or after timestamp {time_ms}",
                "start it at its end with startingOffsetsByTimestampStrategy=latest, or give an "
                "earlier time",
            )
        wanted[tp] = LATEST_OFFSET if offset_then is None else offset_then
    return wanted


def settle_start(
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


def _check_named(
    kind: str, option: str, named: Mapping[KafkaPartition, int], assigned: Sequence[KafkaPartition]
) -> None:
    """Raise if a start omits a partition that is read, or names one that is not."""
    if set(named) != set(assigned):
        names, others = (
            ", ".join(map(partition_id, sorted(set(tps)))) or "none" for tps in (named, assigned)
        )
        raise KafkaStartError(
            f"KAFKA_{kind}_OFFSET_DOES_NOT_MATCH_ASSIGNED",
            f"{option} must name exactly the partitions that are read. It names "
            f"{names}; to be read are {others}",
            "name all of them; use -1 for the latest offset, -2 for the earliest",
        )


def _numbers(text: str, option: str, example: str) -> dict[KafkaPartition, int]:
    try:
        return by_partition(parse_kafka_offsets(text, option))
    except MalformedFileError:
        raise _wrong(text, option, example) from None


def _wrong(text: str, option: str, example: str) -> OptionError:
    return OptionError(f"kafka: {option} must be {example}, not {text[:_CLIP]!r}.")
