"""The same state once more, under the next version: what a batch without rows leaves behind.

Spark loads version N+1 for every partition and store after batch N, so a batch that a tool adds
must give each of them that version. For HDFS-backed state it is an empty delta; for RocksDB the
snapshot again, or an empty changelog where there is no snapshot of the version before. Reads the
last changelogs; decides; writes nothing.
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
from epochal.tools.edit.edit_plan import Change, Elsewhere
from epochal.tools.edit.survey import Survey, rocks_directory
from epochal.tools.inspect.state_listing import ROCKSDB, StorePicture
from epochal.tools.read_state.rocksdb import file_name

END_OF_PLAIN = b"\xff\xff\xff\xff"
END_OF_TAGGED = b"\x00"


@dataclass(frozen=True, slots=True)
class Carried:
    """The files of the new versions, and the commit entry of the last one."""

    changes: tuple[Change, ...]
    commits: tuple[CommitEntry, ...]


@dataclass(frozen=True, slots=True)
class _Held:
    """How one store's newest version is held, while it is carried on from one to the next."""

    store: StorePicture
    item: LineageItem
    snapshot: Elsewhere | None
    layout: int = 0
    lineage: tuple[LineageItem, ...] = ()


def carry_state(
    surveyed: Survey, batch_id: int, batches: int, new_id: Callable[[], str]
) -> Carried:
    """Give every store that batch `batch_id` left the versions of `batches` more."""
    codec = surveyed.offsets[batch_id].conf.get(CODEC, "lz4")
    helds = [_held(surveyed, store, batch_id) for store in surveyed.stores_at(batch_id)]
    commit = surveyed.commits[batch_id]
    changes: list[Change] = []
    commits: list[CommitEntry] = []
    for _ in range(batches):
        ids: dict[tuple[int, int, str], str] = {}
        following: list[_Held] = []
        for held in helds:
            item = LineageItem(held.item.version + 1, new_id() if held.item.unique_id else "")
            change, after = _carried(surveyed, held, item, codec)
            changes.append(change)
            following.append(after)
            ids[held.store.operator, held.store.partition, held.store.name] = item.unique_id
        helds = following
        commit = _with_ids(surveyed, commit, ids)
        commits.append(commit)
    return Carried(tuple(changes), tuple(commits))


def _held(surveyed: Survey, store: StorePicture, batch_id: int) -> _Held:
    item = LineageItem(batch_id + 1, surveyed.unique_id(store, batch_id))
    if store.provider != ROCKSDB:
        return _Held(store, item, None)
    snapshot = f"{store.path}/{file_name(item, 'zip')}"
    if snapshot in surveyed.tree:
        size = surveyed.tree.infos[snapshot].size
        return _Held(store, item, Elsewhere("", snapshot, size), 0, (item,))
    changelog = rocks_directory(surveyed, store, batch_id).changelog(item)
    return _Held(store, item, None, changelog.layout, (*changelog.lineage, item))


def _carried(surveyed: Survey, held: _Held, item: LineageItem, codec: str) -> tuple[Change, _Held]:
    tree, store = surveyed.tree, held.store
    why = f"version {item.version}, the same state as {held.item.version}"
    if store.provider != ROCKSDB:
        content = compress(encode_records(()), codec)
        return tree.write(f"{store.path}/{item.version}.delta", content, why), replace(
            held, item=item
        )
    if held.snapshot is not None:
        path = f"{store.path}/{file_name(item, 'zip')}"
        return tree.write(path, held.snapshot, why), replace(held, item=item, lineage=(item,))
    path = f"{store.path}/{file_name(item, 'changelog')}"
    content = compress(_empty_changelog(held.layout, held.lineage), codec)
    after = replace(held, item=item, lineage=(*held.lineage, item))
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
    """A string as Java writes it; versions and ids are plain ASCII."""
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
            f"the commit log names a store {name!r} here that has no directory; a batch cannot "
            f"be added to it. Run `epochal checkpoint verify`.",
        ) from None
