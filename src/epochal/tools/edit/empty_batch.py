"""Plans the state files of batches that change no state.

After batch N, Spark loads version N+1 of every store. So a batch that a tool adds must give every
store of every partition its next version. HDFS-backed state gets an empty delta. RocksDB gets a
copy of the previous version's snapshot, or an empty changelog if there is no such snapshot. This
module reads, but never writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from epochal.checkpoint.entries import CommitEntry
from epochal.checkpoint.layout import JOIN_STORES
from epochal.checkpoint.pinned import CODEC
from epochal.checkpoint.spark_json import to_json
from epochal.errors import EditError
from epochal.state.files.codecs import compress
from epochal.state.files.delta_snapshot import encode_records
from epochal.state.files.rocksdb_changelog import LineageItem
from epochal.state.store.rocksdb_directory import file_name
from epochal.tools.edit.edit_plan import Change, FileRef
from epochal.tools.edit.survey import Survey, rocks_directory
from epochal.tools.inspect.state_listing import ROCKSDB, StoreListing

END_OF_PLAIN = b"\xff\xff\xff\xff"
END_OF_TAGGED = b"\x00"


@dataclass(frozen=True, slots=True)
class EmptyBatches:
    """The state files of the new batches, and the commit entry of each."""

    changes: tuple[Change, ...]
    commits: tuple[CommitEntry, ...]


@dataclass(frozen=True, slots=True)
class _StoreVersion:
    """One version of a store, from which the next one is derived."""

    store: StoreListing
    item: LineageItem
    snapshot: FileRef | None
    layout: int = 0
    lineage: tuple[LineageItem, ...] = ()


def empty_batches(
    surveyed: Survey, batch_id: int, batches: int, new_id: Callable[[], str]
) -> EmptyBatches:
    """Plan `batches` new versions with the state after `batch_id`, for every store."""
    codec = surveyed.offsets[batch_id].conf.get(CODEC, "lz4")
    newest = [_store_version(surveyed, store, batch_id) for store in surveyed.stores_at(batch_id)]
    commit = surveyed.commits[batch_id]
    changes: list[Change] = []
    commits: list[CommitEntry] = []
    for _ in range(batches):
        ids: dict[tuple[int, int, str], str] = {}
        following: list[_StoreVersion] = []
        for version in newest:
            item = LineageItem(version.item.version + 1, new_id() if version.item.unique_id else "")
            change, after = _next_version(surveyed, version, item, codec)
            changes.append(change)
            following.append(after)
            store = version.store
            ids[store.operator, store.partition, store.name] = item.unique_id
        newest = following
        commit = _with_ids(surveyed, commit, ids)
        commits.append(commit)
    return EmptyBatches(tuple(changes), tuple(commits))


def _store_version(surveyed: Survey, store: StoreListing, batch_id: int) -> _StoreVersion:
    item = LineageItem(batch_id + 1, surveyed.unique_id(store, batch_id))
    if store.provider != ROCKSDB:
        return _StoreVersion(store, item, None)
    snapshot = f"{store.path}/{file_name(item, 'zip')}"
    if snapshot in surveyed.tree:
        size = surveyed.tree.infos[snapshot].size
        return _StoreVersion(store, item, FileRef("", snapshot, size), 0, (item,))
    changelog = rocks_directory(surveyed, store, batch_id).changelog(item)
    return _StoreVersion(store, item, None, changelog.layout, (*changelog.lineage, item))


def _next_version(
    surveyed: Survey, version: _StoreVersion, item: LineageItem, codec: str
) -> tuple[Change, _StoreVersion]:
    tree, store = surveyed.tree, version.store
    why = f"version {item.version}, the same state as {version.item.version}"
    if store.provider != ROCKSDB:
        content = compress(encode_records(()), codec)
        return tree.write(f"{store.path}/{item.version}.delta", content, why), replace(
            version, item=item
        )
    if version.snapshot is not None:
        path = f"{store.path}/{file_name(item, 'zip')}"
        return tree.write(path, version.snapshot, why), replace(version, item=item, lineage=(item,))
    path = f"{store.path}/{file_name(item, 'changelog')}"
    content = compress(_empty_changelog(version.layout, version.lineage), codec)
    after = replace(version, item=item, lineage=(*version.lineage, item))
    return tree.write(path, content, why), after


def _empty_changelog(layout: int, lineage: tuple[LineageItem, ...]) -> bytes:
    end = END_OF_TAGGED if layout in (2, 4) else END_OF_PLAIN
    if layout == 1:
        return end
    head = _utf(f"v{layout}")
    if layout >= 3:
        items = [{"version": i.version, "checkpointUniqueId": i.unique_id} for i in lineage]
        head += _utf(to_json(items))
    return head + end


def _utf(text: str) -> bytes:
    """Encode a string like Java's `writeUTF`. Versions and ids are plain ASCII."""
    raw = text.encode("ascii")
    return len(raw).to_bytes(2, "big") + raw


def _with_ids(
    surveyed: Survey, commit: CommitEntry, ids: dict[tuple[int, int, str], str]
) -> CommitEntry:
    if not commit.state_unique_ids:
        return commit
    renamed: dict[int, tuple[tuple[str, ...], ...]] = {}
    for operator, partitions in commit.state_unique_ids.items():
        renamed[operator] = tuple(
            tuple(
                _new_id(surveyed, ids, operator, partition, place, len(stores))
                for place in range(len(stores))
            )
            for partition, stores in enumerate(partitions)
        )
    return replace(commit, state_unique_ids=renamed)


def _new_id(
    surveyed: Survey,
    ids: dict[tuple[int, int, str], str],
    operator: int,
    partition: int,
    place: int,
    stores: int,
) -> str:
    name = JOIN_STORES[place] if stores == len(JOIN_STORES) else "default"
    try:
        return ids[operator, partition, name]
    except KeyError:
        raise EditError(
            f"{surveyed.url}/state/{operator}/{partition}",
            f"the commit log names a store {name!r} here, but it has no directory. No batch can be "
            f"added without it. Run `epochal checkpoint verify` to see how to restore it.",
        ) from None
