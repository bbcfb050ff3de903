"""Decides how the state of a query is kept: as the checkpoint pins it, in a new one as Spark would.

The files do not record provider, codec and checksums; only the offset log does. A store that is
read with other settings is unreadable, so the session's settings count only for a new checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from epochal.checkpoint.layout import STATE
from epochal.checkpoint.restart import (
    CODEC,
    MERGE_OPERATOR,
    NEW_QUERY_DEFAULTS,
    PROVIDER,
    ROW_CHECKSUMS,
    STATE_FORMAT,
    STATE_PARTITIONS,
    TABLE_FORMAT,
)
from epochal.continuous.plan.logical import Node, Stateful, preorder
from epochal.continuous.run.take_over import FoundCheckpoint, found_in, newest_entry
from epochal.errors import StateUsageError
from epochal.files import Files, join_url
from epochal.state.store.conf import StateStoreConf, StateStoreId
from epochal.state.store.open_provider import provider_class
from epochal.state.store.store_format import DATABASE_FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION_KEYS = (PROVIDER, CODEC, ROW_CHECKSUMS, TABLE_FORMAT, MERGE_OPERATOR)
"""The settings that a new checkpoint of our own builder pins. All of them are about state files."""

FRAME_KEYS = (*NEW_QUERY_DEFAULTS, STATE_PARTITIONS, STATE_FORMAT)
"""The settings that a new checkpoint of a DataFrame pins, as Spark does."""


def session_settings(spark: SparkSession, keys: Collection[str] = SESSION_KEYS) -> dict[str, str]:
    """The settings of a session that determine how a new query keeps its state."""
    found = {key: spark.conf.get(key, None) for key in keys}
    return {key: value for key, value in found.items() if value is not None}


def settings_in_force(files: Files, session: Mapping[str, str]) -> dict[str, str]:
    """The settings that the checkpoint pins, or that a new one will pin."""
    return FoundCheckpoint(newest=newest_entry(files)).settings(session)


def state_conf(
    files: Files, settings: Mapping[str, str], session: Mapping[str, str]
) -> StateStoreConf:
    """How the checkpoint keeps its state."""
    conf, version = StateStoreConf.from_spark(settings), found_in(files).state_format(session)
    return replace(conf, checkpoint_format_version=version)


def check_state(files: Files, conf: StateStoreConf, tree: Node) -> None:
    """Raise before anything is written if the state cannot be kept as the checkpoint demands."""
    for node in preorder(tree):
        if not isinstance(node, Stateful):
            continue
        store_id = StateStoreId(join_url(files.url, STATE), node.operator_id, 0)
        provider_class(conf).check(store_id, conf)
        has_families = any(store.has_families for store in node.spec.stores)
        if has_families and conf.provider_class != DATABASE_FORMAT.provider_class:
            raise StateUsageError(
                str(store_id),
                f"{node.spec.name} keeps its state in column families, which "
                f"{conf.provider_class} does not have. Use a new checkpoint, and set {PROVIDER} to "
                f"{DATABASE_FORMAT.provider_class} before the first start.",
                "UNSUPPORTED_FEATURE.STORE_BACKEND_NOT_SUPPORTED_FOR_TWS",
            )
