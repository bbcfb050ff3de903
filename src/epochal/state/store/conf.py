"""The settings of a state store: Spark's keys, Spark's defaults, one frozen value.

Build it from the conf map of the newest offset log entry, not from a session: codec and row
checksums are facts about the files that lie there. A key that is missing takes its default, which
for every key that Spark pins in the offset log is also the legacy value an older Spark ran with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from epochal.checkpoint.pinned import CODEC, HDFS_PROVIDER_CLASS, PROVIDER
from epochal.errors import OptionError
from epochal.state.files.codecs import codec_name

_TIME_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStoreConf:
    """How stores are kept, cached, repaired and watched."""

    min_deltas_for_snapshot: int = 10
    """A snapshot is written once strictly more deltas than this lie above the last one. Fewer
    make a load faster and maintenance dearer."""

    min_versions_to_retain: int = 100
    """How far back a query can be rewound; every version kept costs its delta on disk."""

    max_versions_to_retain_in_memory: int = 2
    """Cached versions per store. Two let a failed batch run again without reading files; 0 loads
    from files every time."""

    maintenance_interval_ms: int = 60_000
    provider_class: str = HDFS_PROVIDER_CLASS
    compression_codec: str = "lz4"
    checkpoint_format_version: int = 1
    row_checksum_enabled: bool = False
    """Whether records carry checksums. Nothing in a file says so: a wrong value here makes every
    value unreadable."""

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
                raise OptionError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.min_versions_to_retain < 1:
            raise OptionError(
                f"min_versions_to_retain must be at least 1, not {self.min_versions_to_retain}: "
                f"a batch that failed could not be run again."
            )
        object.__setattr__(self, "compression_codec", codec_name(self.compression_codec))

    @property
    def min_version_lag(self) -> int:
        """How many versions a snapshot may trail before its store is called lagging."""
        return self.multiplier_for_min_version_diff_to_log * self.min_deltas_for_snapshot

    @property
    def min_time_lag_ms(self) -> int:
        """How long a snapshot may trail before its store is called lagging."""
        return self.multiplier_for_min_time_diff_to_log * self.maintenance_interval_ms

    @classmethod
    def from_spark(cls, conf: Mapping[str, str]) -> StateStoreConf:
        """Read Spark's keys, as an offset log entry or a session holds them; others are passed
        over."""
        found: dict[str, int | bool | str] = {}
        for key, (field, read) in _KEYS.items():
            if key in conf:
                try:
                    found[field] = read(conf[key].strip())
                except ValueError:
                    raise OptionError(f"{key}: cannot read {conf[key]!r}.") from None
        return cls(**found)  # type: ignore[arg-type]


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _milliseconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
    if found is None or (found[2] and found[2] not in _TIME_UNITS_MS):
        raise ValueError(text)
    return int(found[1]) * _TIME_UNITS_MS.get(found[2], 1)


_STATE = "spark.sql.streaming.stateStore."
_KEYS: dict[str, tuple[str, Callable[[str], int | bool | str]]] = {
    f"{_STATE}minDeltasForSnapshot": ("min_deltas_for_snapshot", int),
    "spark.sql.streaming.minBatchesToRetain": ("min_versions_to_retain", int),
    "spark.sql.streaming.maxBatchesToRetainInMemory": ("max_versions_to_retain_in_memory", int),
    f"{_STATE}maintenanceInterval": ("maintenance_interval_ms", _milliseconds),
    PROVIDER: ("provider_class", str),
    CODEC: ("compression_codec", str),
    f"{_STATE}checkpointFormatVersion": ("checkpoint_format_version", int),
    f"{_STATE}rowChecksum.enabled": ("row_checksum_enabled", _boolean),
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
