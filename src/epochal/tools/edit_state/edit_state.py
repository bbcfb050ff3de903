"""Decides what an edit of state writes: always a new batch, never a changed old one.

An edit after batch N creates batch N+1: the same offsets, watermark and settings in both logs, and
version N+2 of every store of every operator. Existing files are not changed. So batch N stays
readable, `diff` and the change feed show exactly what the edit did, and undo only has to delete
files. To Spark it is a batch that read no input; the query continues with batch N+2. The log of a
file sink gets an empty entry for batch N+1.

Note: every store of every partition needs a file of the new version, including those that the edit
does not change. These get an empty delta.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.checkpoint.layout import COMMITS, OFFSETS
from epochal.errors import EditError
from epochal.state.files.chain import delta_name
from epochal.state.files.codecs import compress
from epochal.state.files.delta_snapshot import END_MARK, encode_records, encode_spans
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_changelog import LineageItem, encode_changelog
from epochal.state.store.rocksdb_directory import file_name, parse_name
from epochal.tools.edit.edit_file_log import SinkSurvey, add_sink_batches
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.edit.empty_batch import empty_batches
from epochal.tools.edit.rewind import delete_state_after
from epochal.tools.edit.survey import Survey, rocks_directory
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.read_target import Provider, StateSettings


@dataclass(frozen=True, slots=True)
class EditBase:
    """The batch that an edit follows: the newest one, committed, with state."""

    surveyed: Survey
    batch_id: int
    offsets: OffsetEntry
    commit: CommitEntry
    settings: StateSettings

    @property
    def url(self) -> str:
        return self.surveyed.url

    @property
    def version(self) -> int:
        """The version of the state that is edited."""
        return self.batch_id + 1

    @property
    def next_version(self) -> int:
        """The version that the edit writes."""
        return self.batch_id + 2

    @property
    def stores(self) -> list[StoreListing]:
        """Every store of the batch."""
        return list(self.surveyed.stores_at(self.batch_id))


@dataclass(frozen=True, slots=True)
class EditedBatch:
    """How the new batch differs from a copy of the one before."""

    files: Mapping[str, bytes]
    """State files by path."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Settings that differ from the batch before."""
    commit: CommitEntry | None = None
    others: tuple[Change, ...] = ()
    """Changes to files that do not belong to one version: metadata, schemas, deletions."""


def find_edit_base(
    surveyed: Survey,
    *,
    provider: Provider | None = Provider.HDFS,
    batch_id: int | None = None,
) -> EditBase:
    """The newest batch, if an edit may follow it; otherwise an EditError with the reason.

    Pass `batch_id` to use an older batch, if it is known that later ones may be replaced.
    """
    url = surveyed.url
    started = surveyed.listing.offsets.latest if batch_id is None else batch_id
    committed = surveyed.listing.commits.latest
    if started is None:
        raise EditError(url, "[NO_BATCH_FOUND] the offset log is empty: there is no state to edit.")
    if committed is None:
        raise EditError(url, "[NO_COMMITTED_BATCH] no batch is committed yet: run the query first.")
    if started != committed:
        raise EditError(
            url,
            f"[LAST_BATCH_FAILED] batch {started} was started, but the newest committed batch is "
            f"{committed}. Start the query so that it finishes, or remove the batch with `epochal "
            f"checkpoint rewind --to-batch {committed}`. Then edit.",
        )
    for log in (surveyed.listing.offsets, surveyed.listing.commits):
        if started in log.broken:
            raise EditError(url, f"{log.path}/{started} cannot be read: {log.broken[started]}")
    if not surveyed.stores:
        raise EditError(url, "the query keeps no state.")
    entry = surveyed.offsets[started]
    settings = StateSettings.from_conf(entry.conf, url)
    if provider is not None and settings.provider is not provider:
        raise EditError(
            url,
            f"[UNSUPPORTED_PROVIDER] its state is kept by the {settings.provider} provider, but "
            f"this edit works only for {provider}.",
        )
    return EditBase(surveyed, started, entry, surveyed.commits[started], settings)


def empty_delta(base: EditBase) -> bytes:
    """The delta of a version without changes."""
    return compress(encode_records(()), base.settings.codec)


def snapshot_bytes(parts: Iterable[Rows], settings: StateSettings) -> bytes:
    """The content of a snapshot file with exactly these rows."""
    checksums = settings.form.checksummed
    pieces = [
        encode_spans(rows.keys, rows.values, row_checksums=checksums)[: -len(END_MARK)]
        for rows in parts
    ]
    return compress(b"".join((*pieces, END_MARK)), settings.codec)


def delta_files(
    base: EditBase, changed: Mapping[str, Iterable[tuple[bytes, bytes | None]]]
) -> dict[str, bytes]:
    """A delta for every store: the records in `changed` for its directory, or an empty one."""
    name, nothing = delta_name(base.next_version), empty_delta(base)
    checksums = base.settings.form.checksummed
    files: dict[str, bytes] = {}
    for store in base.stores:
        records = changed.get(store.path)
        files[f"{store.path}/{name}"] = (
            nothing
            if records is None
            else compress(encode_records(records, row_checksums=checksums), base.settings.codec)
        )
    return files


def changelog_edit(
    base: EditBase, changed: Mapping[str, Iterable[tuple[bytes, bytes | None]]]
) -> EditedBatch:
    """The same for RocksDB-backed stores without column families: changelogs.

    Spark replays changelogs above the newest snapshot even if the query does not write any.
    """
    carried = empty_batches(base.surveyed, base.batch_id, 1, lambda: str(uuid.uuid4()))
    commit = carried.commits[0]
    files: dict[str, bytes] = {}
    others: list[Change] = []
    for change in carried.changes:
        folder, _, name = change.path.rpartition("/")
        parsed = parse_name(name)
        if folder not in changed or parsed is None:
            others.append(change)
            continue
        item = parsed[0]
        data = _changelog(base, folder, item, changed[folder])
        files[f"{folder}/{file_name(item, 'changelog')}"] = compress(data, base.settings.codec)
    return EditedBatch(files, commit=commit, others=tuple(others))


def _changelog(
    base: EditBase,
    folder: str,
    item: LineageItem,
    records: Iterable[tuple[bytes, bytes | None]],
) -> bytes:
    wrapped = []
    for key, row in records:
        encoded = b"\0" + key
        value = None if row is None else b"\0" + row
        wrapped.append(base.settings.form.record(encoded, value))
    lineage: tuple[LineageItem, ...] = ()
    if item.unique_id:
        store = next(store for store in base.stores if store.path == folder)
        before = LineageItem(base.version, base.surveyed.unique_id(store, base.batch_id))
        rocks = rocks_directory(base.surveyed, store, base.batch_id)
        earlier = () if before in rocks.snapshots else rocks.changelog(before).lineage
        lineage = (*earlier, before)
    return encode_changelog(wrapped, lineage if item.unique_id else None)


def plan_batch(
    base: EditBase,
    edited: EditedBatch,
    *,
    command: str,
    summary: str,
    arguments: Mapping[str, str],
    sink: SinkSurvey | None,
    warnings: tuple[str, ...] = (),
    details: tuple[str, ...] = (),
) -> Plan:
    """The edit as file changes: state, then offsets, then the commit, then the sink's log."""
    tree = base.surveyed.tree
    batch_id = base.batch_id + 1
    why = f"state of batch {batch_id}"
    written = [tree.write(path, data, why) for path, data in edited.files.items()]
    touched = {change.path for change in (*written, *edited.others)}
    # Files left by a failed attempt could be mistaken for the new version, or hide it. Delete them.
    leftovers = [
        c for c in delete_state_after(base.surveyed, base.version) if c.path not in touched
    ]
    offsets = replace(base.offsets, conf={**base.offsets.conf, **edited.conf}, extra={})
    commit = replace(edited.commit or base.commit, extra={})
    logs = [
        tree.write(f"{OFFSETS}/{batch_id}", OFFSET_FORMAT.serialize(offsets), f"batch {batch_id}"),
        tree.write(f"{COMMITS}/{batch_id}", COMMIT_FORMAT.serialize(commit), f"batch {batch_id}"),
    ]
    plan = Plan(
        command=command,
        summary=summary,
        changes=(*leftovers, *written, *edited.others, *logs),
        arguments=arguments,
        warnings=warnings,
        details=details,
        watches=base.surveyed.log_watches(),
    )
    return add_sink_batches(plan, sink, range(batch_id, batch_id + 1))
