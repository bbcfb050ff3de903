"""The values that `show` prints about a checkpoint, and their JSON. Pure.

Note: programs read the JSON. Keys may be added, but never renamed or removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from epochal.checkpoint.entries import OffsetEntry, SinkMetadata
from epochal.checkpoint.restart import RestartPlan
from epochal.checkpoint.spark_json import JsonValue, parse_json
from epochal.errors import MalformedFileError


@dataclass(frozen=True, slots=True)
class Problem:
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class BatchView:
    """One batch: the offsets it reads up to, and whether it is committed."""

    batch_id: int
    offsets: tuple[JsonValue, ...] | dict[str, JsonValue] | None
    """By position in the plan, or by source name; None if the entry is missing or unreadable."""
    watermark_ms: int | None
    timestamp_ms: int | None
    conf: Mapping[str, str] | None
    committed: bool
    next_watermark_ms: int | None = None
    stand_in_for: JsonValue = None
    """If a repair made the offsets up: the batch whose offsets they are."""

    def as_json(self) -> dict[str, object]:
        marks = {} if self.stand_in_for is None else {"stand_in_for": self.stand_in_for}
        return {
            "batch_id": self.batch_id,
            "offsets": list(self.offsets) if isinstance(self.offsets, tuple) else self.offsets,
            "watermark_ms": self.watermark_ms,
            "timestamp_ms": self.timestamp_ms,
            "conf": None if self.conf is None else dict(self.conf),
            "committed": self.committed,
            **marks,
        }


@dataclass(frozen=True, slots=True)
class ConfChange:
    """A pinned setting that differs from the previous batch; None where a batch lacks it."""

    batch_id: int
    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of batches that are missing from a log; `first` and `last` are included."""

    log: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SourceView:
    """The log that one source keeps below `sources`."""

    name: str
    kind: str
    """`file`, `kafka`, `rate`, `empty`, or `unknown` if it cannot be read."""
    entries: int
    latest: int | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StoreVersions:
    """One store of one partition: the range of versions that have files."""

    partition_id: int
    min_version: int | None
    max_version: int | None
    latest_snapshot: int | None
    versions: int


@dataclass(frozen=True, slots=True)
class OperatorView:
    operator_id: int
    name: str | None
    """From its metadata; None for checkpoints of Spark before 4.0, which have no metadata."""
    provider: str | None
    partitions: int
    stores: Mapping[str, tuple[StoreVersions, ...]]


@dataclass(frozen=True, slots=True)
class OwnerView:
    """The run of an Epochal query or tool that claimed the checkpoint last."""

    run_id: str
    purpose: str
    host: str
    has_lease: bool


@dataclass(frozen=True, slots=True)
class EditView:
    id: str
    command: str
    state: str
    summary: str
    undo_options: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointView:
    url: str
    query_id: str | None
    offset_log_version: int | None
    commit_log_version: int | None
    batches: tuple[BatchView, ...]
    gaps: tuple[Gap, ...]
    conf_changes: tuple[ConfChange, ...]
    restart: RestartPlan
    sources: tuple[SourceView, ...]
    sinks: tuple[SinkMetadata, ...]
    """The current sink and the earlier ones; empty unless the commit log has version 3."""
    operators: tuple[OperatorView, ...]
    owner: OwnerView | None
    edit: EditView | None
    problems: tuple[Problem, ...]
    unpublished: int | None = None
    """The newest batch, if its state is in epoch files only, so that Spark could not go on."""
    continuous: bool = False
    """Whether a continuous query wrote the newest batch, so that it is an epoch."""

    def as_json(self) -> dict[str, object]:
        restart = self.restart
        edit = None if self.edit is None else asdict(self.edit)
        if edit is not None:
            del edit["undo_options"]
        return {
            "url": self.url,
            "query_id": self.query_id,
            "offset_log_version": self.offset_log_version,
            "commit_log_version": self.commit_log_version,
            "batches": [batch.as_json() for batch in self.batches],
            "gaps": [asdict(gap) for gap in self.gaps],
            "conf_changes": [asdict(change) for change in self.conf_changes],
            "restart": {
                "action": restart.action.value,
                "batch_id": restart.batch_id,
                "start": offsets_json(restart.start),
                "end": offsets_json(restart.end),
                "watermark_ms": restart.watermark_ms,
                "condition": restart.condition,
                "reason": restart.reason,
                "notes": list(restart.notes),
            },
            "sources": [asdict(source) for source in self.sources],
            "sinks": [
                {
                    "name": sink.sink_name,
                    "provider": sink.provider_name,
                    "api_version": sink.api_version,
                    "commit_offset": sink.commit_offset,
                    "active": sink.is_active,
                }
                for sink in self.sinks
            ],
            "state": {
                "operators": [
                    {
                        "operator_id": operator.operator_id,
                        "name": operator.name,
                        "provider": operator.provider,
                        "partitions": operator.partitions,
                        "stores": [
                            {"name": name, "partitions": [asdict(store) for store in stores]}
                            for name, stores in operator.stores.items()
                        ],
                    }
                    for operator in self.operators
                ]
            },
            "owner": None if self.owner is None else asdict(self.owner),
            "unfinished_edit": edit,
            "unpublished_batch": self.unpublished,
            "problems": [asdict(problem) for problem in self.problems],
        }


def offsets_of(entry: OffsetEntry) -> tuple[JsonValue, ...] | dict[str, JsonValue]:
    """Parse an entry's offsets as JSON. Text that is not JSON stays text."""
    if isinstance(entry.offsets, dict):
        return {name: _offset(text) for name, text in entry.offsets.items()}
    return tuple(_offset(text) for text in entry.offsets)


def offsets_json(entry: OffsetEntry | None) -> list[JsonValue] | dict[str, JsonValue] | None:
    """Return an entry's offsets in the form of `show --json`; None for no entry."""
    offsets = None if entry is None else offsets_of(entry)
    return list(offsets) if isinstance(offsets, tuple) else offsets


def _offset(text: str | None) -> JsonValue:
    if text is None:
        return None
    try:
        return parse_json(text, "")
    except MalformedFileError:
        return text
