"""The logs of sources and of the file sink: what was read or written, or where a source began.

Every `interval`-th batch is named `N.compact` and contains all live entries, so a reader needs only
the newest compact file and the batches after it.

Note: The interval is derived from the compact files on disk, not taken from the setting alone. A
log that was started with another interval must stay readable.

The logs of Kafka and rate sources have one entry, batch 0: where the source started.

Note: The file of the Kafka source starts with a byte that has no meaning but must be there. Spark
2.1.0 wrote a length there, and readers still skip this byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt
from typing import Annotated, Generic, TypeAlias, TypeVar

import msgspec

from epochal.checkpoint.layout import COMPACT_SUFFIX
from epochal.checkpoint.metadata_log import (
    INT_MAX,
    MetadataLog,
    parse_batch_id,
    parse_version,
    storage_errors,
    verify_batch_ids,
)
from epochal.checkpoint.spark_json import (
    LONG_MAX,
    LONG_MIN,
    parse_object,
    text_lines,
    text_of,
    to_json,
)
from epochal.clock import Clock, SystemClock
from epochal.errors import (
    EditError,
    MalformedFileError,
    MissingBatchError,
    OptionError,
    StorageError,
)
from epochal.files import Files, join_url

FILE_LOG_VERSION = 1
SOURCE_LOG_VERSION = 1

DEFAULT_COMPACT_INTERVAL = 10
DEFAULT_CLEANUP_DELAY_MS = 10 * 60 * 1000
DEFAULT_MIN_BATCHES_TO_RETAIN = 100


Long: TypeAlias = Annotated[int, msgspec.Meta(ge=LONG_MIN, le=LONG_MAX)]


# Structs and not dataclasses, because a compact file may have a million lines: msgspec reads them
# into structs six times faster than the json module reads them into dictionaries.
class SinkFileStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A file that the sink has written. The path is URI-encoded."""

    path: str
    size: Long
    is_dir: bool
    modification_time: Long
    block_replication: Long
    block_size: Long
    action: str


class FileEntry(msgspec.Struct, frozen=True, rename="camel"):
    """A file that the source has read, and the batch of the source's log that added it."""

    path: str
    timestamp: Long
    batch_id: Long


E = TypeVar("E", bound=SinkFileStatus | FileEntry)


def batch_id_of_file_name(name: str) -> int | None:
    """The batch id in `N` or `N.compact`; None for other names."""
    return parse_batch_id(name.removesuffix(COMPACT_SUFFIX))


def is_compaction_batch(batch_id: int, interval: int) -> bool:
    """Whether the file of `batch_id` is a compact file."""
    return (batch_id + 1) % interval == 0


def compaction_inputs(batch_id: int, interval: int) -> range:
    """The batches that a compaction reads: the previous compact file and all batches after it."""
    assert is_compaction_batch(batch_id, interval), f"{batch_id} is not a compaction batch"
    return range(max(0, batch_id - interval), batch_id)


def live_batches(batch_id: int, interval: int) -> range:
    """The batches that together contain all live entries up to `batch_id`."""
    return range(max(0, (batch_id + 1) // interval * interval - 1), batch_id + 1)


def next_compaction_batch(batch_id: int, interval: int) -> int:
    """The first compaction batch after `batch_id`."""
    return (batch_id + interval + 1) // interval * interval - 1


def first_batch_to_keep(batch_id: int, interval: int, min_batches_to_retain: int) -> int | None:
    """The compaction batch below which files are obsolete after `batch_id`; None if none are."""
    oldest = batch_id + 1 - min_batches_to_retain
    return oldest - oldest % interval - 1 if interval <= oldest else None


_MOST_TRIED = 1_000_000


def derive_compact_interval(default: int, compact_batches: Sequence[int]) -> int:
    """Derive the interval of a log from the ids of its compact files and the setting.

    With two compact files, the interval is the difference of their ids. With one, of batch L, the
    interval must divide L + 1, and the smallest such divisor that is not below the setting is used.
    """
    if not compact_batches:
        return default
    newest = sorted(compact_batches)[-2:]
    if len(newest) == 2:
        return newest[1] - newest[0]
    length = newest[0] + 1
    if default < length // 2:
        return next(divisor for divisor in _divisors(length) if divisor >= default)
    return length


def _divisors(number: int) -> list[int]:
    # A name in a log may claim any number. No log has as many batches as that takes to search.
    small = [i for i in range(1, min(isqrt(number), _MOST_TRIED) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


class FileLogFormat(Generic[E]):
    """A version line, then one line of JSON per entry."""

    def __init__(self, entry_type: type[E]) -> None:
        self._decoder: msgspec.json.Decoder[E] = msgspec.json.Decoder(entry_type)
        self._encoder = msgspec.json.Encoder()

    def serialize(self, entry: Iterable[E]) -> bytes:
        lines = [f"v{FILE_LOG_VERSION}".encode()]
        lines.extend(self._line(value) for value in entry)
        return b"\n".join(lines)

    def deserialize(self, data: bytes, path: str) -> tuple[E, ...]:
        header, *lines = data.splitlines() or [b""]
        parse_version("".join(text_lines(header, path)), FILE_LOG_VERSION, path)
        decode = self._decoder.decode
        try:
            return tuple([decode(line) for line in lines])
        except RecursionError:
            raise MalformedFileError(path, "its JSON is nested too deeply to be read") from None
        except UnicodeDecodeError as error:
            raise MalformedFileError(path, f"not UTF-8 text ({error.reason})") from None
        except msgspec.MsgspecError as error:
            raise MalformedFileError(path, f"a line is not an entry: {error}") from None

    def _line(self, value: E) -> bytes:
        line = self._encoder.encode(value)
        if b"\\u" in line:  # msgspec writes hex digits in lower case, Jackson in upper case
            return to_json(msgspec.to_builtins(value)).encode()
        return line


class CompactibleFileLog(MetadataLog[tuple[E, ...]]):
    """A log of file entries with compaction (CompactibleFileStreamLog).

    With `deletion`, files that a compaction made obsolete are deleted once they are
    `cleanup_delay_ms` old. The delay lets a reader that has just listed the log still read them.
    """

    def __init__(
        self,
        location: str | Files,
        *,
        read_only: bool = False,
        compact_interval: int = DEFAULT_COMPACT_INTERVAL,
        deletion: bool = True,
        cleanup_delay_ms: int = DEFAULT_CLEANUP_DELAY_MS,
        min_batches_to_retain: int = DEFAULT_MIN_BATCHES_TO_RETAIN,
        clock: Clock | None = None,
    ) -> None:
        if compact_interval <= 0:
            raise OptionError(f"compactInterval must be positive, not {compact_interval}.")
        super().__init__(location, read_only=read_only)
        self._default_interval = compact_interval
        self._deletion = deletion
        self._cleanup_delay_ms = cleanup_delay_ms
        self._min_batches_to_retain = min_batches_to_retain
        self._clock = clock or SystemClock()

    @cached_property
    def compact_interval(self) -> int:
        """The interval of this log, derived at first use from the files on disk."""
        compact: set[int] = set()
        for batch_id, info in self.batch_files():
            if info.name.endswith(COMPACT_SUFFIX):
                if not 0 <= batch_id < INT_MAX:
                    url = self._url_of(info.name)
                    raise MalformedFileError(url, "its batch id is out of range")
                compact.add(batch_id)
        return derive_compact_interval(self._default_interval, sorted(compact))

    def path_of(self, batch_id: int) -> str:
        compact = is_compaction_batch(batch_id, self.compact_interval)
        return f"{batch_id}{COMPACT_SUFFIX}" if compact else str(batch_id)

    def batch_id_of(self, name: str) -> int | None:
        return batch_id_of_file_name(name)

    def retains(self, entry: E, now_ms: int) -> bool:
        """Whether an entry is still live."""
        del entry, now_ms
        return True

    def add(self, batch_id: int, entry: Iterable[E]) -> bool:
        """Write the entries of one batch; a compaction batch includes all earlier live entries."""
        self._refuse_if_read_only("write to")
        entries = tuple(entry)
        if is_compaction_batch(batch_id, self.compact_interval):
            # Before the inputs are read: if another run has compacted them, they may be gone.
            name = self.path_of(batch_id)
            with storage_errors(self._url_of(name)):
                if self.files.info(name) is not None:
                    return False
            now_ms = self._clock.now_ms()
            inputs = compaction_inputs(batch_id, self.compact_interval)
            merged = [entry for other in inputs for entry in self._existing(other)]
            entries = tuple(e for e in (*merged, *entries) if self.retains(e, now_ms))
        added = super().add(batch_id, entries)
        if added and self._deletion:
            self._delete_expired(batch_id)
        return added

    def purge(self, before: int) -> None:
        """Raise EditError: these logs delete their obsolete files themselves."""
        raise EditError(
            self.url, f"cannot purge below {before}: this log deletes its obsolete files itself"
        )

    def all_files(self) -> list[E]:
        """Read every live entry.

        Another process may compact the log and delete files meanwhile. If a file is missing but the
        next compact file exists, reading starts over from that.
        """
        now_ms = self._clock.now_ms()
        latest = self.latest_batch_id()
        while latest is not None and latest >= 0:
            try:
                return [
                    entry
                    for batch_id in live_batches(latest, self.compact_interval)
                    for entry in self._existing(batch_id)
                    if self.retains(entry, now_ms)
                ]
            except (MissingBatchError, StorageError):
                wanted = next_compaction_batch(latest, self.compact_interval)
                latest = self.latest_batch_id()
                if latest is None or latest < wanted:
                    raise
        return []

    def _delete_expired(self, batch_id: int) -> None:
        keep = first_batch_to_keep(batch_id, self.compact_interval, self._min_batches_to_retain)
        if keep is None:
            return
        expired_ms = self._clock.now_ms() - self._cleanup_delay_ms
        for other, info in self.batch_files():
            if other < keep and info.modified_ms <= expired_ms:
                self._delete(info.name)


class FileSinkLog(CompactibleFileLog[SinkFileStatus]):
    """The log in `_spark_metadata`: the committed files of an output directory."""

    default_format = FileLogFormat(SinkFileStatus)

    def __init__(
        self,
        location: str | Files,
        *,
        read_only: bool = False,
        retention_ms: int | None = None,
        compact_interval: int = DEFAULT_COMPACT_INTERVAL,
        deletion: bool = True,
        cleanup_delay_ms: int = DEFAULT_CLEANUP_DELAY_MS,
        min_batches_to_retain: int = DEFAULT_MIN_BATCHES_TO_RETAIN,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(
            location,
            read_only=read_only,
            compact_interval=compact_interval,
            deletion=deletion,
            cleanup_delay_ms=cleanup_delay_ms,
            min_batches_to_retain=min_batches_to_retain,
            clock=clock,
        )
        self._retention_ms = retention_ms

    def retains(self, entry: SinkFileStatus, now_ms: int) -> bool:
        return self._retention_ms is None or now_ms - entry.modification_time <= self._retention_ms


class FileSourceLog(CompactibleFileLog[FileEntry]):
    """The log in `sources/N` of a file source; its batch ids are the source's `logOffset`."""

    default_format = FileLogFormat(FileEntry)

    def get_range(
        self, start: int | None = None, end: int | None = None
    ) -> list[tuple[int, tuple[FileEntry, ...]]]:
        """The files that each batch added, also for compaction batches and for deleted batches.

        Entries have the id of the batch that added them, so a compact file supplies both.
        """
        if start is not None and end is not None and start > end:
            raise OptionError(
                f"{self.url}: the range starts at batch {start}, after its end {end}."
            )
        on_disk = self.batch_ids()
        wanted = range(start or 0, (on_disk[-1] if end is None and on_disk else end or 0) + 1)
        entries_by_batch: dict[int, tuple[FileEntry, ...]] = {}
        for batch_id in on_disk:
            if batch_id in wanted and (entries := self.get(batch_id)) is not None:
                entries_by_batch[batch_id] = tuple(
                    entry for entry in entries if entry.batch_id == batch_id
                )
        if len(entries_by_batch) < wanted.stop - wanted.start and on_disk and on_disk[-1] >= 0:
            # Some batches of the range are not on disk any more. The newest compact file has their
            # entries.
            compact = live_batches(on_disk[-1], self.compact_interval)[0]
            compacted: dict[int, list[FileEntry]] = {}
            for entry in self.get(compact) or ():
                if entry.batch_id in wanted:
                    compacted.setdefault(entry.batch_id, []).append(entry)
            entries_by_batch = {n: tuple(es) for n, es in compacted.items()} | entries_by_batch
        batches = sorted(entries_by_batch.items())
        verify_batch_ids([batch_id for batch_id, _ in batches], start, end, self.url)
        return batches


KafkaOffsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition. As starting offsets, -2 is the earliest and -1 the latest."""


def parse_kafka_offsets(text: str, path: str) -> KafkaOffsets:
    """Parse the JSON of a Kafka source's offsets, such as `{"topic":{"0":23}}`."""
    by_topic: dict[str, dict[int, int]] = {}
    for topic, partitions in parse_object(text, path).items():
        if not isinstance(partitions, dict):
            raise MalformedFileError(path, f"topic {topic!r} must have a JSON object of partitions")
        offsets = by_topic[topic] = {}
        for number, offset in partitions.items():
            if not (number.isascii() and number.isdigit() and len(number) <= 10):
                reason = f"topic {topic!r}: {number[:40]!r} is not a partition number"
                raise MalformedFileError(path, reason)
            if type(offset) is not int or not LONG_MIN <= offset <= LONG_MAX:
                reason = f"topic {topic!r}: {str(offset)[:40]} is not an offset"
                raise MalformedFileError(path, reason)
            offsets[int(number)] = offset
    return by_topic


def kafka_offsets_json(offsets: KafkaOffsets) -> str:
    """Format offsets as the Kafka source writes them: JSON makes texts of the partitions."""
    return to_json({topic: dict(partitions) for topic, partitions in offsets.items()})


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
        text = text_of(data[1:], path)
        legacy = not text.startswith("v")
        offsets = text if legacy else _after_version(text, path)
        return KafkaInitialOffsets(parse_kafka_offsets(offsets, path), legacy)


class RateFormat:
    """A version line, then the time the source was created, in milliseconds."""

    def serialize(self, entry: int) -> bytes:
        return f"v{SOURCE_LOG_VERSION}\n{entry}".encode()

    def deserialize(self, data: bytes, path: str) -> int:
        text = _after_version(text_of(data, path), path)
        created_ms = parse_batch_id(text.strip())
        if created_ms is None:
            raise MalformedFileError(
                path, f"its second line must be a time in milliseconds, not {text[:40]!r}"
            )
        return created_ms


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

    default_format = KAFKA_INITIAL_OFFSET_FORMAT


class RateLog(MetadataLog[int]):
    """The log in `sources/N` of a rate source: when it was created."""

    default_format = RATE_FORMAT


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
