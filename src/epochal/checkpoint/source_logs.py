"""The private logs of the Kafka and rate sources: one entry, batch 0, where the source started.

Note: The file of the Kafka source starts with a byte that has no meaning but must be there. Spark
2.1.0 wrote a length there, and readers still skip this byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from epochal.checkpoint.file_log import FileSourceLog
from epochal.checkpoint.metadata_log import (
    MetadataLog,
    parse_batch_id,
    parse_version,
    storage_errors,
)
from epochal.checkpoint.spark_json import LONG_MAX, LONG_MIN, JsonValue, parse_object, to_json
from epochal.errors import MalformedFileError
from epochal.files import Files, join_url

SOURCE_LOG_VERSION = 1

KafkaOffsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition. As starting offsets, -2 is the earliest and -1 the latest."""


def parse_kafka_offsets(text: str, path: str) -> KafkaOffsets:
    """Parse the JSON of a Kafka source's offsets, such as `{"topic":{"0":23}}`."""
    return {
        topic: {
            _partition(partition, topic, path): _offset(offset, topic, path)
            for partition, offset in _partitions(topic, partitions, path)
        }
        for topic, partitions in parse_object(text, path).items()
    }


def kafka_offsets_json(offsets: KafkaOffsets) -> str:
    """Format offsets as the Kafka source writes them."""
    return to_json(
        {
            topic: {str(partition): offset for partition, offset in partitions.items()}
            for topic, partitions in offsets.items()
        }
    )


def _partitions(topic: str, by_partition: JsonValue, path: str) -> list[tuple[str, JsonValue]]:
    if not isinstance(by_partition, dict):
        raise MalformedFileError(path, f"topic {topic!r} must have a JSON object of partitions")
    return list(by_partition.items())


def _partition(text: str, topic: str, path: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise MalformedFileError(path, f"topic {topic!r}: {text[:40]!r} is not a partition number")
    return int(text)


def _offset(value: JsonValue, topic: str, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not LONG_MIN <= value <= LONG_MAX:
        raise MalformedFileError(path, f"topic {topic!r}: {str(value)[:40]} is not an offset")
    return value


@dataclass(frozen=True, slots=True)
class KafkaInitialOffsets:
    """Where a Kafka source started."""

    offsets: KafkaOffsets
    legacy: bool = False
    """True for a file of Spark 2.1.0, which has no version line."""


class KafkaInitialOffsetFormat:
    """A byte, a version line, then the offsets as JSON."""

    def serialize(self, entry: KafkaInitialOffsets) -> bytes:
        text = kafka_offsets_json(entry.offsets).encode()
        if entry.legacy:
            return bytes([len(text) & 0xFF]) + text
        return b"\x00" + f"v{SOURCE_LOG_VERSION}\n".encode() + text

    def deserialize(self, data: bytes, path: str) -> KafkaInitialOffsets:
        text = _text(data[1:], path)
        if not text.startswith("v"):
            return KafkaInitialOffsets(parse_kafka_offsets(text, path), legacy=True)
        return KafkaInitialOffsets(parse_kafka_offsets(_after_version(text, path), path))


class RateFormat:
    """A version line, then the time the source was created, in milliseconds."""

    def serialize(self, entry: int) -> bytes:
        return f"v{SOURCE_LOG_VERSION}\n{entry}".encode()

    def deserialize(self, data: bytes, path: str) -> int:
        text = _after_version(_text(data, path), path)
        created_ms = parse_batch_id(text.strip())
        if created_ms is None:
            raise MalformedFileError(
                path, f"its second line must be a time in milliseconds, not {text[:40]!r}"
            )
        return created_ms


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedFileError(path, f"not UTF-8 text ({error.reason})") from None


def _after_version(text: str, path: str) -> str:
    version, newline, rest = text.partition("\n")
    parse_version(version.removesuffix("\r"), SOURCE_LOG_VERSION, path)
    if not newline:
        raise MalformedFileError(path, "it ends after its version line")
    return rest


KAFKA_INITIAL_OFFSET_FORMAT = KafkaInitialOffsetFormat()
RATE_FORMAT = RateFormat()


class KafkaInitialOffsetLog(MetadataLog[KafkaInitialOffsets]):
    """The log in `sources/N` of a Kafka source (KafkaSourceInitialOffsetWriter)."""

    def __init__(self, location: str | Files, *, read_only: bool = False) -> None:
        super().__init__(location, KAFKA_INITIAL_OFFSET_FORMAT, read_only=read_only)


class RateLog(MetadataLog[int]):
    """The log in `sources/N` of a rate source: when it was created."""

    def __init__(self, location: str | Files, *, read_only: bool = False) -> None:
        super().__init__(location, RATE_FORMAT, read_only=read_only)


SourceLog = FileSourceLog | KafkaInitialOffsetLog | RateLog


def open_source_log(files: Files) -> SourceLog | None:
    """Open the log of a source read-only, whatever kind it is; None if the directory is empty.

    The kind is recognized by the content. A Kafka log is one file that does not start with `v`, a
    rate log is one file with a number, and a file log has lines of JSON objects.
    """
    log = FileSourceLog(files, read_only=True)
    batches = log.batch_files()
    if not batches:
        return None
    batch_id, info = batches[0]
    with storage_errors(join_url(files.url, info.name)):
        head = files.read(info.name)[:4096]
    if batch_id != 0 or len(batches) > 1 or info.name != "0":
        return log
    if not head.startswith(b"v"):
        return KafkaInitialOffsetLog(files, read_only=True)
    lines = head.splitlines()
    if len(lines) == 2 and parse_batch_id(lines[1].decode(errors="replace")) is not None:
        return RateLog(files, read_only=True)
    return log
