"""The entries in `offsets/N`, `commits/N` and `metadata`, and their file formats.

An entry that is read and written again has the same bytes, whichever release of Spark wrote it: an
entry remembers which keys it had, and in which order. Keys that Spark does not know are kept in
`extra`; Spark ignores them.

Offsets are JSON of the sources, and are kept as text. One that begins as an object, a list or a
string, and is not whole, makes its entry malformed: a full disk cuts off the last line, and its
source could not read it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace

from epochal.checkpoint.layout import DEFAULT_STORE, JOIN_STORES, METADATA, StoreKey
from epochal.checkpoint.metadata_log import MetadataLog, parse_version, storage_errors
from epochal.checkpoint.spark_json import (
    JsonValue,
    as_read,
    long_of,
    object_of,
    parse_json,
    parse_object,
    string_of,
    text_lines,
    to_json,
)
from epochal.errors import (
    CheckpointSwitchedError,
    ConcurrentUpdateError,
    MalformedFileError,
    OptionError,
)
from epochal.files import Files, join_url

OFFSET_LOG_VERSION = 2
COMMIT_LOG_VERSION = 3

VOID_OFFSET = "-"
_OPENED = ("{", "[", '"')
_SOURCE_KEYS = ("sourceId", "providerName", "apiVersion")
_SINK_KEYS = ("sinkName", "commitOffset", "providerName", "apiVersion")
_SWITCHED = "switched"

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True, slots=True)
class SourceMetadata:
    """A source in an offset entry of version 2."""

    source_id: str
    provider_name: str
    api_version: str


@dataclass(frozen=True, slots=True)
class ControlBatch:
    """Marks a batch that changed the checkpoint instead of reading data."""

    operation_type: str
    operation_info: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """Where batch N ends in every source; written before N runs.

    Version 1 has a tuple of offsets in the order of the plan, version 2 a dictionary by source id
    or name. An offset is JSON text of the source; None if the source has no offset yet.
    """

    version: int
    offsets: tuple[str | None, ...] | dict[str, str | None]
    watermark_ms: int = 0
    timestamp_ms: int = 0
    conf: Mapping[str, str] = field(default_factory=dict)
    source_metadata_info: Mapping[str, SourceMetadata] = field(default_factory=dict)
    control_batch_info: ControlBatch | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    keys: tuple[str, ...] | None = field(default=None, compare=False)
    """The keys of the metadata in the order they were read; None for all keys in Spark's order."""
    has_metadata: bool = field(default=True, compare=False)
    """False if the metadata line was empty, as in very old checkpoints."""

    def __post_init__(self) -> None:
        wanted = {1: tuple, 2: dict}.get(self.version)
        if wanted is None:
            raise OptionError(f"The version of an offset entry must be 1 or 2, not {self.version}.")
        if not isinstance(self.offsets, wanted):
            raise OptionError(
                f"An offset entry of version {self.version} needs a {wanted.__name__} of offsets, "
                f"not a {type(self.offsets).__name__}."
            )
        if self.version == 1 and (self.source_metadata_info or self.control_batch_info):
            raise OptionError(
                "Only offset entries of version 2 can hold source or control metadata."
            )
        named = self.offsets.items() if isinstance(self.offsets, dict) else enumerate(self.offsets)
        for source, offset in named:
            if (isinstance(source, str) and _breaks_line(source, ":")) or _breaks_line(offset):
                raise OptionError(
                    f"Source {source!r}: its name and its offset must not contain line breaks, and "
                    f"its name must not contain a colon, because the offset log has one line "
                    f"`NAME:OFFSET` per source."
                )

    @property
    def by_source(self) -> dict[str, str | None]:
        """The offsets by source: its position as text in version 1, its id or name in version 2."""
        if isinstance(self.offsets, dict):
            return dict(self.offsets)
        return {str(position): offset for position, offset in enumerate(self.offsets)}


def _breaks_line(text: str | None, *more: str) -> bool:
    return text is not None and any(mark in text for mark in ("\n", "\r", *more))


class OffsetFormat:
    """A version line, a line of metadata, and one line per source."""

    def serialize(self, entry: OffsetEntry) -> bytes:
        lines = [f"v{entry.version}", self._metadata(entry)]
        for source, offset in entry.by_source.items():
            text = VOID_OFFSET if offset is None else offset
            lines.append(text if entry.version == 1 else f"{source}:{text}")
        return "\n".join(lines).encode()

    def deserialize(self, data: bytes, path: str) -> OffsetEntry:
        lines = text_lines(data, path)
        version = parse_version(lines[0] if lines else "", OFFSET_LOG_VERSION, path)
        if len(lines) < 2:
            raise MalformedFileError(path, "it has no metadata after its version line")
        text = lines[1].strip()
        offsets: tuple[str | None, ...] | dict[str, str | None]
        if version == 1:
            offsets = tuple(_offset(line, path) for line in lines[2:])
        else:
            offsets = _keyed_offsets(lines[2:], path)
            if not text:
                raise MalformedFileError(path, "version 2 must have metadata in its second line")
        values = parse_object(text, path) if text else {}
        names = {"batchWatermarkMs", "batchTimestampMs", "conf"}
        if version == 2:
            names |= {"sourceMetadataInfo", "controlBatchInfo"}
        return OffsetEntry(
            version,
            offsets,
            watermark_ms=long_of(values, "batchWatermarkMs", path, 0),
            timestamp_ms=long_of(values, "batchTimestampMs", path, 0),
            conf=_conf(object_of(values, "conf", path), path),
            source_metadata_info=_source_metadata(values, path) if version == 2 else {},
            control_batch_info=_control_batch(values, path) if version == 2 else None,
            extra={key: value for key, value in values.items() if key not in names},
            keys=tuple(values),
            has_metadata=bool(text),
        )

    def _metadata(self, entry: OffsetEntry) -> str:
        values: dict[str, object] = {
            "batchWatermarkMs": entry.watermark_ms,
            "batchTimestampMs": entry.timestamp_ms,
            "conf": dict(entry.conf),
        }
        if entry.version == 2:
            values["sourceMetadataInfo"] = {
                source: dict(zip(_SOURCE_KEYS, astuple(info), strict=True))
                for source, info in entry.source_metadata_info.items()
            }
        if entry.control_batch_info is not None:
            control = {"operationType": entry.control_batch_info.operation_type}
            if entry.control_batch_info.operation_info is not None:
                control["operationInfo"] = entry.control_batch_info.operation_info
            values["controlBatchInfo"] = control
        fields = as_read(values | dict(entry.extra), entry.keys)
        return "" if not entry.has_metadata and not fields else to_json(fields)


def _offset(text: str, path: str) -> str | None:
    if text.startswith(_OPENED):
        parse_json(text, path)
    return None if text == VOID_OFFSET else text


def _keyed_offsets(lines: Sequence[str], path: str) -> dict[str, str | None]:
    offsets: dict[str, str | None] = {}
    for line in lines:
        source, colon, text = line.partition(":")
        if not colon:
            raise MalformedFileError(path, f"an offset must be `SOURCE:OFFSET`, not {line[:60]!r}")
        offsets[source] = _offset(text, path)
    return offsets


def _conf(values: Mapping[str, JsonValue], path: str) -> dict[str, str]:
    conf: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise MalformedFileError(path, f"conf {key} must be a string, not {str(value)[:60]}")
        conf[key] = str(value)
    return conf


def _source_metadata(values: dict[str, JsonValue], path: str) -> dict[str, SourceMetadata]:
    infos = object_of(values, "sourceMetadataInfo", path)
    return {
        source: SourceMetadata(
            *(string_of(object_of(infos, source, path), key, path) for key in _SOURCE_KEYS)
        )
        for source in infos
    }


def _control_batch(values: dict[str, JsonValue], path: str) -> ControlBatch | None:
    if values.get("controlBatchInfo") is None:
        return None
    info = object_of(values, "controlBatchInfo", path)
    has_info = info.get("operationInfo") is not None
    return ControlBatch(
        string_of(info, "operationType", path),
        string_of(info, "operationInfo", path) if has_info else None,
    )


@dataclass(frozen=True, slots=True)
class SinkMetadata:
    """A sink in a commit entry of version 3: the active one or an earlier one."""

    sink_name: str
    commit_offset: str
    provider_name: str
    api_version: str
    is_active: bool = True


StateUniqueIds = Mapping[int, tuple[tuple[str, ...], ...]]
"""For each operator id, and for each of its partitions, the ids of its stores' state files."""


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """Records that batch N is complete; written after N ran."""

    version: int = 1
    next_watermark_ms: int = 0
    """The watermark that the next batch starts with."""
    state_unique_ids: StateUniqueIds | None = None
    sink_metadata: Mapping[str, SinkMetadata] = field(default_factory=dict)
    extra: Mapping[str, JsonValue] = field(default_factory=dict)
    keys: tuple[str, ...] | None = field(default=None, compare=False)
    """The keys in the order they were read; None for all keys in Spark's order."""
    has_metadata: bool = field(default=True, compare=False)
    """False if the file had only a version line."""

    def __post_init__(self) -> None:
        if self.version not in (1, 2, 3):
            raise OptionError(
                f"The version of a commit entry must be 1, 2 or 3, not {self.version}."
            )
        if self.version == 1 and self.state_unique_ids:
            raise OptionError("A commit entry of version 1 cannot hold state ids; use version 2.")
        if self.version < 3 and self.sink_metadata:
            raise OptionError(
                f"A commit entry of version {self.version} cannot hold sinks; use version 3."
            )
        active = sum(sink.is_active for sink in self.sink_metadata.values())
        if self.version == 3 and active != 1:
            raise OptionError(
                f"A commit entry of version 3 needs exactly one active sink; {active} of its "
                f"{len(self.sink_metadata)} sinks are active."
            )

    @property
    def active_sink(self) -> SinkMetadata | None:
        """The sink that the batch was written to; None before version 3."""
        return next((sink for sink in self.sink_metadata.values() if sink.is_active), None)

    def state_id(self, operator: int, partition: int, store: str) -> str:
        """The unique id of the files that hold a store's version; empty if there is none."""
        partitions = (self.state_unique_ids or {}).get(operator, ())
        ids = partitions[partition] if partition < len(partitions) else ()
        place = JOIN_STORES.index(store) if store in JOIN_STORES else 0
        return ids[place] if place < len(ids) else ""

    def store_ids(self) -> dict[StoreKey, str]:
        """The unique id of every store's files, in the order of the entry."""
        return {
            StoreKey(operator, partition, store): unique_id
            for operator, partitions in (self.state_unique_ids or {}).items()
            for partition, ids in enumerate(partitions)
            for store, unique_id in zip(
                JOIN_STORES if len(ids) == len(JOIN_STORES) else (DEFAULT_STORE,), ids, strict=True
            )
        }

    def with_store_ids(self, ids: Mapping[StoreKey, str]) -> CommitEntry:
        """The entry with other ids, in this order; unchanged if it has none."""
        if not self.state_unique_ids:
            return self
        operators: dict[int, dict[int, tuple[str, ...]]] = {}
        for key, unique_id in ids.items():
            partitions = operators.setdefault(key.operator, {})
            partitions[key.partition] = (*partitions.get(key.partition, ()), unique_id)
        renamed = {number: tuple(parts.values()) for number, parts in operators.items()}
        return replace(self, state_unique_ids=renamed)

    @property
    def state_format_version(self) -> int:
        """The state checkpoint format that this commit implies: 2 if it has ids of state files."""
        return 2 if self.version == 2 or self.state_unique_ids is not None else 1


class CommitFormat:
    """A version line, then a line of JSON."""

    def serialize(self, entry: CommitEntry) -> bytes:
        values: dict[str, object] = {"nextBatchWatermarkMs": entry.next_watermark_ms}
        if entry.version > 1 and entry.state_unique_ids is not None:
            values["stateUniqueIds"] = {
                str(operator): [list(stores) for stores in partitions]
                for operator, partitions in entry.state_unique_ids.items()
            }
        if entry.version == 3:
            values["sinkMetadataMap"] = {
                name: dict(zip((*_SINK_KEYS, "isActive"), astuple(sink), strict=True))
                for name, sink in entry.sink_metadata.items()
            }
        fields = as_read(values | dict(entry.extra), entry.keys)
        if not entry.has_metadata and not fields:
            return f"v{entry.version}".encode()
        return f"v{entry.version}\n{to_json(fields)}".encode()

    def deserialize(self, data: bytes, path: str) -> CommitEntry:
        lines = text_lines(data, path)
        version = parse_version(lines[0].strip() if lines else "", COMMIT_LOG_VERSION, path)
        values = parse_object(lines[1], path) if len(lines) > 1 else {}
        names = {"nextBatchWatermarkMs", "stateUniqueIds", "sinkMetadataMap"}
        if version < 3:
            names.discard("sinkMetadataMap")
        if version < 2:
            names.discard("stateUniqueIds")
        try:
            return CommitEntry(
                version,
                long_of(values, "nextBatchWatermarkMs", path, 0),
                _unique_ids(values, path) if version > 1 else None,
                _sinks(values, path) if version == 3 else {},
                extra={key: value for key, value in values.items() if key not in names},
                keys=tuple(values),
                has_metadata=len(lines) > 1,
            )
        except OptionError as error:
            raise MalformedFileError(path, str(error).rstrip(".")) from None


def _unique_ids(values: dict[str, JsonValue], path: str) -> StateUniqueIds | None:
    if values.get("stateUniqueIds") is None:
        return None
    ids: dict[int, tuple[tuple[str, ...], ...]] = {}
    for operator, partitions in object_of(values, "stateUniqueIds", path).items():
        if not (operator.isascii() and operator.isdigit() and len(operator) < 20):
            raise MalformedFileError(
                path, f"stateUniqueIds: {operator[:40]!r} is not an operator id"
            )
        if not isinstance(partitions, list):
            raise MalformedFileError(path, f"stateUniqueIds of {operator} must be a list of lists")
        groups: list[tuple[str, ...]] = []
        for stores in partitions:
            if not isinstance(stores, list) or not all(isinstance(text, str) for text in stores):
                raise MalformedFileError(path, "stateUniqueIds must hold lists of lists of strings")
            groups.append(tuple(map(str, stores)))
        ids[int(operator)] = tuple(groups)
    return ids


def _sinks(values: dict[str, JsonValue], path: str) -> dict[str, SinkMetadata]:
    sinks: dict[str, SinkMetadata] = {}
    for name in (named := object_of(values, "sinkMetadataMap", path)):
        sink = object_of(named, name, path)
        is_active = sink.get("isActive", True)
        if not isinstance(is_active, bool):
            raise MalformedFileError(path, f"isActive of sink {name!r} must be true or false")
        sink_name, offset, provider, api = (string_of(sink, key, path) for key in _SINK_KEYS)
        sinks[name] = SinkMetadata(sink_name, offset, provider, api, is_active)
    return sinks


OFFSET_FORMAT = OffsetFormat()
COMMIT_FORMAT = CommitFormat()


class OffsetLog(MetadataLog[OffsetEntry]):
    """The write-ahead log in `offsets` (OffsetSeqLog)."""

    default_format = OFFSET_FORMAT


class CommitLog(MetadataLog[CommitEntry]):
    """The log of complete batches in `commits`."""

    default_format = COMMIT_FORMAT


@dataclass(frozen=True, slots=True)
class Switched:
    """Where the query of a checkpoint went, from the file `metadata` of the checkpoint it left.

    The file has no id, so that no release of Spark starts, and Epochal refuses with the reason.
    Spark's error quotes what it finds in place of the id, so the file says it there, too.
    """

    to: str
    """The checkpoint on which it goes on."""
    epoch: int
    """The last epoch here."""
    new_epoch: int
    """The epoch of the other checkpoint after which it went on."""
    query_id: str
    """The id that was in the file."""

    def serialize(self) -> bytes:
        """The bytes of the file."""
        names = ("to", "epoch", "newEpoch", "queryId")
        notice = {f"The query was switched after epoch {self.epoch}. It goes on at": self.to}
        fields = dict(zip(names, astuple(self), strict=True))
        return to_json({_SWITCHED: fields, "id": notice}).encode()


def parse_switched(data: bytes, path: str) -> Switched | None:
    """Parse the bytes of `metadata`; None if the query has not gone elsewhere."""
    if not data.startswith(f'{{"{_SWITCHED}":'.encode()):
        return None
    fields = object_of(parse_object(data.decode(errors="replace"), path), _SWITCHED, path)
    return Switched(
        string_of(fields, "to", path),
        long_of(fields, "epoch", path),
        long_of(fields, "newEpoch", path),
        string_of(fields, "queryId", path),
    )


@dataclass(frozen=True, slots=True)
class QueryMetadata:
    """The query's id, from the file `metadata`; it stays the same over all restarts."""

    id: str

    def __post_init__(self) -> None:
        if not _UUID.fullmatch(self.id):
            raise OptionError(f"A query id must be a UUID, not {self.id[:60]!r}.")

    def serialize(self) -> bytes:
        """The bytes of the file."""
        return to_json({"id": self.id}).encode()

    @classmethod
    def deserialize(cls, data: bytes, path: str = METADATA) -> QueryMetadata:
        """Parse the bytes of a file; errors name `path`."""
        if (switched := parse_switched(data, path)) is not None:
            raise CheckpointSwitchedError(path, switched.to, switched.epoch)
        lines = text_lines(data, path)
        values = parse_object("\n".join(lines), path)
        try:
            return cls(string_of(values, "id", path))
        except OptionError as error:
            raise MalformedFileError(path, str(error).rstrip(".")) from None

    @classmethod
    def read(cls, files: Files) -> QueryMetadata | None:
        """Read the metadata of the checkpoint at `files`; None if it has none."""
        url = join_url(files.url, METADATA)
        try:
            with storage_errors(url):
                data = files.read(METADATA)
        except FileNotFoundError:
            return None
        return cls.deserialize(data, url)

    def write(self, files: Files) -> None:
        """Create the file; ConcurrentUpdateError if it exists already."""
        url = join_url(files.url, METADATA)
        try:
            with storage_errors(url):
                files.create(METADATA, self.serialize())
        except FileExistsError:
            raise ConcurrentUpdateError(url, 0) from None
