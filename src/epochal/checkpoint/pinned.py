"""Decides which settings and log versions a run uses: the checkpoint's before the session's. Pure.

A query pins some settings in its first offset entry and keeps them in all later ones.

Note: A key that is *missing* in the offset entry does not have the session's value or the current
default. It has the value that matches Spark's behaviour before the key existed.
"""

from __future__ import annotations

from collections.abc import Mapping

from epochal.checkpoint.entries import CommitEntry, OffsetEntry
from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.errors import OptionError

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
