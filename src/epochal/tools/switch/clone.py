"""Plans a clone: a checkpoint from which another query goes on after an epoch of the first one.

A clone is not a copy. It has what a restart after that epoch needs, and no other history, so it can
be made while the query runs: files of a committed epoch do not change. It has a query id of its
own. And what belongs to the sink of the first query stays behind: staged rows, and the messages of
tasks in the decision. A sink that finds its own messages in the log would look for the marker that
belongs to them, under the new id, and report it as lost.

Note: the logs of sources are copied whole. A file source then reads the files after the epoch from
its log, even those that are too old or no longer listed when the clone starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from epochal.checkpoint.entries import OFFSET_FORMAT, OffsetEntry, QueryMetadata
from epochal.checkpoint.file_log import DEFAULT_COMPACT_INTERVAL, live_batches
from epochal.checkpoint.layout import (
    COMMITS,
    COMPACT_SUFFIX,
    EPOCHS,
    METADATA,
    OFFSETS,
    OWN_KEY,
    PLAN,
    SINK_LOG,
    SOURCES,
    STATE,
)
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.checkpoint.restart import SHUFFLE_PARTITIONS
from epochal.errors import EditError, OptionError
from epochal.files import Files, join_url
from epochal.tools.edit.copy_checkpoint import follow_schema_paths, refuse_nested, refuse_occupied
from epochal.tools.edit.edit_plan import (
    ORIGIN,
    SINK,
    Change,
    Content,
    FileRef,
    Plan,
    Tree,
    Watch,
    is_crc,
    is_temporary,
)
from epochal.tools.edit.rewind import obstacle_to
from epochal.tools.edit.survey import Survey, last_committed
from epochal.tools.inspect.epoch_overlay import Decided, newest_decided
from epochal.tools.inspect.source_listing import SINK_FORMAT

COMMAND = "clone"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneOptions:
    query_id: str
    at: int | None = None
    """The epoch after which it goes on; None for the newest that is committed."""
    until: int | None = None
    """A later epoch of the first query: the clone's first epoch ends where this one ended."""


def plan_clone(
    surveyed: Survey, target: Files, options: CloneOptions, *, output: Files | None = None
) -> Plan:
    """Plan the files of a clone at `target`, which must be empty.

    `output` is the empty directory of the clone's file sink, if it has one: its log is begun there.
    """
    refuse_nested(surveyed.url, target.url)
    refuse_occupied(target)
    batch = last_committed(surveyed) if options.at is None else options.at
    decided = decided_after(surveyed, batch)
    empty = Tree({})
    contents = dict(clone_contents(surveyed, target, batch, decided))
    if options.until is not None:
        planned = _planned(surveyed, batch, options.until)
        contents[f"{OFFSETS}/{batch + 1}"] = OFFSET_FORMAT.serialize(planned)
    contents[METADATA] = QueryMetadata(options.query_id).serialize()
    changes = [empty.write(path, content, why(content)) for path, content in contents.items()]
    roots = {ORIGIN: surveyed.files}
    arguments = {"from": surveyed.url, "at": str(batch), "query_id": options.query_id}
    if options.until is not None:
        arguments["until"] = str(options.until)
    if output is not None:
        roots[SINK] = output
        arguments[SINK] = output.url
        changes += new_sink_log(output, batch)
    return Plan(
        command=COMMAND,
        summary=f"clone {surveyed.url} after epoch {batch} to {target.url}",
        changes=tuple(changes),
        arguments=arguments,
        warnings=tuple(_warnings(surveyed, batch, decided)),
        watches=(Watch(OFFSETS, ()), Watch(COMMITS, ())),
        roots=roots,
    )


def clone_contents(
    surveyed: Survey, target: Files, batch: int, decided: Decided | None
) -> Iterator[tuple[str, Content]]:
    """Everything that a restart after `batch` needs, by path, except the query's id."""
    yield from _logs(surveyed, batch, _base(batch, decided))
    for path in surveyed.tree.under(SOURCES):
        if not is_crc(path) and not is_temporary(path):
            yield path, _ref(surveyed, path)
    yield from _schemas(surveyed, target, batch)
    for path in _state_files(surveyed, batch, _base(batch, decided)):
        yield path, _ref(surveyed, path)
        if (checksum := f"{path}.crc") in surveyed.tree:
            yield checksum, _ref(surveyed, checksum)
    if decided is not None:
        for path in _epoch_files(decided):
            yield path, _ref(surveyed, path)
    if surveyed.files.info(PLAN) is not None:
        yield PLAN, surveyed.files.read(PLAN)


def _base(batch: int, decided: Decided | None) -> int:
    """The version of Spark's files that the state after `batch` starts from."""
    return batch + 1 if decided is None else decided.chain.published


def decided_after(surveyed: Survey, batch: int) -> Decided | None:
    """The epoch files with the state after `batch`; EditError if nothing can go on after it."""
    decided = newest_decided(surveyed.files, batch) if batch in surveyed.offsets else None
    obstacle = obstacle_to(surveyed, batch, reads_state=False, has_state=decided is not None)
    base = _base(batch, decided)
    if obstacle is None and decided is not None:
        lost = next((path for path in _epoch_files(decided) if path not in surveyed.tree), None)
        lost = lost or (surveyed.missing_state(base - 1) if base else None)
        obstacle = lost and f"the state after it needs {lost}, which is missing"
    if obstacle is not None:
        both = surveyed.offsets.keys() & surveyed.commits.keys()
        raise EditError(
            surveyed.url,
            f"no query can go on after epoch {batch}: {obstacle}. The logs have the committed "
            f"epochs {min(both, default='none')} to {max(both, default='none')}. Choose one of "
            f"these with --at; the newest needs the least of what a running query deletes.",
        )
    return decided


def _epoch_files(decided: Decided) -> Iterator[str]:
    from epochal.epoch.epoch_files.epoch_file import file_name

    for run in decided.chain.runs:
        for epoch in range(run.first, run.last + 1):
            for task in range(run.tasks):
                yield f"{EPOCHS}/{file_name(epoch, task, run.attempt)}"


def _logs(surveyed: Survey, batch: int, base: int) -> Iterator[tuple[str, Content]]:
    """The entries from the one before the state's base on. A commit may name that state's files."""
    for batch_id in range(max(0, min(base, batch) - 1), batch + 1):
        if batch_id in surveyed.offsets:
            path, entry = f"{OFFSETS}/{batch_id}", surveyed.offsets[batch_id]
            if OWN_KEY not in entry.extra:
                yield path, _ref(surveyed, path)
            else:
                # An older entry names state files that the clone does not have.
                logged = without_messages(entry) if batch_id == batch else _of_spark(entry)
                yield path, OFFSET_FORMAT.serialize(logged)
        if batch_id in surveyed.commits:
            yield f"{COMMITS}/{batch_id}", _ref(surveyed, f"{COMMITS}/{batch_id}")


def without_messages(entry: OffsetEntry) -> OffsetEntry:
    """Our entry without what tasks told their sink. A sink takes it for another one's."""
    manifest = entry.extra.get(OWN_KEY)
    if not isinstance(manifest, dict) or not manifest.get("messages"):
        return entry
    return replace(entry, extra={**entry.extra, OWN_KEY: {**manifest, "messages": []}}, keys=None)


def _of_spark(entry: OffsetEntry) -> OffsetEntry:
    """An entry without our part, as Spark would have written it."""
    extra = {key: value for key, value in entry.extra.items() if key != OWN_KEY}
    return replace(entry, extra=extra, keys=None)


def _planned(surveyed: Survey, batch: int, until: int) -> OffsetEntry:
    """The entry of an epoch that reads from the end of `batch` to the end of `until`."""
    if until <= batch:
        raise OptionError(
            f"--until {until} must be later than the epoch after which the clone goes on, {batch}."
        )
    first, last = surveyed.offsets.get(batch + 1), surveyed.offsets.get(until)
    if first is None or last is None:
        missing = batch + 1 if first is None else until
        raise EditError(
            join_url(surveyed.url, f"{OFFSETS}/{missing}"),
            f"does not exist, so it is not known where epoch {missing} ended. Choose --until among "
            f"the logged epochs, of which the newest is {max(surveyed.offsets)}.",
        )
    counts = {
        surveyed.offsets[batch_id].conf.get(SHUFFLE_PARTITIONS) for batch_id in (batch, until)
    }
    if len(counts) > 1:
        raise EditError(
            surveyed.url,
            f"between epochs {batch} and {until} the number of state partitions changed. One epoch "
            f"cannot replay that: choose --until before the repartition.",
        )
    return replace(
        _of_spark(last),
        watermark_ms=first.watermark_ms,
        timestamp_ms=first.timestamp_ms,
        control_batch_info=None,
    )


def _schemas(surveyed: Survey, target: Files, batch: int) -> Iterator[tuple[str, Content]]:
    """Operator metadata and schemas of the state, up to `batch`."""
    for path in surveyed.tree.under(STATE):
        parts = path.split("/")
        if not {"_metadata", "_stateSchema"}.intersection(parts) or parts[-1].startswith("."):
            continue
        number = parse_batch_id(parts[-1].partition("_")[0])
        if number is not None and number > batch:
            continue
        if parts[2:4] == ["_metadata", "v2"]:
            raw = surveyed.files.read(path)
            yield path, follow_schema_paths(raw, join_url(surveyed.url, path), target)
        else:
            yield path, _ref(surveyed, path)


def _state_files(surveyed: Survey, batch: int, version: int) -> Iterator[str]:
    """The files that make one version of every store, and no others."""
    if version == 0:
        return
    for store in surveyed.stores_at(batch):
        versions, stored = store.format.versions, surveyed.stored(store, version, batch)
        for name in versions.file_names(stored, store.files):
            # A snapshot comes after the files that it lists, as when it was written.
            for shared in (*versions.shared_files(stored, name), name):
                yield f"{store.path}/{shared}"


def new_sink_log(output: Files, batch: int) -> Iterator[Change]:
    """Begin the log of a file sink whose first batch follows `batch`.

    The next compaction reads every batch since the last one, so those must be there, and be empty.
    The interval of a log follows from its compact files. Two of them fix it, and one alone is right
    with whatever the query's setting makes of it. So the log is right with any setting.
    """
    if output.info(SINK_LOG) is not None:
        raise EditError(
            join_url(output.url, SINK_LOG),
            "exists, so a file sink has written to this directory before. Give the clone's query "
            "an output directory of its own.",
        )
    interval = DEFAULT_COMPACT_INTERVAL
    last = live_batches(batch, interval).start
    compact = (last - interval, last) if batch + 1 >= 2 * interval else (batch,)
    for batch_id in (*compact, *range(compact[-1] + 1, batch + 1)):
        name = f"{batch_id}{COMPACT_SUFFIX}" if batch_id in compact else str(batch_id)
        why_written = f"empty log entry of {batch_id}"
        yield Change(f"{SINK_LOG}/{name}", None, SINK_FORMAT.serialize(()), why_written, SINK)


def _ref(surveyed: Survey, path: str) -> FileRef:
    return FileRef(ORIGIN, path, surveyed.tree.infos[path].size)


def why(content: Content) -> str:
    """What a plan says about a file of the clone."""
    return "copied" if isinstance(content, FileRef) else "written for the clone"


def _warnings(surveyed: Survey, batch: int, decided: Decided | None) -> Iterator[str]:
    yield (
        "The clone has a query id of its own, so no sink recognizes it. Start it with another "
        "output than the first query: both write the rows after this epoch."
    )
    if decided is not None and decided.chain.runs:
        yield (
            "Its newest state is in epoch files. Epochal can start from it; for Spark, run "
            "`epochal checkpoint publish` on the clone first."
        )
    if any(
        '"partitions"' in (offset or "") for offset in surveyed.offsets[batch].by_source.values()
    ):
        yield (
            "A Pub/Sub source cannot be read twice: both queries would take messages from each "
            "other. Give the clone a subscription of its own."
        )
