"""Positions of a Kafka source's partitions, and the offset JSON that Spark would write. Pure.

Spark's JSON has its topics and partitions in the order of a Scala hash map, which is not the order
of their names. The same order is made here, so that a checkpoint that went from one engine to the
other cannot be told by its bytes, and equal offsets are equal texts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from epochal.checkpoint.source_logs import KafkaOffsets, parse_kafka_offsets
from epochal.checkpoint.spark_json import to_json
from epochal.connectors.contract import Offset, Position, Positions
from epochal.connectors.kafka.offsets import Place
from epochal.errors import MalformedFileError

K = TypeVar("K", bound=Hashable)

_FIRST_TABLE = 16
_INT = 1 << 32


def partition_id(place: Place) -> str:
    """How the engine calls a partition, and Kafka's logs too."""
    return f"{place[0]}-{place[1]}"


def place_of(partition: str) -> Place:
    """The topic and number in an id that `partition_id` made."""
    topic, _, number = partition.rpartition("-")
    return topic, int(number)


def to_positions(offsets: Mapping[Place, int]) -> dict[str, Position]:
    """Offsets as the engine keeps them."""
    return {partition_id(place): str(offset) for place, offset in offsets.items()}


def to_offsets(positions: Positions) -> dict[Place, int]:
    """Offsets of the engine's positions."""
    return {place_of(partition): int(at) for partition, at in positions.items()}


def parse_logged(offset: Offset) -> dict[Place, int]:
    """The offsets in the text that Spark logged."""
    found = parse_kafka_offsets(offset, "kafka offset")
    for topic, partitions in found.items():
        for number, at in partitions.items():
            if at < 0:
                raise MalformedFileError(
                    "kafka offset", f"{topic}-{number} is at {at}, which is no offset"
                )
    return {(topic, n): at for topic, partitions in found.items() for n, at in partitions.items()}


def spark_json(offsets: Mapping[Place, int]) -> Offset:
    """`{"topic":{"0":23}}` as Spark writes it."""
    return to_json(
        {
            topic: {str(number): at for number, at in partitions.items()}
            for topic, partitions in spark_order(offsets).items()
        }
    )


def spark_order(offsets: Mapping[Place, int]) -> KafkaOffsets:
    """Offsets by topic and partition, in the order in which Spark writes them."""
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(offsets, key=lambda place: (_utf16(place[0]), place[1])):
        numbers.setdefault(topic, []).append(number)
    # Each partition puts its topic once more, and a table grows before it looks what is put.
    puts = [topic for topic, of_topic in numbers.items() for _ in of_topic]
    return {
        topic: {
            number: offsets[topic, number] for number in _scala_order(numbers[topic], lambda n: n)
        }
        for topic in _scala_order(puts, _java_hash)
    }


def _scala_order(puts: Sequence[K], hash_of: Callable[[K], int]) -> list[K]:
    """The keys of a `scala.collection.mutable.HashMap` after these puts, as it iterates."""
    table, there = _FIRST_TABLE, dict[K, int]()
    for key in puts:
        if len(there) + 1 >= table * 3 // 4:
            table *= 2
        there.setdefault(key, _improved(hash_of(key)))
    return sorted(there, key=lambda key: (there[key] & (table - 1), there[key]))


def _improved(code: int) -> int:
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


def named(places: Iterable[Place], most: int = 5) -> str:
    """Partitions for a message: the first few, and how many more."""
    ordered = sorted(places)
    text = ", ".join(map(partition_id, ordered[:most]))
    return text if len(ordered) <= most else f"{text} and {len(ordered) - most} more"
