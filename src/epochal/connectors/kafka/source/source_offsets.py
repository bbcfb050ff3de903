"""Converts between the engine's positions, Kafka offsets and Spark's offset JSON. Pure.

Note: Spark writes topics and partitions in the iteration order of a Scala hash map, not sorted by
name. The same order is produced here, so the bytes of a checkpoint do not depend on the engine that
wrote it, and equal offsets have equal texts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from epochal.checkpoint.source_logs import KafkaOffsets, parse_kafka_offsets
from epochal.checkpoint.spark_json import to_json
from epochal.connectors.contract import Offset, Position, Positions
from epochal.connectors.kafka.offsets import KafkaPartition
from epochal.errors import MalformedFileError

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
    """Offsets as the engine's positions."""
    return {partition_id(tp): str(offset) for tp, offset in offsets.items()}


def to_offsets(positions: Positions) -> dict[KafkaPartition, int]:
    """The engine's positions as offsets."""
    return {parse_partition_id(partition): int(at) for partition, at in positions.items()}


def parse_logged(offset: Offset) -> dict[KafkaPartition, int]:
    """The offsets in an entry of the offset log."""
    found = parse_kafka_offsets(offset, "kafka offset")
    for topic, partitions in found.items():
        for number, at in partitions.items():
            if at < 0:
                raise MalformedFileError(
                    "kafka offset", f"{topic}-{number} is at {at}, but offsets are not negative"
                )
    return {(topic, n): at for topic, partitions in found.items() for n, at in partitions.items()}


def spark_json(offsets: Mapping[KafkaPartition, int]) -> Offset:
    """`{"topic":{"0":23}}` as Spark writes it."""
    return to_json(
        {
            topic: {str(number): at for number, at in partitions.items()}
            for topic, partitions in spark_order(offsets).items()
        }
    )


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
        hashes.setdefault(key, _improved(hash_of(key)))
    # Iteration goes by bucket; within a bucket, nodes are linked in the order of their hash.
    return sorted(hashes, key=lambda key: (hashes[key] & (table_size - 1), hashes[key]))


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


def partition_names(partitions: Iterable[KafkaPartition], most: int = 5) -> str:
    """Partitions for a message: the first few, and the number of others."""
    ordered = sorted(partitions)
    text = ", ".join(map(partition_id, ordered[:most]))
    return text if len(ordered) <= most else f"{text} and {len(ordered) - most} more"
