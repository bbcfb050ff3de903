"""Finds out what a checkpoint demands of a query before anything is written to it.

The settings that a checkpoint pins govern its query, whoever runs it. Some of them describe state
that only Spark can go on from. They are refused, with a way out.

So state is kept as the checkpoint pins it, and in a new one as Spark would. The files do not record
provider, codec and checksums; only the offset log does. A store that is read with other settings is
unreadable, so the session's settings count only for a new checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetEntry, OffsetLog
from epochal.checkpoint.layout import COMMITS, OFFSETS, PLANNED, STATE
from epochal.checkpoint.operator_metadata import read_operator
from epochal.checkpoint.restart import (
    CODEC,
    MERGE_OPERATOR,
    NEW_QUERY_DEFAULTS,
    PROVIDER,
    ROW_CHECKSUMS,
    SHUFFLE_PARTITIONS,
    STATE_FORMAT,
    STATE_PARTITIONS,
    TABLE_FORMAT,
    conf_in_force,
    conf_of_new_query,
)
from epochal.continuous.plan.logical import Node, Stateful, preorder
from epochal.epoch.manifest import ids_of, manifest_of
from epochal.errors import OptionError, StateUsageError
from epochal.files import Files, join_url, open_files
from epochal.state.store.conf import StateStoreConf, StateStoreId
from epochal.state.store.open_provider import provider_class
from epochal.state.store.store_format import DATABASE_FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AGGREGATION_FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"

FORMATS = {"stateStoreSave": (AGGREGATION_FORMAT, "2"), "symmetricHashJoin": (JOIN_FORMAT, "2")}
"""By operator: the setting with the version of its state's layout, and the version we write."""

SESSION_KEYS = (PROVIDER, CODEC, ROW_CHECKSUMS, TABLE_FORMAT, MERGE_OPERATOR)
"""The settings that a new checkpoint of our own builder pins. All of them are about state files."""

FRAME_KEYS = (*NEW_QUERY_DEFAULTS, STATE_PARTITIONS, STATE_FORMAT)
"""The settings that a new checkpoint of a DataFrame pins, as Spark does."""


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """What a checkpoint says before a query starts on it."""

    url: str = ""
    newest: OffsetEntry | None = None
    """None if it is new."""
    commit: CommitEntry | None = None

    @property
    def pinned(self) -> Mapping[str, str] | None:
        """The settings in the offset log; None in a new checkpoint."""
        return None if self.newest is None else self.newest.conf

    def settings(self, session: Mapping[str, str]) -> dict[str, str]:
        """Return the settings in force: the checkpoint's, or for a new one the session's."""
        if self.newest is None:
            return conf_of_new_query(session)
        return conf_in_force(self.newest.conf, session)

    def partitions(self, session: Mapping[str, str]) -> int:
        """Return the number of state partitions, as Spark would choose it."""
        return int(self.settings(session)[SHUFFLE_PARTITIONS])

    def state_format(self, session: Mapping[str, str]) -> int:
        """Return the format of the state's files, as Spark would: 2 if they have unique ids.

        It is not pinned. The commit log shows it, and before the first commit the session has it.
        """
        if self.commit is not None:
            return self.commit.state_format_version
        manifest = None if self.newest is None else manifest_of(self.newest, self.url)
        if manifest is not None and (manifest.state or manifest.chain is not None):
            return 1 if ids_of(manifest.state) is None else 2
        return int(session.get(STATE_FORMAT, "1"))

    def check(self, operators: Collection[str], session: Mapping[str, str]) -> None:
        """Raise OptionError if a query with these stateful operators cannot go on from here."""
        self._check_sources()
        if not operators:
            return
        settings, version = self.settings(session), self.state_format(session)
        if version not in (1, 2):
            self._refuse(STATE_FORMAT, str(version), "1 or 2")
        if version == 2 and settings[PROVIDER] != DATABASE_FORMAT.provider_class:
            raise OptionError(
                f"{STATE_FORMAT} is 2, but {settings[PROVIDER]} does not give its files unique "
                f"ids. Set it to 1, or {PROVIDER} to {DATABASE_FORMAT.provider_class}, before the "
                f"start."
            )
        for operator in sorted(set(operators) & set(FORMATS)):
            key, supported = FORMATS[operator]
            if settings[key] != supported:
                self._refuse(key, settings[key], supported)

    def _check_sources(self) -> None:
        if self.newest is None or self.newest.version < 2:
            return
        named = [name for name in self.newest.by_source if not str(name).isdigit()]
        if named:
            raise OptionError(
                f"{self.url} has named sources ({', '.join(map(str, named))}), but Epochal knows "
                f"sources by their number only and would read them from the start. Nothing was "
                f"changed. Go on with Spark, or use a new checkpointLocation."
            )

    def _refuse(self, key: str, value: str, supported: str) -> None:
        if self.newest is None:
            raise OptionError(
                f"{key} is {value} in this session, and a new query would lay out its state "
                f"accordingly, which only Spark can do. Set it to {supported} before the start."
            )
        raise OptionError(
            f"{self.url} was written with {key} = {value}, but only {supported} can be continued "
            f"here. Nothing was changed. Go on with Spark, or use a new checkpointLocation."
        )


def find_checkpoint(location: str | None) -> FoundCheckpoint:
    """Read what a checkpoint pins. Nothing is created."""
    if location is None:
        return FoundCheckpoint()
    return found_in(open_files(location))


def found_in(files: Files) -> FoundCheckpoint:
    commit = CommitLog(files.at(COMMITS), read_only=True).get_latest()
    return FoundCheckpoint(files.url, newest_entry(files), None if commit is None else commit[1])


def newest_entry(files: Files) -> OffsetEntry | None:
    """Return the newest offset entry, also one that was set aside to be run as planned."""
    for log in (OFFSETS, PLANNED):
        newest = OffsetLog(files.at(log), read_only=True).get_latest()
        if newest is not None:
            return newest[1]
    return None


def pinned_partitions(files: Files) -> int | None:
    """Return the number of state partitions that the checkpoint fixes; None if it is new."""
    newest = newest_entry(files)
    pinned = None if newest is None else newest.conf.get(SHUFFLE_PARTITIONS)
    if pinned is not None:
        return int(pinned)
    # A first run that ended before its first epoch has left no offsets, but operator metadata.
    operator = read_operator(files, 0)
    return operator.stores[0].num_partitions if operator and operator.stores else None


def operators_of(tree: Node) -> tuple[str, ...]:
    """Return the names of a tree's stateful operators, as Spark's metadata has them."""
    return tuple(node.spec.name for node in preorder(tree) if isinstance(node, Stateful))


def session_settings(spark: SparkSession, keys: Collection[str] = SESSION_KEYS) -> dict[str, str]:
    """The settings of a session that determine how a new query keeps its state."""
    settings = {key: spark.conf.get(key, None) for key in keys}
    return {key: value for key, value in settings.items() if value is not None}


def settings_in_force(files: Files, session: Mapping[str, str]) -> dict[str, str]:
    """The settings that the checkpoint pins, or that a new one will pin."""
    return FoundCheckpoint(newest=newest_entry(files)).settings(session)


def state_conf(
    files: Files, settings: Mapping[str, str], session: Mapping[str, str]
) -> StateStoreConf:
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
