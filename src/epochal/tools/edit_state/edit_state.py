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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.checkpoint.layout import COMMITS, OFFSETS, parse_state_file
from epochal.errors import EditError
from epochal.state.store.contract import StoreContent, StoredVersion
from epochal.tools.edit.edit_file_log import SinkSurvey, add_sink_batches
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.edit.rewind import delete_state_after
from epochal.tools.edit.survey import Survey
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.read_target import StateBatch, StateSettings

NO_WAY_BACK = (
    "Older versions of this store are deleted, because they do not match the new schema. "
    "The query cannot be rewound to before this edit; the edit can only be undone."
)


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

    def open_batch(self) -> StateBatch:
        """The state that is edited."""
        return StateBatch(Checkpoint(self.surveyed.files), self.batch_id)

    def stored(self, store: StoreListing) -> StoredVersion:
        """The version of a store that is edited."""
        files, unique_id = self.surveyed.files, self.surveyed.unique_id(store, self.batch_id)
        return StoredVersion(files.at(store.path), self.version, unique_id, self.settings)

    def content(self, store: StoreListing) -> StoreContent:
        """Everything in the version of a store that is edited."""
        return self.settings.format.versions.read_content(self.stored(store))


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
    emptied: tuple[str, ...] = ()
    """Directories that the changes empty."""


def find_edit_base(surveyed: Survey, *, batch_id: int | None = None) -> EditBase:
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
    return EditBase(surveyed, started, entry, surveyed.commits[started], settings)


def older_files(base: EditBase, stores: Iterable[StoreListing], why: str) -> Iterator[Change]:
    """Delete every version that stores have, including checksums and RocksDB's shared files."""
    tree = base.surveyed.tree
    for store in stores:
        for name in sorted(store.files):
            if parse_state_file(name) is not None and not name.startswith("."):
                yield tree.delete(f"{store.path}/{name}", why)
        for folder in ("SSTs", "logs"):
            for path in tree.under(f"{store.path}/{folder}"):
                if not path.rpartition("/")[2].startswith("."):
                    yield tree.delete(path, why)


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
        emptied=edited.emptied,
    )
    return add_sink_batches(plan, sink, range(batch_id, batch_id + 1))
