"""Plans the state files of batches that change no state.

After batch N, Spark loads version N+1 of every store. So a batch that a tool adds must give every
store of every partition its next version: an empty delta, or a copy of the previous version's
snapshot if the state is RocksDB's and has one. This module reads, but never writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from epochal.checkpoint.entries import CommitEntry
from epochal.checkpoint.layout import StoreKey
from epochal.checkpoint.pinned import CODEC
from epochal.errors import EditError
from epochal.state.files.rocksdb_changelog import LineageItem
from epochal.tools.edit.edit_plan import Change, Content, FileRef
from epochal.tools.edit.survey import Survey


@dataclass(frozen=True, slots=True)
class EmptyBatches:
    """The state files of the new batches, and the commit entry of each."""

    changes: tuple[Change, ...]
    commits: tuple[CommitEntry, ...]


def empty_batches(
    surveyed: Survey, batch_id: int, batches: int, new_id: Callable[[], str]
) -> EmptyBatches:
    """Plan `batches` new versions with the state after `batch_id`, for every store."""
    codec = surveyed.offsets[batch_id].conf.get(CODEC, "lz4")
    newest = {
        store.key: store.format.versions.carried_version(
            surveyed.stored(store, batch_id + 1, batch_id), store.files
        )
        for store in surveyed.stores_at(batch_id)
    }
    commit = surveyed.commits[batch_id]
    changes: list[Change] = []
    commits: list[CommitEntry] = []
    for _ in range(batches):
        ids: dict[StoreKey, str] = {}
        for store in surveyed.stores_at(batch_id):
            carried = newest[store.key]
            item = LineageItem(carried.item.version + 1, new_id() if carried.item.unique_id else "")
            versions = store.format.versions
            name, data, newest[store.key] = versions.next_carried(carried, item, codec)
            why = f"version {item.version}, the same state as {carried.item.version}"
            if data is None:
                copied = f"{store.path}/{carried.snapshot}"
                content: Content = FileRef("", copied, surveyed.tree.infos[copied].size)
            else:
                content = data
            changes.append(surveyed.tree.write(f"{store.path}/{name}", content, why))
            ids[store.key] = item.unique_id
        for key in commit.store_ids():
            if key not in ids:
                raise EditError(
                    f"{surveyed.url}/state/{key.operator}/{key.partition}",
                    f"the commit log names a store {key.store!r} here, but it has no directory. No "
                    f"batch can be added without it. Run `epochal checkpoint verify` to see how to "
                    f"restore it.",
                )
        commit = commit.with_store_ids({key: ids[key] for key in commit.store_ids()})
        commits.append(commit)
    return EmptyBatches(tuple(changes), tuple(commits))
