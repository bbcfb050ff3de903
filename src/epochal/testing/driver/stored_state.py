"""What a query under test has made durable: its watermark, its state, and batches of Spark's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from epochal.checkpoint.entries import CommitEntry, CommitLog, OffsetLog
from epochal.checkpoint.layout import COMMITS, OFFSETS, PLANNED
from epochal.continuous.operators.contract import Row
from epochal.continuous.plan.logical import unique_names
from epochal.continuous.plan.stages import QueryPlan
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.epoch.manifest import is_finished_by_another, manifest_of
from epochal.errors import OptionError
from epochal.files import Files
from epochal.state.rows.types import StructType
from epochal.state.store.conf import StateStoreConf


def newest_watermark_ms(checkpoint: Files) -> int:
    """Return the watermark after the newest committed epoch; 0 if there is none."""
    newest = CommitLog(checkpoint.at(COMMITS), read_only=True).get_latest()
    return 0 if newest is None else newest[1].next_watermark_ms


def forget_planned(checkpoint: Files) -> None:
    """Remove the batch that Spark has planned but not committed, if there is one.

    The engine would read exactly its rows again, and a test does not have them.
    """
    newest = OffsetLog(checkpoint.at(OFFSETS), read_only=True).get_latest()
    committed = CommitLog(checkpoint.at(COMMITS), read_only=True).latest_batch_id()
    if newest is not None and newest[0] != committed and manifest_of(newest[1], OFFSETS) is None:
        checkpoint.delete(f"{OFFSETS}/{newest[0]}")
    checkpoint.delete_tree(PLANNED)


def stored_values(
    checkpoint: Files, plan: QueryPlan, conf: StateStoreConf, operator: int, store: str | None
) -> dict[Any, dict[str, Any]]:
    """Return the durable state of an operator: values by column, by key.

    A key is the tuple of its columns, or the column itself if there is just one.
    """
    schemas = _schemas(plan, operator)
    names = [schema for schema in schemas if store in (None, schema)]
    if len(names) != 1:
        raise OptionError(
            f"Operator {operator} has the stores {sorted(schemas)}. Say which: store=..."
        )
    (name,) = names
    rows = _load_rows(checkpoint, plan, conf).get((operator, name), {})
    columns = unique_names(schemas[name].names)
    return {
        (key[0] if len(key) == 1 else key): dict(zip(columns, row, strict=True))
        for key, row in rows.items()
    }


def _schemas(plan: QueryPlan, operator: int) -> dict[str, StructType]:
    """Return the schemas of an operator's values by the names of its stores."""
    stages = {stage.operator_id: stage for stage in plan.stages}
    if operator not in stages:
        raise OptionError(
            f"There is no stateful operator {operator}; the query has {sorted(stages)}."
        )
    stored = stages[operator].stateful.stores
    schemas = {schema.name: schema.value for schema in stored if not schema.has_families}
    families = [family for schema in stored for family in schema.families]
    return schemas | {family.name: family.rows.schema.value for family in families}


def _load_rows(
    checkpoint: Files, plan: QueryPlan, conf: StateStoreConf
) -> dict[tuple[int, str], dict[Row, Row]]:
    """Return the rows of all operators as a task gets them that goes on from the checkpoint."""
    rows_by_key: dict[tuple[int, str], dict[Row, Row]] = {}
    start = _start_of(checkpoint, conf)
    if start is None:
        return rows_by_key

    def taking(operator: int) -> _Loading:
        def take(store: str, rows: Iterable[tuple[Row, Row]]) -> None:
            loaded = rows_by_key.setdefault((operator, store), {})
            loaded.update({tuple(key): tuple(value) for key, value in rows})

        return _Loading(take)

    partitions = range(plan.state_partitions)
    stores = TaskStores(plan, partitions, checkpoint, conf, attempt=0, run_id="", writers=1)
    operators: list[Any] = [taking(stage.operator_id) for stage in plan.stages]
    stores.load(operators, start)
    return rows_by_key


def _start_of(checkpoint: Files, conf: StateStoreConf) -> StateStart | None:
    """Return the state after the newest epoch that is decided; None before the first."""
    offsets = OffsetLog(checkpoint.at(OFFSETS), read_only=True)
    commits = CommitLog(checkpoint.at(COMMITS), read_only=True)
    newest, committed = offsets.get_latest(), commits.get_latest()
    if newest is not None:
        epoch, entry = newest
        manifest = manifest_of(entry, OFFSETS, epoch)
        if manifest is not None and not is_finished_by_another(manifest, commits.get(epoch)):
            chain = manifest.chain
            if chain is None:
                return StateStart(epoch + 1, manifest.state)
            commit = commits.get(chain.published - 1) if chain.published else None
            if conf.checkpoint_format_version < 2:
                commit = None  # only unique ids are found in commits
            return StateStart(epoch + 1, None, commit or CommitEntry(), chain)
    return None if committed is None else StateStart(committed[0] + 1, None, committed[1])


class _Loading:
    """Takes the place of an operator that loads its state."""

    def __init__(self, take: Callable[[str, Iterable[tuple[Row, Row]]], None]) -> None:
        self._take = take

    def load(self, partition: int, store: str, rows: Iterable[tuple[Row, Row]]) -> None:
        del partition
        self._take(store, rows)
