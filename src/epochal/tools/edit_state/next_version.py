"""Collects the state files of the batch that an edit adds, and the schemas of rewritten state.

Every store of every operator needs a file of the new version. A store that the edit does not name
keeps its state: it gets an empty delta or changelog, or a copy of its RocksDB snapshot. With unique
ids, every store gets a new one, and the commit lists them.

A store without column families has one schema file, in its partition 0, which is replaced. A store
with families has a log: a new file, which the operator metadata of the new batch names.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from epochal.checkpoint.layout import (
    StoreKey,
    operator_metadata_log_path,
    state_schema_log_path,
    state_schema_path,
)
from epochal.checkpoint.operator_metadata import OPERATOR_FORMAT
from epochal.checkpoint.restart import NEW_QUERY_DEFAULTS, TABLE_FORMAT
from epochal.errors import EditError
from epochal.state.files.rocksdb_changelog import LineageItem
from epochal.state.files.schema_file import FamilySchema, encode_schema_file
from epochal.state.store.contract import StoreContent
from epochal.state.store.rocksdb_directory import RocksDirectory
from epochal.tools.edit.edit_plan import Change
from epochal.tools.edit.empty_batch import empty_batches
from epochal.tools.edit_state.edit_state import EditBase, EditedBatch
from epochal.tools.read_state.read_target import StateBatch, StoreTarget


class NextVersion:
    """The version after `base`. It starts as a copy, of which an edit replaces some stores."""

    def __init__(self, base: EditBase) -> None:
        self._base = base
        carried = empty_batches(base.surveyed, base.batch_id, 1, _new_id)
        by_folder = {change.path.rpartition("/")[0]: change for change in carried.changes}
        self._carried: dict[StoreKey, Change] = {
            store.key: by_folder[store.path] for store in base.stores
        }
        self._ids = carried.commits[0].store_ids()
        self._files: dict[str, bytes] = {}

    def remove(self, operator: int, store: str | None = None) -> None:
        """Write no files for the stores of an operator, or for those with one name."""
        for key in [*self._carried, *self._ids]:
            if key.operator == operator and store in (None, key.store):
                self._carried.pop(key, None)
                self._ids.pop(key, None)

    def write(self, key: StoreKey, content: StoreContent) -> None:
        """Give a store exactly this content."""
        base = self._base
        table_format = int(base.offsets.conf.get(TABLE_FORMAT, NEW_QUERY_DEFAULTS[TABLE_FORMAT]))
        self._carried.pop(key, None)
        for name, data in content.encode(self._item(key), base.settings, table_format).items():
            self._files[f"{key.path}/{name}"] = data

    def change(
        self, key: StoreKey, content: StoreContent, changes: Iterable[tuple[bytes, bytes | None]]
    ) -> None:
        """Put and delete records of a store with this content; values are complete."""
        item = self._item(key)
        lineage = self._lineage(key) if item.unique_id else None
        self._carried.pop(key, None)
        name, data = content.encode_changes(changes, item, lineage, self._base.settings)
        self._files[f"{key.path}/{name}"] = data

    def edited(
        self,
        conf: Mapping[str, str] | None = None,
        others: Iterable[Change] = (),
        emptied: tuple[str, ...] = (),
    ) -> EditedBatch:
        """The new batch, with settings that differ and further changes."""
        changes = (*self._carried.values(), *others)
        commit = self._base.commit.with_store_ids(dict(sorted(self._ids.items())))
        return EditedBatch(self._files, conf or {}, commit, changes, emptied)

    def _item(self, key: StoreKey) -> LineageItem:
        if not self._base.commit.state_unique_ids:
            return LineageItem(self._base.next_version, "")
        return LineageItem(self._base.next_version, self._ids.setdefault(key, _new_id()))

    def _lineage(self, key: StoreKey) -> tuple[LineageItem, ...]:
        base = self._base
        before = LineageItem(base.version, base.commit.state_id(*key))
        rocks = RocksDirectory(base.surveyed.files.at(key.path), base.settings)
        earlier = () if before in rocks.snapshots else rocks.changelog(before).lineage
        return (*earlier, before)


def _new_id() -> str:
    return str(uuid.uuid4())


WHY = "the new schema"


def new_schema(
    base: EditBase, batch: StateBatch, operator: int, schema: FamilySchema, target: StoreTarget
) -> Iterator[Change]:
    """Record the new schema of a store, or of one of its column families."""
    tree, store = base.surveyed.tree, target.store_name
    if target.family is None:
        yield tree.write(state_schema_path(operator, store), encode_schema_file([schema]), WHY)
        return
    families = {**batch.schemas(operator, store), target.family: schema}
    yield from new_families(base, batch, operator, store, list(families.values()))


def new_families(
    base: EditBase, batch: StateBatch, operator: int, store: str, families: list[FamilySchema]
) -> Iterator[Change]:
    """Record the new schemas of all column families of a store."""
    tree, batch_id = base.surveyed.tree, base.batch_id + 1
    metadata = batch.operator(operator)
    if metadata is None:
        raise EditError(base.url, f"operator {operator} has no metadata that names its schemas.")
    name = f"{batch_id}_{uuid.uuid4()}"
    path = f"{state_schema_log_path(operator, store)}/{name}"
    yield tree.write(path, encode_schema_file(families, version=3), WHY)
    # Spark reads the path as it stands here, so the new file is named like the one before it.
    stores = tuple(
        replace(
            recorded,
            schema_file_paths=(f"{recorded.schema_file_paths[-1].rpartition('/')[0]}/{name}",),
        )
        if recorded.name == store
        else recorded
        for recorded in metadata.stores
    )
    data = OPERATOR_FORMAT.serialize(replace(metadata, stores=stores))
    yield tree.write(f"{operator_metadata_log_path(operator)}/{batch_id}", data, WHY)
