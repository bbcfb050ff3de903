"""Decides how a query restarts on a checkpoint: what runs next, and with which settings. Pure.

Let O be the newest id in `offsets` and C the newest in `commits`. If O = C, the next batch is new.
If C is lower, batch O runs again: it starts where batch O-1 ended and ends exactly at the offsets
in its own entry. The synchronous engine requires `offsets/(O-1)`. With asynchronous progress a log
may have gaps, and the newest entry before O is used.

Note: The batches between C and O do *not* run again, however far C is behind.

A query pins some settings in its first offset entry and keeps them in all later ones: the
checkpoint's settings come before the session's.

Note: A key that is *missing* in the offset entry does not have the session's value or the current
default. It has the value that matches Spark's behaviour before the key existed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from epochal.checkpoint.entries import CommitEntry, OffsetEntry
from epochal.errors import OptionError

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


class RestartAction(StrEnum):
    """What a restart does first."""

    BEGIN = "begin"
    """The log is empty: it runs batch 0 of a new query."""
    RERUN = "re-run"
    """The newest batch is not committed: it runs again with the same offsets."""
    CONTINUE = "continue"
    """Everything is committed: a new batch starts where the last one ended."""
    FAIL = "fail"
    """The query would not start."""


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """What a restart would do next, or why it would fail."""

    action: RestartAction
    batch_id: int | None = None
    """The batch that runs first. It loads the state version of the same number."""
    start: OffsetEntry | None = None
    """Where that batch starts; None for the start of every source."""
    end: OffsetEntry | None = None
    """Where that batch must end; None if it is new."""
    watermark_ms: int = 0
    condition: str = ""
    """Spark's name for the failure, where it has one."""
    reason: str = ""
    """Why it would fail."""
    notes: tuple[str, ...] = ()
    """Unusual findings that do not prevent a restart."""


def plan_restart(
    offset_ids: Sequence[int],
    commit_ids: Sequence[int],
    offsets: Mapping[int, OffsetEntry],
    commits: Mapping[int, CommitEntry],
    *,
    async_progress: bool = False,
    has_query_metadata: bool = True,
    occupied: Sequence[str] = (),
) -> RestartPlan:
    """Decide what a restart would do, from the ids on disk and the newest entries.

    It needs the two newest entries of `offsets` and the newest one of `commits`.
    An entry that is on disk but missing in `offsets` or `commits` could not be read. `occupied`
    lists those of the directories `offsets`, `commits` and `state` that are not empty.
    """
    if not has_query_metadata and (offset_ids or commit_ids):
        return _fail(
            "the file `metadata` is missing, but the logs have entries: with a new query id, sinks "
            "that remember the old one would write everything twice",
            "STREAMING_CHECKPOINT_MISSING_METADATA_FILE",
        )
    if not offset_ids:
        if occupied or commit_ids:
            where = ", ".join(occupied or ["commits"])
            return _fail(
                f"the query would be new, because there are no offsets, but these directories are "
                f"not empty: {where}",
                "STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY",
            )
        return RestartPlan(RestartAction.BEGIN, batch_id=0)
    latest = max(offset_ids)
    previous = _previous(offset_ids, latest, async_progress)
    committed = max(commit_ids, default=None)
    for batch_id in (latest, previous):
        if batch_id is not None and batch_id not in offset_ids:
            return _fail(f"batch {batch_id} doesn't exist in offsets, but batch {latest} needs it")
        if batch_id is not None and batch_id not in offsets:
            return _fail(f"offsets/{batch_id} cannot be read")
    if committed is not None and committed not in commits:
        return _fail(f"commits/{committed} cannot be read")
    before = None if previous is None else offsets[previous]
    if committed == latest:
        entry = offsets[latest]
        watermark_ms = max(entry.watermark_ms, commits[latest].next_watermark_ms)
        return RestartPlan(RestartAction.CONTINUE, latest + 1, entry, None, watermark_ms)
    return _rerun(latest, committed, before, offsets[latest], async_progress)


def _rerun(
    latest: int,
    committed: int | None,
    before: OffsetEntry | None,
    entry: OffsetEntry,
    async_progress: bool,
) -> RestartPlan:
    if committed is not None and committed > latest:
        return _fail(
            f"commits reach batch {committed}, offsets only {latest}: the batches after {latest} "
            f"would run again and could not be committed",
            "CONCURRENT_STREAM_LOG_UPDATE",
        )
    if committed is not None and not async_progress and _repartitions(before, entry):
        return _fail(
            f"batch {latest} changes the number of state partitions and is not committed; the last "
            f"committed batch is {committed}",
            "STREAMING_UNFINISHED_REPARTITION_DETECTED",
        )
    notes: list[str] = []
    if committed is None and before is not None:
        notes.append(f"no commits: batch {latest} runs again, earlier ones count as done")
    elif committed is not None and committed < latest - 1 and not async_progress:
        notes.append(
            f"the last commit is batch {committed}, which is not the one before {latest}: the "
            f"batches in between count as done"
        )
    return RestartPlan(
        RestartAction.RERUN, latest, before, entry, entry.watermark_ms, notes=tuple(notes)
    )


def _previous(offset_ids: Sequence[int], latest: int, async_progress: bool) -> int | None:
    if latest == 0:
        return None
    if async_progress:
        return max((i for i in offset_ids if i < latest), default=None)
    return latest - 1


def _repartitions(before: OffsetEntry | None, entry: OffsetEntry) -> bool:
    if before is None:
        return False
    old, new = before.conf.get(SHUFFLE_PARTITIONS), entry.conf.get(SHUFFLE_PARTITIONS)
    return old is not None and new is not None and old != new


def _fail(reason: str, condition: str = "") -> RestartPlan:
    return RestartPlan(RestartAction.FAIL, reason=reason, condition=condition)


STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
"""Since Spark 4.1, the session's name for the log's `spark.sql.shuffle.partitions`."""

OFFSET_LOG_FORMAT = "spark.sql.streaming.offsetLog.formatVersion"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CODEC = "spark.sql.streaming.stateStore.compression.codec"
STATE_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
TABLE_FORMAT = "spark.sql.streaming.stateStore.rocksdb.formatVersion"
MERGE_OPERATOR = "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion"
ROW_CHECKSUMS = "spark.sql.streaming.stateStore.rowChecksum.enabled"
HDFS_PROVIDER_CLASS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB_PROVIDER_CLASS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

NEW_QUERY_DEFAULTS: Mapping[str, str] = {
    PROVIDER: HDFS_PROVIDER_CLASS,
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.streaming.join.stateFormatVersion": "2",
    CODEC: "lz4",
    TABLE_FORMAT: "5",
    MERGE_OPERATOR: "2",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "false",
    STATE_ENCODING: "unsaferow",
    ROW_CHECKSUMS: "false",
    "spark.sql.function.protobufExtensions.enabled": "false",
    SOURCE_EVOLUTION: "false",
    "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled": "true",
    "spark.sql.dropDuplicates.deterministicKeyOrder.enabled": "true",
    SHUFFLE_PARTITIONS: "200",
}
"""The settings that Spark 4.3 pins, with their defaults."""

LEGACY_DEFAULTS: Mapping[str, str] = {
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "1",
    "spark.sql.streaming.aggregation.stateFormatVersion": "1",
    "spark.sql.streaming.join.stateFormatVersion": "1",
    CODEC: "lz4",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "false",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "true",
    STATE_ENCODING: "unsaferow",
    ROW_CHECKSUMS: "false",
    MERGE_OPERATOR: "1",
    "spark.sql.function.protobufExtensions.enabled": "false",
    SOURCE_EVOLUTION: "false",
    "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled": "false",
    "spark.sql.dropDuplicates.deterministicKeyOrder.enabled": "false",
}
"""The values of keys that are missing in the log. The other pinned keys have the session's values:
the provider's class, the number of partitions, RocksDB's format version."""


def conf_of_new_query(session: Mapping[str, str]) -> dict[str, str]:
    """The settings that a new query pins: the session's values, or defaults."""
    conf = {key: session.get(key, default) for key, default in NEW_QUERY_DEFAULTS.items()}
    conf[SHUFFLE_PARTITIONS] = session.get(STATE_PARTITIONS, conf[SHUFFLE_PARTITIONS])
    return conf


def conf_in_force(pinned: Mapping[str, str], session: Mapping[str, str]) -> dict[str, str]:
    """The settings that a restart uses, given those that the newest offset entry pins."""
    new = conf_of_new_query(session)
    return {key: pinned.get(key, LEGACY_DEFAULTS.get(key, new[key])) for key in new}


def offset_log_version(newest: OffsetEntry | None, session: Mapping[str, str]) -> int:
    """The version for new offset entries: that of the log, or of the session for an empty log."""
    evolves = session.get(SOURCE_EVOLUTION, "false").lower() == "true"
    if newest is None:
        return max(int(session.get(OFFSET_LOG_FORMAT, "1")), 2 if evolves else 1)
    if evolves and newest.version < 2:
        raise OptionError(
            f"[STREAMING_QUERY_EVOLUTION_ERROR.CANNOT_ENABLE_ON_EXISTING_CHECKPOINT] The offset "
            f"log has version {newest.version}, but named sources need version 2. Migrate it with "
            f"`epochal checkpoint migrate-offsets`, or set {SOURCE_EVOLUTION} to false."
        )
    return newest.version


def commit_log_version(newest: CommitEntry | None, session: Mapping[str, str]) -> int:
    """The version for new commit entries: that of the log, or as the state format requires.

    It is never 3 for a new query: only a query with named sinks raises it to 3.
    """
    if newest is not None:
        return newest.version
    return 2 if int(session.get(STATE_FORMAT, "1")) >= 2 else 1
