"""Collects the state files of the batch that an edit adds, for both providers.

Every store of every operator needs a file of the new version. A store that the edit does not name
keeps its state: it gets an empty delta or changelog, or a copy of its RocksDB snapshot. With unique
ids, every store gets a new one, and the commit lists them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from epochal.checkpoint.entries import CommitEntry
from epochal.checkpoint.layout import DEFAULT_STORE, JOIN_STORES, state_store_path
from epochal.checkpoint.pinned import TABLE_FORMAT
from epochal.state.files.chain import delta_name, snapshot_name
from epochal.state.files.codecs import compress
from epochal.state.files.delta_snapshot import encode_records
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_changelog import (
    LineageItem,
    encode_changelog,
    encode_family_changelog,
)
from epochal.state.files.rocksdb_family import describe_entries
from epochal.state.files.rocksdb_snapshot import encode_snapshot
from epochal.state.store.rocksdb_directory import RocksContent, file_name
from epochal.tools.edit.edit_plan import Change
from epochal.tools.edit.empty_batch import empty_batches
from epochal.tools.edit_state.edit_state import EditBase, EditedBatch, snapshot_bytes
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.load_version import open_rocksdb

_DEFAULT_TABLE_FORMAT = "5"


class Place(NamedTuple):
    """One store of one partition."""

    operator: int
    partition: int
    store: str = DEFAULT_STORE

    @property
    def path(self) -> str:
        return state_store_path(self.operator, self.partition, self.store)


class NextVersion:
    """The version after `base`. It starts as a copy, of which an edit replaces some stores."""

    def __init__(self, base: EditBase) -> None:
        self._base = base
        carried = empty_batches(base.surveyed, base.batch_id, 1, _new_id)
        by_folder = {change.path.rpartition("/")[0]: change for change in carried.changes}
        self._carried: dict[Place, Change] = {
            place: by_folder[place.path] for place in map(place_of_store, base.stores)
        }
        self._ids = dict(_ids_of(carried.commits[0]))
        self._files: dict[str, bytes] = {}

    def remove(self, operator: int, store: str | None = None) -> None:
        """Write no files for the stores of an operator, or for those with one name."""
        for place in [*self._carried, *self._ids]:
            if place.operator == operator and store in (None, place.store):
                self._carried.pop(place, None)
                self._ids.pop(place, None)

    def write_rows(self, place: Place, rows: Iterable[Rows]) -> None:
        """Give an HDFS-backed store exactly these rows."""
        self._carried.pop(place, None)
        path = f"{place.path}/{snapshot_name(self._base.next_version)}"
        self._files[path] = snapshot_bytes(rows, self._base.settings)

    def write_content(self, place: Place, content: RocksContent) -> None:
        """Give a RocksDB-backed store exactly this content."""
        metadata = describe_entries(
            content.entries, content.families, content.highest_family, content.internal
        )
        table_format = int(self._base.offsets.conf.get(TABLE_FORMAT, _DEFAULT_TABLE_FORMAT))
        # A database is written fastest in the order of its keys.
        files = encode_snapshot(sorted(content.entries.items()), metadata, table_format)
        self._carried.pop(place, None)
        for name, data in files.shared:
            self._files[f"{place.path}/{name}"] = data
        self._files[f"{place.path}/{file_name(self._item(place), 'zip')}"] = files.archive

    def change_rows(self, place: Place, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Put and delete rows of an HDFS-backed store."""
        settings = self._base.settings
        data = encode_records(records, row_checksums=settings.form.checksummed)
        self._carried.pop(place, None)
        path = f"{place.path}/{delta_name(self._base.next_version)}"
        self._files[path] = compress(data, settings.codec)

    def change_content(
        self, place: Place, changes: Iterable[tuple[bytes, bytes | None]], *, has_families: bool
    ) -> None:
        """Put and delete entries of a RocksDB-backed store; values are complete.

        Spark replays changelogs above the newest snapshot even if the query does not write any.
        """
        form = self._base.settings.form
        # Values have their checksums already. The key of a removed entry gets its own here.
        records = [form.record(k, None) if v is None else (k, v) for k, v in changes]
        item = self._item(place)
        lineage = self._lineage(place) if item.unique_id else None
        encode = encode_family_changelog if has_families else encode_changelog
        self._carried.pop(place, None)
        path = f"{place.path}/{file_name(item, 'changelog')}"
        self._files[path] = compress(encode(records, lineage), self._base.settings.codec)

    def edited(
        self,
        conf: Mapping[str, str] | None = None,
        others: Iterable[Change] = (),
        emptied: tuple[str, ...] = (),
    ) -> EditedBatch:
        """The new batch, with settings that differ and further changes."""
        changes = (*self._carried.values(), *others)
        return EditedBatch(self._files, conf or {}, self._commit(), changes, emptied)

    def _item(self, place: Place) -> LineageItem:
        if not self._base.commit.state_unique_ids:
            return LineageItem(self._base.next_version, "")
        return LineageItem(self._base.next_version, self._ids.setdefault(place, _new_id()))

    def _lineage(self, place: Place) -> tuple[LineageItem, ...]:
        base = self._base
        unique_id = base.commit.state_id(place.operator, place.partition, place.store)
        before = LineageItem(base.version, unique_id)
        rocks = open_rocksdb(base.surveyed.files.at(place.path), base.settings)
        earlier = () if before in rocks.snapshots else rocks.changelog(before).lineage
        return (*earlier, before)

    def _commit(self) -> CommitEntry:
        commit = self._base.commit
        if not commit.state_unique_ids:
            return commit
        ids: dict[int, dict[int, dict[str, str]]] = {}
        for place, unique_id in self._ids.items():
            partitions = ids.setdefault(place.operator, {})
            partitions.setdefault(place.partition, {})[place.store] = unique_id
        return replace(
            commit,
            state_unique_ids={
                operator: tuple(
                    tuple(stores[name] for name in sorted(stores, key=_order))
                    for _, stores in sorted(partitions.items())
                )
                for operator, partitions in sorted(ids.items())
            },
        )


def place_of_store(store: StoreListing) -> Place:
    """The place of a listed store."""
    return Place(store.operator, store.partition, store.name)


def load_content(base: EditBase, store: StoreListing) -> RocksContent:
    """Everything in a RocksDB-backed store at the version that is edited."""
    rocks = open_rocksdb(base.surveyed.files.at(store.path), base.settings)
    return rocks.load(base.version, base.surveyed.unique_id(store, base.batch_id))


def _ids_of(commit: CommitEntry) -> Iterator[tuple[Place, str]]:
    for operator, partitions in (commit.state_unique_ids or {}).items():
        for partition, ids in enumerate(partitions):
            names = JOIN_STORES if len(ids) == len(JOIN_STORES) else (DEFAULT_STORE,)
            for name, unique_id in zip(names, ids, strict=True):
                yield Place(operator, partition, name), unique_id


def _order(store: str) -> int:
    return JOIN_STORES.index(store) if store in JOIN_STORES else 0


def _new_id() -> str:
    return str(uuid.uuid4())
