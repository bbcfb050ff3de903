"""The settings that a batch pins and that decide how its state is read. Pure.

Spark sets those of the newest batch when a query starts, and fails if it cannot use a value.
"""

from __future__ import annotations

from collections.abc import Mapping

from epochal.checkpoint.restart import (
    CODEC,
    PROVIDER,
    ROW_CHECKSUMS,
    SHUFFLE_PARTITIONS,
    TABLE_FORMAT,
)
from epochal.errors import OptionError, StateReadError
from epochal.state.files.codecs import codec_name

JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
_VERSIONS = (
    "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion",
    "spark.sql.streaming.aggregation.stateFormatVersion",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion",
    JOIN_FORMAT,
)
STATE_SHAPE_KEYS = (
    *(PROVIDER, CODEC, "spark.sql.streaming.stateStore.encodingFormat", ROW_CHECKSUMS),
    *_VERSIONS,
)
"""Settings that must not change during the life of a checkpoint. With another value, Spark reads
the state wrongly or not at all."""
PINNED_KEYS = (SHUFFLE_PARTITIONS, *STATE_SHAPE_KEYS)


def is_usable(key: str, value: str) -> bool:
    if key in (SHUFFLE_PARTITIONS, TABLE_FORMAT, *_VERSIONS):
        digits = value.strip().removeprefix("+").lstrip("0")
        return digits.isascii() and digits.isdigit() and len(digits) < 11 and int(digits) < 1 << 31
    if key == ROW_CHECKSUMS:
        return value.strip().lower() in ("true", "false")
    if key == CODEC:
        try:
            codec_name(value)
        except OptionError:
            return False
    return True


def usable_settings(conf: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in conf.items() if is_usable(key, value)}


def unusable_settings(conf: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in conf.items() if not is_usable(key, value)}


def refuse_unusable(conf: Mapping[str, str], source: str) -> None:
    """Raise StateReadError, unless it is the codec: reading a file says what is wrong with that."""
    for key, value in unusable_settings(conf).items():
        if key != CODEC:
            reason = f"the batch pins {key} as {value!r}, which Spark cannot use."
            raise StateReadError(source, reason, "INVALID_CONF_VALUE.TYPE_MISMATCH")
