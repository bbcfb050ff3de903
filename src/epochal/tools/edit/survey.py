"""Reads a checkpoint once, before an edit is planned.

Note: a version that has files cannot always be loaded. Spark's cleanup removes old snapshots and
may leave the deltas that depend on them.

After batch N, Spark loads version N+1 of every store. So a batch that a tool adds must give every
store of every partition its next version: an empty delta, or a copy of the previous version's
snapshot if the state is RocksDB's and has one. `empty_batches` plans these files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from epochal.checkpoint.entries import CommitEntry, OffsetEntry
from epochal.checkpoint.layout import COMMITS, OFFSETS, StoreKey
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.checkpoint.restart import CODEC
from epochal.errors import EditError, StateError
from epochal.files import Files
from epochal.tools.edit.edit_plan import Change, Content, FileRef, Tree, Watch, read_tree
from epochal.tools.inspect.listing import CheckpointListing, gather
from epochal.tools.inspect.state_listing import OperatorListing, StoreListing, operators_of
from epochal.tools.verify.findings import START_OVER

if TYPE_CHECKING:
    from epochal.state.store.contract import StoredVersion
    from epochal.state.store.rocksdb_directory import RocksDirectory
    from epochal.tools.verify.check_load import LoadCheck
    from epochal.tools.verify.findings import Finding


class Survey:
    """A checkpoint at one moment: its logs, the size and time of every file, its state stores."""

    def __init__(self, listing: CheckpointListing, tree: Tree) -> None:
        self.listing, self.tree = listing, tree
        self.files, self.url = listing.files, listing.url
        self._load_check: LoadCheck | None = None
        self.offsets: Mapping[int, OffsetEntry] = listing.offsets.entries
        self.commits: Mapping[int, CommitEntry] = listing.commits.entries

    @cached_property
    def operators(self) -> list[OperatorListing]:
        return operators_of(self.listing.directories)

    @cached_property
    def stores(self) -> list[StoreListing]:
        return [store for operator in self.operators for store in operator.stores]

    def store_of(self, path: str) -> StoreListing | None:
        return next((store for store in self.stores if path.startswith(f"{store.path}/")), None)

    def log_watches(self) -> tuple[Watch, ...]:
        """Watches that make a plan fail if batches are added or removed before it is applied."""
        return self.tree.watch(OFFSETS), self.tree.watch(COMMITS)

    def stores_at(self, batch_id: int) -> Iterator[StoreListing]:
        """The stores that a restart after `batch_id` loads: a repartition may have made more."""
        count = self.listing.partitions_at(batch_id)
        return (store for store in self.stores if count is None or store.partition < count)

    def missing_state(self, batch_id: int) -> str | None:
        """The first file without which the state after `batch_id` cannot be loaded."""
        for store in self.stores_at(batch_id):
            unique_id = self.unique_id(store, batch_id)
            if unique_id:
                try:
                    rocks_directory(self, store, batch_id).plan(batch_id + 1, unique_id)
                except StateError as error:
                    return f"the files of version {batch_id + 1} with id {unique_id} ({error})"
            elif (name := missing_file(store, batch_id + 1)) is not None:
                return f"{store.path}/{name}"
        return None

    def damaged_state(self, batch_id: int) -> Finding | None:
        """What else keeps the state after `batch_id` from being loaded; reads its files."""
        from epochal.tools.verify.check_load import LoadCheck

        if self._load_check is None:
            self._load_check = LoadCheck(self.listing)
        return next(self._load_check.problems(batch_id), None)

    def unique_id(self, store: StoreListing, batch_id: int) -> str:
        """The id of the files that hold a store's version after `batch_id`; empty in format 1."""
        commit = self.commits.get(batch_id, CommitEntry())
        return commit.state_id(*store.key)

    def stored(self, store: StoreListing, version: int, batch_id: int) -> StoredVersion:
        """A version of a store, to be read with what a batch says about files.

        What it says about values is left out: none of them is read.
        """
        from epochal.state.store.contract import FileSettings, StoredVersion

        settings = FileSettings(self.offsets[batch_id].conf.get(CODEC, "lz4"))
        unique_id = self.unique_id(store, version - 1)
        return StoredVersion(self.files.at(store.path), version, unique_id, settings)


def survey(files: Files) -> Survey:
    return Survey(gather(files), read_tree(files))


def missing_file(store: StoreListing, version: int) -> str | None:
    """The first file that loading `version` of a store without unique ids would not find."""
    missing = store.chain(version).first_missing
    return None if missing is None else f"{missing}.{store.delta_suffix}"


def rocks_directory(
    surveyed: Survey, store: StoreListing, batch_id: int, files: Files | None = None
) -> RocksDirectory:
    """Open the directory of a RocksDB store with the settings of a batch.

    `files` are those of the checkpoint, or a view of them.
    """
    from epochal.state.store.rocksdb_directory import RocksDirectory

    settings = surveyed.stored(store, batch_id + 1, batch_id).settings
    return RocksDirectory((files or surveyed.files).at(store.path), settings)


def last_committed(surveyed: Survey) -> int:
    """The newest batch that is in both logs; EditError if there is none."""
    both = surveyed.offsets.keys() & surveyed.commits.keys()
    if not both:
        raise EditError(
            surveyed.url,
            f"no batch has both offsets and a commit, so there is nothing to continue from. Let "
            f"the query finish its first batch, or {START_OVER}.",
        )
    return max(both)


def log_names(tree: Tree, log: str) -> dict[str, int]:
    """Return every name that Spark takes for a batch, `007` included, with its batch id."""
    found: dict[str, int] = {}
    for path in tree.under(log):
        name = path[len(log) + 1 :]
        batch_id = parse_batch_id(name) if "/" not in name else None
        if batch_id is not None:
            found[name] = batch_id
    return found


def delete_batches_after(tree: Tree, above: int, why: str) -> Iterator[Change]:
    """Delete every batch above `above` from both logs.

    The newest batch goes first, and of each batch the commit before the offsets. So at every moment
    the remaining logs are such that Spark can restart from them.
    """
    commits, offsets = log_names(tree, COMMITS), log_names(tree, OFFSETS)
    for batch_id in sorted({*commits.values(), *offsets.values()}, reverse=True):
        if batch_id > above:
            for log, names in ((COMMITS, commits), (OFFSETS, offsets)):
                for name, number in names.items():
                    if number == batch_id:
                        yield tree.delete(f"{log}/{name}", why)


@dataclass(frozen=True, slots=True)
class EmptyBatches:
    """The state files of the new batches, and the commit entry of each."""

    changes: tuple[Change, ...]
    commits: tuple[CommitEntry, ...]


def empty_batches(
    surveyed: Survey, batch_id: int, batches: int, new_id: Callable[[], str]
) -> EmptyBatches:
    """Plan `batches` new versions with the state after `batch_id`, for every store."""
    from epochal.state.files.rocksdb_changelog import LineageItem

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
