"""Plans changes to the logs of file sources and file sinks. It reads, but never writes.

Note: a batch of such a log cannot simply be removed or left out. A compact file repeats all earlier
entries, so going back to a batch before it requires the plain files from which it was made. And the
next compaction reads every batch since the last one, so a missing batch stops the sink for good.

An edit that adds, removes or renumbers batches must change the sink's log too. Spark does not
record where a query writes. Some of our own records do: the manifests of a continuous query list
the files that it wrote, and the journal has the sinks of earlier edits. What they say is offered to
the caller, who decides. It is never opened: whoever prepared the checkpoint would choose the
directory whose files are deleted, or the host that is contacted.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote, urlsplit

import msgspec

from epochal.checkpoint.file_log import (
    DEFAULT_COMPACT_INTERVAL,
    CompactibleFileLog,
    FileEntry,
    FileSinkLog,
    SinkFileStatus,
    batch_id_of_file_name,
    derive_compact_interval,
    is_compaction_batch,
    live_batches,
)
from epochal.checkpoint.layout import COMMITS, COMPACT_SUFFIX, OFFSETS, SINK_LOG
from epochal.connectors.staging.epoch_marker import sink_messages
from epochal.epoch.manifest import manifest_of
from epochal.errors import CheckpointSwitchedError, EditError, EpochalError
from epochal.files import Files, join_url, local_path, scheme_of
from epochal.tools.edit.edit_plan import SINK, Change, Plan, Tree, read_tree
from epochal.tools.edit.survey import Survey
from epochal.tools.inspect.edit_status import JournalState, journal_entries
from epochal.tools.inspect.source_listing import SINK_FORMAT
from epochal.tools.verify.findings import START_OVER
from epochal.wording import counted

FILE_SINK = "org.apache.spark.sql.execution.streaming.sinks.FileStreamSink"
_STATUSES = msgspec.json.Decoder(list[SinkFileStatus])


@dataclass(frozen=True, slots=True)
class SinkSurvey:
    """A file sink's output directory at one moment."""

    files: Files
    tree: Tree
    log: FileSinkLog
    checkpoint: str = "CHECKPOINT"
    """The URL of the checkpoint whose query writes there, for commands in messages."""

    @property
    def names(self) -> dict[str, int]:
        """The name of every batch file of its log, with the batch id."""
        return log_batches(self.tree, SINK_LOG)

    def entries(self, name: str) -> tuple[SinkFileStatus, ...]:
        path = f"{SINK_LOG}/{name}"
        return SINK_FORMAT.deserialize(self.files.read(path), join_url(self.files.url, path))


def survey_sink(files: Files, checkpoint: str = "CHECKPOINT") -> SinkSurvey:
    """Read the output directory in `files`; EditError if no file sink has written to it."""
    if files.info(SINK_LOG) is None:
        raise EditError(
            join_url(files.url, SINK_LOG),
            "it does not exist, so no file sink has written to this directory. Pass the path that "
            "the query writes to.",
        )
    tree = read_tree(files, root=SINK)
    return SinkSurvey(files, tree, FileSinkLog(files.at(SINK_LOG), read_only=True), checkpoint)


def skipped_by_tables(checkpoint: str, to_batch: int) -> str:
    """The warning of an edit that goes back to a batch and knows of no file sink."""
    return (
        f"A Delta table remembers the batches of a query, and skips all up to the latest that it "
        f"has, even if it is restored: rows are lost. For such an output do not go back here. "
        f"{_with_a_clone(checkpoint, to_batch)}"
    )


def skipped_if_planned_again(checkpoint: str, to_batch: int) -> str:
    """The warning of an edit that drops batches without a commit, and knows of no file sink."""
    return (
        f"If a Delta table has batch {to_batch + 1} already, because only its commit was lost, it "
        f"skips what is planned: rows are lost. In that case do not go back here. "
        f"{_with_a_clone(checkpoint, to_batch)}"
    )


def skipped_with_state_lost(checkpoint: str, batch_id: int) -> str:
    """The warning if a batch must write its state again, and no file sink is known."""
    instead = (
        f"do not run it again here. {_with_a_clone(checkpoint, batch_id - 1)}"
        if batch_id
        else f"{START_OVER}."
    )
    return (
        f"The state after batch {batch_id} is lost. A Delta table that has the batch already skips "
        f"it, so its state is never written, and the next batch fails. For such an output {instead}"
    )


def _with_a_clone(checkpoint: str, to_batch: int) -> str:
    clone = shlex.join(["epochal", "checkpoint", "clone", checkpoint])
    return (
        f"Restore the table to its version after batch {to_batch}, and start the query on a clone, "
        f"which has another id: `{clone} NEW --at {to_batch} --no-file-sink`."
    )


def log_batches(tree: Tree, directory: str) -> dict[str, int]:
    names = tree.names(directory)
    batch_ids = {name: batch_id_of_file_name(name) for name in names}
    return {name: batch_id for name, batch_id in batch_ids.items() if batch_id is not None}


def rewind_file_log(
    log: CompactibleFileLog[SinkFileStatus] | CompactibleFileLog[FileEntry],
    tree: Tree,
    directory: str,
    to_batch: int,
) -> Iterator[Change]:
    """Delete the batches after `to_batch`.

    Raises EditError if a compaction has removed files that the remaining log needs.
    """
    names = log_batches(tree, directory)
    if max(names.values(), default=-1) <= to_batch:
        return
    # Spark will derive the interval from the names that remain.
    left = [n for name, n in names.items() if name.endswith(COMPACT_SUFFIX) and n <= to_batch]
    interval = derive_compact_interval(DEFAULT_COMPACT_INTERVAL, sorted(left))
    if to_batch >= 0:
        for batch_id in live_batches(to_batch, interval):
            suffix = COMPACT_SUFFIX if is_compaction_batch(batch_id, interval) else ""
            name = f"{batch_id}{suffix}"
            if name not in names:
                ids = set(names.values())
                whole = (n for n in ids if ids.issuperset(live_batches(n, interval)))
                raise EditError(
                    join_url(log.url, name),
                    f"is needed to go back to batch {to_batch} of this log, but is lost, or was "
                    f"removed after a later compaction. The earliest batch to which this log can "
                    f"go back is {min(whole, default=max(ids))}.",
                )
    for name, batch_id in sorted(names.items(), key=lambda item: item[1], reverse=True):
        if batch_id > to_batch:
            yield tree.delete(f"{directory}/{name}", f"log entry of batch {batch_id}")


def rewind_sink(sink: SinkSurvey, to_batch: int, *, keep_files: bool = False) -> Iterator[Change]:
    """Delete the sink's batches after `to_batch`, and the data files that only they list."""
    yield from rewind_file_log(sink.log, sink.tree, SINK_LOG, to_batch)
    if not keep_files:
        for path in orphaned_files(sink, to_batch)[0]:
            yield sink.tree.delete(path, f"written after batch {to_batch}")


def add_sink_batches(plan: Plan, sink: SinkSurvey | None, added: range) -> Plan:
    """Extend a plan by the sink's log entries of the batches that it adds.

    EditError if the sink's log does not end right before the added batches, or lacks a batch that
    it needs.
    """
    if sink is None:
        return plan
    _require_end(sink, added.start - 1)
    entries = [empty_sink_batch(sink, batch_id) for batch_id in added]
    warnings = []
    if not any(name.endswith(COMPACT_SUFFIX) for name in sink.names):
        warnings.append(
            f"The sink's log has no compact file yet, so its interval is taken to be Spark's "
            f"default, {sink.log.compact_interval}. If the query sets "
            f"spark.sql.streaming.fileSink.log.compactInterval to another value, let it run until "
            f"its first compaction before you edit it."
        )
    return with_sink(plan, sink, entries, warnings)


def with_sink(
    plan: Plan,
    sink: SinkSurvey | None,
    changes: Iterable[Change] = (),
    warnings: Iterable[str] = (),
) -> Plan:
    """The plan with changes of a sink, whose log it watches; the plan itself without a sink."""
    if sink is None:
        return plan
    return replace(
        plan,
        changes=(*plan.changes, *changes),
        arguments={**plan.arguments, SINK: sink.files.url},
        warnings=(*plan.warnings, *warnings),
        watches=(*plan.watches, sink.tree.watch(SINK_LOG)),
        roots={**plan.roots, SINK: sink.files},
    )


def data_outside(sink: SinkSurvey, to_batch: int, noun: str) -> Iterator[str]:
    """Warn of data that going back to a batch keeps, because it is in another place."""
    if elsewhere := orphaned_files(sink, to_batch)[1]:
        yield (
            f"Data that the removed {noun} wrote outside {sink.files.url} is kept: "
            f"{counted(elsewhere, 'file')}."
        )


def _require_end(sink: SinkSurvey, newest: int) -> None:
    latest = sink.log.latest_batch_id()
    latest = -1 if latest is None else latest
    if latest > newest:
        raise EditError(
            sink.log.url,
            f"the sink's log has batch {latest}, but the newest batch of the checkpoint is "
            f"{newest}. The sink would skip the batches up to {latest}. Check that --sink names "
            f"this query's output. If it does, first run `epochal checkpoint rewind "
            f"{_places(sink)} --to-batch {newest}`.",
        )
    ids = set(sink.names.values())
    needed = live_batches(newest, sink.log.compact_interval) if newest >= 0 else range(0)
    missing = [batch_id for batch_id in needed if batch_id not in ids]
    if missing:
        raise EditError(
            sink.log.url,
            f"the sink's log lacks batch {missing[0]}, although batch {newest} of the checkpoint "
            f"is committed. Check that --sink names this query's output. If it does, first run "
            f"`epochal checkpoint repair {_places(sink)}`.",
        )


def _places(sink: SinkSurvey) -> str:
    return shlex.join([sink.checkpoint, "--sink", sink.files.url])


def empty_sink_batch(sink: SinkSurvey, batch_id: int) -> Change:
    """Write the sink's log entry of a batch without files.

    The sink needs an entry for every batch id, also for one that a tool has added.
    """
    entries: Iterable[SinkFileStatus] = ()
    if is_compaction_batch(batch_id, sink.log.compact_interval):
        entries = sink.log.all_files()
    path = f"{SINK_LOG}/{sink.log.path_of(batch_id)}"
    return sink.tree.write(path, SINK_FORMAT.serialize(entries), f"empty log entry of {batch_id}")


def obsolete_compacts(entries: Mapping[str, Iterable[object]]) -> list[str]:
    """The compact files that hide the newest one, by the content of all files of a log.

    The interval is the distance of the newest two. If the one between them is lost, Spark does not
    look for the newest any more, although it has everything. Without the others it does.
    """
    compacts = {name: batch_id_of_file_name(name) for name in entries if COMPACT_SUFFIX in name}
    ids = sorted(each for each in compacts.values() if each is not None)
    if len(ids) < 2 or is_compaction_batch(ids[-1], ids[-1] - ids[-2]):
        return []
    everything = set(entries[f"{ids[-1]}{COMPACT_SUFFIX}"])
    below = (name for name in entries if (batch_id_of_file_name(name) or 0) < ids[-1])
    has_all = all(everything.issuperset(entries[name]) for name in below)
    return [name for name, each in compacts.items() if each != ids[-1]] if has_all else []


def orphaned_files(sink: SinkSurvey, to_batch: int) -> tuple[list[str], int]:
    """Return the data files that only batches after `to_batch` list.

    Also returns how many such files are outside the output directory. The files of a batch whose
    entry is lost or unreadable are not known, and stay: no reader of the log sees them.
    """
    listed = {name: {entry.path for entry in readable_entries(sink, name)} for name in sink.names}
    later = [name for name, batch_id in sink.names.items() if batch_id > to_batch]
    gone = {path for name in later for path in listed.pop(name)}.difference(*listed.values())
    inside = relative_to(sink.files)
    paths = [inside(path) for path in sorted(gone)]
    there = [path for path in paths if path is not None and path in sink.tree]
    return there, sum(path is None for path in paths)


def readable_entries(sink: SinkSurvey, name: str) -> tuple[SinkFileStatus, ...]:
    """The entries of one file of a sink's log; none if it cannot be read."""
    try:
        return sink.entries(name)
    except (EpochalError, OSError):
        return ()


def relative_to(files: Files) -> Callable[[str], str | None]:
    """Return a function from a logged, URI-encoded path to the path below the root of `files`."""
    root = _bare(files.url)

    def inside(uri: str) -> str | None:
        path = _bare(uri)
        return path[len(root) + 1 :] if path.startswith(f"{root}/") else None

    return inside


def _bare(location: str) -> str:
    """Remove the scheme, escapes and doubled slashes of a location, but not the authority."""
    if scheme_of(location) in ("", "file"):
        return local_path(location).rstrip("/")
    parts = urlsplit(location)
    return f"{parts.netloc}{unquote(parts.path)}".rstrip("/")


@dataclass(frozen=True, slots=True)
class NamedSink:
    """What the caller says of the query's file sink."""

    place: Files | None = None
    """Its output directory."""

    is_absent: bool = False
    """Whether the caller says that there is none to change."""


def find_sink(surveyed: Survey, named: NamedSink) -> SinkSurvey | None:
    """Read the file sink that the caller has named; EditError if the caller says nothing.

    It is also refused if the query was switched to another checkpoint: that one's batches are in
    the same output, and a return counts on what is here.
    """
    switched = surveyed.listing.metadata
    if isinstance(switched, CheckpointSwitchedError):
        words = ("epochal", "switch", surveyed.url, "--back", switched.to, "--sink", "OUTPUT")
        raise EditError(
            surveyed.url,
            f"{switched.reason}, and goes on there with the same output. Edit that checkpoint, or "
            f"first return to this one with `{shlex.join(words)}`. Nothing was changed.",
        )
    if named.place is not None:
        return survey_sink(named.place, surveyed.url)
    if not named.is_absent:
        raise EditError(
            surveyed.url,
            f"{_evidence(surveyed)}. The log of a file sink must change together with the "
            f"checkpoint: pass the output directory with --sink, or --no-file-sink if the query "
            f"writes to no file sink.",
        )
    return None


def _evidence(surveyed: Survey) -> str:
    """What the checkpoint says of a file sink."""
    for batch_id in sorted(surveyed.offsets, reverse=True):
        for path in _listed(surveyed, batch_id):
            *folders, _ = path.split("/")
            while folders and "=" in folders[-1]:  # the directories of partition columns
                folders.pop()
            return f"{OFFSETS}/{batch_id} lists files in {shlex.quote('/'.join(folders))}"
    for entry in reversed(journal_entries(surveyed.files)):
        if entry.state is JournalState.DONE and SINK in entry.arguments:
            where = shlex.quote(entry.arguments[SINK])
            return f"an earlier edit changed the file sink in {where}"
    committed = surveyed.listing.commits.latest
    commit = None if committed is None else surveyed.commits.get(committed)
    sink = None if commit is None else commit.active_sink
    if sink is not None and sink.provider_name == FILE_SINK:
        return f"{COMMITS}/{committed} says that the query writes to a file sink, but not where"
    return "a checkpoint does not say where its query writes"


def _listed(surveyed: Survey, batch_id: int) -> list[str]:
    """The paths of the files that a batch of a continuous query wrote; empty for other sinks."""
    url = join_url(surveyed.url, f"{OFFSETS}/{batch_id}")
    try:
        manifest = manifest_of(surveyed.offsets[batch_id], url, batch_id)
        messages = sink_messages(manifest.messages) if manifest is not None else ()
        return [status.path for message in messages for status in _STATUSES.decode(message)]
    except (EpochalError, msgspec.MsgspecError, RecursionError):
        return []
