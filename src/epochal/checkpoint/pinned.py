"""Decides which settings and log versions a run goes by: the checkpoint's, before its own. Pure.

A query pins some settings in its first offset entry and keeps them for life. What a reader would
get wrong: a key that is *missing* there does not mean the session's value, nor today's default. It
means what Spark did before it had the key.
"""

from __future__ import annotations

from collections.abc import Mapping

from epochal.checkpoint.entries import CommitEntry, OffsetEntry
from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.errors import OptionError

STATE_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
"""What the session calls, since 4.1, what the log calls `spark.sql.shuffle.partitions`."""

OFFSET_LOG_FORMAT = "spark.sql.streaming.offsetLog.formatVersion"
STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
SOURCE_EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CODEC = "spark.sql.streaming.stateStore.compression.codec"
HDFS_PROVIDER_CLASS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB_PROVIDER_CLASS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

NEW_QUERY_DEFAULTS: Mapping[str, str] = {
    PROVIDER: HDFS_PROVIDER_CLASS,
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.streaming.join.stateFormatVersion": "2",
    CODEC: "lz4",
    "spark.sql.streaming.stateStore.rocksdb.formatVersion": "5",
    "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": "2",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "true",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "false",
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "false",
    "spark.sql.function.protobufExtensions.enabled": "false",
    SOURCE_EVOLUTION: "false",
    "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled": "true",
    "spark.sql.dropDuplicates.deterministicKeyOrder.enabled": "true",
    SHUFFLE_PARTITIONS: "200",
}
"""What Spark 4.3 pins, with its defaults."""

LEGACY_DEFAULTS: Mapping[str, str] = {
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "1",
    "spark.sql.streaming.aggregation.stateFormatVersion": "1",
    "spark.sql.streaming.join.stateFormatVersion": "1",
    CODEC: "lz4",
    "spark.sql.streaming.statefulOperator.useStrictDistribution": "false",
    "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": "true",
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "false",
    "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": "1",
    "spark.sql.function.protobufExtensions.enabled": "false",
    SOURCE_EVOLUTION: "false",
    "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled": "false",
    "spark.sql.dropDuplicates.deterministicKeyOrder.enabled": "false",
}
"""What a key means that the log does not have. The other pinned keys stay as the session has them:
the provider's class, the number of partitions, RocksDB's format version."""


def conf_of_new_query(session: Mapping[str, str]) -> dict[str, str]:
    """The settings that a new query pins: the session's, and defaults for the rest."""
    conf = {key: session.get(key, default) for key, default in NEW_QUERY_DEFAULTS.items()}
    conf[SHUFFLE_PARTITIONS] = session.get(STATE_PARTITIONS, conf[SHUFFLE_PARTITIONS])
    return conf


def conf_in_force(pinned: Mapping[str, str], session: Mapping[str, str]) -> dict[str, str]:
    """The settings a restart goes by, given what the newest offset entry pins."""
    new = conf_of_new_query(session)
    return {key: pinned.get(key, LEGACY_DEFAULTS.get(key, new[key])) for key in new}


def offset_log_version(newest: OffsetEntry | None, session: Mapping[str, str]) -> int:
    """The version to write offsets in: the one that is there, or what the session asks for."""
    evolves = session.get(SOURCE_EVOLUTION, "false").lower() == "true"
    if newest is None:
        return max(int(session.get(OFFSET_LOG_FORMAT, "1")), 2 if evolves else 1)
    if evolves and newest.version < 2:
        raise OptionError(
            f"[STREAMING_QUERY_EVOLUTION_ERROR.CANNOT_ENABLE_ON_EXISTING_CHECKPOINT] The offset "
            f"log has version {newest.version}; named sources need version 2. Migrate it with "
            f"`epochal checkpoint migrate-offsets`, or leave {SOURCE_EVOLUTION} off."
        )
    return newest.version


def commit_log_version(newest: CommitEntry | None, session: Mapping[str, str]) -> int:
    """The version to write commits in: the one that is there, or what the state format needs.

    Never 3 for a new query: only a query that names its sinks raises it to that.
    """
    if newest is not None:
        return newest.version
    return 2 if int(session.get(STATE_FORMAT, "1")) >= 2 else 1
