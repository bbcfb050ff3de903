"""Collects the state files of the batch that an edit adds.

Every store of every operator needs a file of the new version. A store that the edit does not name
keeps its state: it gets an empty delta or changelog, or a copy of its RocksDB snapshot. With unique
ids, every store gets a new one, and the commit lists them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

from epochal.checkpoint.layout import StoreKey
from epochal.checkpoint.pinned import NEW_QUERY_DEFAULTS, TABLE_FORMAT
from epochal.state.files.rocksdb_changelog import LineageItem
from epochal.state.store.rocksdb_versions import open_rocksdb
from epochal.state.store.stored_version import StoreContent
from epochal.tools.edit.edit_plan import Change
from epochal.tools.edit.empty_batch import empty_batches
from epochal.tools.edit_state.edit_state import EditBase, EditedBatch


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
        self,
        key: StoreKey,
        content: StoreContent,
        changes: Iterable[tuple[bytes, bytes | None]],
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
        rocks = open_rocksdb(base.surveyed.files.at(key.path), base.settings)
        earlier = () if before in rocks.snapshots else rocks.changelog(before).lineage
        return (*earlier, before)


def _new_id() -> str:
    return str(uuid.uuid4())
