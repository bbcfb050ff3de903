"""Which state store it is, and its settings: Spark's keys and defaults in one frozen value.

The root of a store is the checkpoint's `state` directory, not the checkpoint. A provider id also
contains the run id, so a restarted query never reuses a provider of an earlier run with its cached
maps.

Build the settings from the conf map of the newest offset log entry, not from a session: codec and
row checksums are facts about files that already exist. A missing key takes its default. For every
key that Spark pins in the offset log, this default is also what older releases of Spark used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from epochal.checkpoint.layout import DEFAULT_STORE, STATE, StoreKey
from epochal.checkpoint.restart import (
    CODEC,
    HDFS_PROVIDER_CLASS,
    MERGE_OPERATOR,
    PROVIDER,
    ROW_CHECKSUMS,
    STATE_ENCODING,
    STATE_FORMAT,
    TABLE_FORMAT,
)
from epochal.errors import OptionError
from epochal.state.files.codecs import codec_name

_TIME_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStoreConf:
    """How stores are written, cached, cleaned up, repaired and monitored."""

    min_deltas_for_snapshot: int = 10
    """Maintenance writes a snapshot when strictly more deltas than this follow the last one. A
    smaller number makes loading faster and maintenance more expensive."""

    min_versions_to_retain: int = 100
    """How many versions a query can be rewound. Every retained version keeps its delta on disk."""

    max_versions_to_retain_in_memory: int = 2
    """Cached versions per store. With 2, a failed batch can run again without reading files; with
    0, every load reads files."""

    maintenance_interval_ms: int = 60_000
    provider_class: str = HDFS_PROVIDER_CLASS
    compression_codec: str = "lz4"
    checkpoint_format_version: int = 1
    encoding_format: str = "unsaferow"
    rocksdb_table_format: int = 5
    """The format of the tables in RocksDB's snapshots. Spark's RocksDB must be able to read it."""
    merge_operator_version: int = 2
    """How RocksDB joins the values of a list: 1 with a comma between them, 2 with nothing."""
    row_checksum_enabled: bool = False
    """Whether records carry checksums. The files do not record this: with the wrong setting every
    value is unreadable."""

    format_validation_enabled: bool = True
    """Whether every row read is checked against the schema."""

    auto_snapshot_repair_enabled: bool = True
    auto_snapshot_repair_num_failures_before_activating: int = 1
    auto_snapshot_repair_max_change_file_replay: int = 500
    unload_on_commit: bool = False
    commit_validation_enabled: bool = True
    report_snapshot_upload_lag: bool = True
    force_snapshot_upload_on_lag: bool = True
    multiplier_for_min_version_diff_to_log: int = 5
    multiplier_for_min_time_diff_to_log: int = 10
    snapshot_lag_report_interval_ms: int = 300_000
    max_lagging_stores_to_report: int = 5

    memory_bytes: int | None = None
    """How much memory a task of the continuous engine uses for its state, which is then on local
    disk. None keeps all of it in memory. This and the next are not settings of Spark."""
    local_dir: str | None = None
    """Where that is; None for the directory for temporary files."""

    def __post_init__(self) -> None:
        for name in (
            "auto_snapshot_repair_num_failures_before_activating",
            "auto_snapshot_repair_max_change_file_replay",
            "multiplier_for_min_version_diff_to_log",
            "multiplier_for_min_time_diff_to_log",
            "maintenance_interval_ms",
            "checkpoint_format_version",
        ):
            if getattr(self, name) < 1:
                key = next(key for key, (field, _) in _KEYS.items() if field == name)
                raise OptionError(f"{key} must be at least 1, not {getattr(self, name)}.")
        if self.min_versions_to_retain < 1:
            raise OptionError(
                f"spark.sql.streaming.minBatchesToRetain must be at least 1, not "
                f"{self.min_versions_to_retain}: otherwise a failed batch could not run again."
            )
        object.__setattr__(self, "compression_codec", codec_name(self.compression_codec))

    @property
    def min_version_lag(self) -> int:
        """How many versions a snapshot may be behind before its store counts as lagging."""
        return self.multiplier_for_min_version_diff_to_log * self.min_deltas_for_snapshot

    @property
    def min_time_lag_ms(self) -> int:
        """How old a snapshot may be before its store counts as lagging."""
        return self.multiplier_for_min_time_diff_to_log * self.maintenance_interval_ms

    @classmethod
    def from_spark(cls, conf: Mapping[str, str]) -> StateStoreConf:
        """Read Spark's keys from an offset log entry or a session; other keys are ignored."""
        fields: dict[str, int | bool | str] = {}
        for key, (field, read) in _KEYS.items():
            if key in conf:
                try:
                    fields[field] = read(conf[key].strip())
                except ValueError:
                    raise OptionError(
                        f"{key} has the value {conf[key]!r}, which cannot be parsed."
                    ) from None
        return cls(**fields)  # type: ignore[arg-type]


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _milliseconds(text: str) -> int:
    parsed = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if parsed is None or (parsed[2] and parsed[2] not in _TIME_UNITS_MS):
        raise ValueError(text)
    return int(parsed[1]) * _TIME_UNITS_MS.get(parsed[2], 1)


_STATE = "spark.sql.streaming.stateStore."
_KEYS: dict[str, tuple[str, Callable[[str], int | bool | str]]] = {
    f"{_STATE}minDeltasForSnapshot": ("min_deltas_for_snapshot", int),
    "spark.sql.streaming.minBatchesToRetain": ("min_versions_to_retain", int),
    "spark.sql.streaming.maxBatchesToRetainInMemory": ("max_versions_to_retain_in_memory", int),
    f"{_STATE}maintenanceInterval": ("maintenance_interval_ms", _milliseconds),
    PROVIDER: ("provider_class", str),
    CODEC: ("compression_codec", str),
    STATE_FORMAT: ("checkpoint_format_version", int),
    STATE_ENCODING: ("encoding_format", str),
    MERGE_OPERATOR: ("merge_operator_version", int),
    TABLE_FORMAT: ("rocksdb_table_format", int),
    ROW_CHECKSUMS: ("row_checksum_enabled", _boolean),
    f"{_STATE}formatValidation.enabled": ("format_validation_enabled", _boolean),
    f"{_STATE}autoSnapshotRepair.enabled": ("auto_snapshot_repair_enabled", _boolean),
    f"{_STATE}autoSnapshotRepair.numFailuresBeforeActivating": (
        "auto_snapshot_repair_num_failures_before_activating",
        int,
    ),
    f"{_STATE}autoSnapshotRepair.maxChangeFileReplay": (
        "auto_snapshot_repair_max_change_file_replay",
        int,
    ),
    f"{_STATE}unloadOnCommit": ("unload_on_commit", _boolean),
    f"{_STATE}commitValidation.enabled": ("commit_validation_enabled", _boolean),
    f"{_STATE}coordinatorReportSnapshotUploadLag": ("report_snapshot_upload_lag", _boolean),
    f"{_STATE}forceSnapshotUploadOnLag": ("force_snapshot_upload_on_lag", _boolean),
    f"{_STATE}multiplierForMinVersionDiffToLog": ("multiplier_for_min_version_diff_to_log", int),
    f"{_STATE}multiplierForMinTimeDiffToLog": ("multiplier_for_min_time_diff_to_log", int),
    f"{_STATE}snapshotLagReportInterval": ("snapshot_lag_report_interval_ms", _milliseconds),
    f"{_STATE}maxLaggingStoresToReport": ("max_lagging_stores_to_report", int),
}


@dataclass(frozen=True, slots=True)
class StateStoreId:
    """One store of one partition of one stateful operator."""

    checkpoint_root: str
    operator_id: int
    partition_id: int
    store_name: str = DEFAULT_STORE

    @property
    def key(self) -> StoreKey:
        """Which store of the checkpoint it is."""
        return StoreKey(self.operator_id, self.partition_id, self.store_name)

    @property
    def path(self) -> str:
        """The store's directory below the root; the default store adds no level."""
        return self.key.path.removeprefix(f"{STATE}/")

    @property
    def location(self) -> str:
        """The directory of the store's files: Spark's storeCheckpointLocation."""
        return f"{self.checkpoint_root.rstrip('/')}/{self.path}"

    def __str__(self) -> str:
        return (
            f"StateStoreId[ operatorId={self.operator_id}, partitionId={self.partition_id}, "
            f"storeName={self.store_name} ]"
        )


@dataclass(frozen=True, slots=True)
class StateStoreProviderId:
    """A store, as used by one run of the query."""

    store_id: StateStoreId
    query_run_id: str

    def __str__(self) -> str:
        return f"StateStoreProviderId[ storeId={self.store_id}, queryRunId={self.query_run_id} ]"
