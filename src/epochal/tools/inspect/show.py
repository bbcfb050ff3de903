"""Describes a checkpoint in plain values, which the command line prints and the dashboard draws.

A damaged checkpoint can be shown too: the view contains everything that could be read, and
`problems` names what could not. This module never writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from epochal.checkpoint.entries import CommitEntry, OffsetEntry, QueryMetadata
from epochal.checkpoint.layout import (
    COMMITS,
    COMPACT_SUFFIX,
    EPOCHAL,
    EPOCHS,
    METADATA,
    OFFSETS,
    SOURCES,
    STAND_IN_KEY,
    STATE,
    operator_metadata_path,
)
from epochal.checkpoint.metadata_log import missing_runs, parse_batch_id
from epochal.checkpoint.restart import RestartAction, RestartPlan, plan_restart
from epochal.errors import CheckpointSwitchedError, EpochalError
from epochal.files import Files
from epochal.tools.inspect.epoch_overlay import view_with_epochs
from epochal.tools.inspect.listing import (
    CheckpointListing,
    LogListing,
    gather,
    read_bytes,
    read_log,
    read_operator_log,
)
from epochal.tools.inspect.state_listing import OperatorListing, operators_of
from epochal.tools.inspect.view_models import (
    BatchView,
    CheckpointView,
    ConfChange,
    EditView,
    Gap,
    OperatorView,
    OwnerView,
    Problem,
    SourceView,
    StoreVersions,
    offsets_of,
)


def inspect(files: Files) -> CheckpointView:
    """Describe a checkpoint. Raises only if there is none."""
    view = view_with_epochs(files)
    listing = gather(view.files)
    problems = _log_problems(listing)
    if view.broken is not None:
        problems.append(Problem(EPOCHS, _reason(view.broken)))
    operators = tuple(
        _operator(listing, operator, problems) for operator in operators_of(listing.directories)
    )
    batches = _batches(listing)
    newest = listing.commits.entries.get(max(listing.commits.entries, default=-1))
    return CheckpointView(
        url=listing.url,
        query_id=listing.metadata.id if isinstance(listing.metadata, QueryMetadata) else None,
        offset_log_version=_version(listing.offsets),
        commit_log_version=_version(listing.commits),
        batches=batches,
        gaps=(*_gaps(listing.offsets), *_gaps(listing.commits)),
        conf_changes=tuple(_conf_changes(batches)),
        restart=restart_of(listing),
        sources=tuple(
            _source(listing, name, problems)
            for name in listing.directories[SOURCES].folders
            if not name.startswith(".")
        ),
        sinks=() if newest is None else tuple(newest.sink_metadata.values()),
        operators=operators,
        owner=_owner(listing, problems),
        edit=_edit(listing, problems),
        problems=tuple(problems),
        unpublished=view.unpublished,
        continuous=listing.is_continuous,
    )


def restart_of(listing: CheckpointListing) -> RestartPlan:
    """Predict what a restart does.

    If a stateless query cannot restart because its log has gaps, assume asynchronous progress
    tracking, which leaves such gaps.
    """
    if isinstance(listing.metadata, EpochalError):
        return RestartPlan(RestartAction.FAIL, reason=str(listing.metadata))
    plan = _plan(listing, async_progress=False)
    if plan.action is RestartAction.FAIL and not listing.is_stateful:
        other = _plan(listing, async_progress=True)
        if other.action is not RestartAction.FAIL:
            note = f"only with asyncProgressTrackingEnabled; without it: {plan.reason}"
            return replace(other, notes=(*other.notes, note))
    return plan


def _plan(listing: CheckpointListing, *, async_progress: bool) -> RestartPlan:
    return plan_restart(
        listing.offsets.ids,
        listing.commits.ids,
        listing.offsets.entries,
        listing.commits.entries,
        async_progress=async_progress,
        has_query_metadata=listing.metadata is not None,
        occupied=[
            name
            for name in (OFFSETS, COMMITS, STATE)
            if listing.directories[name].folders or listing.directories[name].files
        ],
    )


def _log_problems(listing: CheckpointListing) -> list[Problem]:
    problems = [
        Problem(path or ".", error.reason) for path, error in listing.directories.unreadable.items()
    ]
    problems += [Problem(part, "it is a file, not a directory") for part in listing.misplaced]
    if isinstance(listing.metadata, CheckpointSwitchedError):
        pass  # what a restart would do says where the query went
    elif isinstance(listing.metadata, EpochalError):
        problems.append(Problem(METADATA, _reason(listing.metadata)))
    elif listing.metadata is None:
        problems.append(Problem(METADATA, "it does not exist"))
    logs: tuple[LogListing[Any], ...] = (listing.offsets, listing.commits)
    for log in logs:
        for batch_id, error in sorted(log.broken.items()):
            problems.append(Problem(f"{log.path}/{batch_id}", _reason(error)))
        problems.extend(
            Problem(f"{log.path}/{name}", "Spark lists this name as a batch but cannot open it")
            for name in log.odd_names
        )
    first = {problem.path: problem for problem in reversed(problems)}  # one for each file
    return [problem for problem in problems if first[problem.path] is problem]


def _reason(error: EpochalError) -> str:
    return str(getattr(error, "reason", None) or error)


def _version(log: LogListing[OffsetEntry] | LogListing[CommitEntry]) -> int | None:
    newest = max(log.entries, default=None)
    return None if newest is None else log.entries[newest].version


def _batches(listing: CheckpointListing) -> tuple[BatchView, ...]:
    committed = set(listing.commits.ids)
    views: list[BatchView] = []
    for batch_id in sorted({*listing.offsets.ids, *committed}):
        entry = listing.offsets.entries.get(batch_id)
        commit = listing.commits.entries.get(batch_id)
        after = None if commit is None else commit.next_watermark_ms
        if entry is None:
            views.append(BatchView(batch_id, None, None, None, None, batch_id in committed, after))
            continue
        views.append(
            BatchView(
                batch_id,
                offsets_of(entry),
                entry.watermark_ms,
                entry.timestamp_ms,
                entry.conf,
                batch_id in committed,
                after,
                entry.extra.get(STAND_IN_KEY),
            )
        )
    return tuple(views)


def _gaps(log: LogListing[Any]) -> tuple[Gap, ...]:
    ids = log.ids
    if not ids:
        return ()
    runs = missing_runs(ids, ids[0], ids[-1])
    return tuple(Gap(log.path, run.start, run.stop - 1) for run in runs)


def _conf_changes(batches: tuple[BatchView, ...]) -> Iterator[ConfChange]:
    for before, after in pairwise(batch for batch in batches if batch.conf is not None):
        old, new = before.conf or {}, after.conf or {}
        for key in sorted({*old, *new}) if old != new else ():
            if old.get(key) != new.get(key):
                yield ConfChange(after.batch_id, key, old.get(key), new.get(key))


def _source(listing: CheckpointListing, name: str, problems: list[Problem]) -> SourceView:
    path = f"{SOURCES}/{name}"
    ids = sorted(
        batch_id
        for file in listing.directories[path].files
        if (batch_id := parse_batch_id(file.removesuffix(COMPACT_SUFFIX))) is not None
    )
    if not ids:
        return SourceView(name, "empty", 0, None)
    if ids != [0]:
        return SourceView(name, "file", len(ids), ids[-1])
    data = read_bytes(listing.files, f"{path}/0")
    if isinstance(data, EpochalError):
        problems.append(Problem(f"{path}/0", _reason(data)))
        return SourceView(name, "unknown", 1, 0)
    text = data.decode(errors="replace")
    if text.startswith("\0") or text[1:2] == "{":
        began = text[1:].removeprefix("v1\n")
        return SourceView(name, "kafka", 1, 0, f"began at {began}")
    second = text.partition("\n")[2].strip()
    if parse_batch_id(second) is not None:
        return SourceView(name, "rate", 1, 0, f"created at {second} ms")
    return SourceView(name, "file", 1, 0)


def _operator(
    listing: CheckpointListing, operator: OperatorListing, problems: list[Problem]
) -> OperatorView:
    log, metadata = read_operator_log(listing, operator.operator)
    problems.extend(
        Problem(f"{log.path}/{batch_id}", _reason(error)) for batch_id, error in log.broken.items()
    )
    if isinstance(metadata, EpochalError):
        problems.append(Problem(operator_metadata_path(operator.operator), _reason(metadata)))
        metadata = None
    stores: dict[str, list[StoreVersions]] = {name: [] for name in operator.store_names}
    for store in operator.stores:
        versions = store.versions
        first, last = (versions[0], versions[-1]) if versions else (None, None)
        base = max(store.bases, default=None)
        view = StoreVersions(store.partition, first, last, base, len(versions))
        stores[store.name].append(view)
    return OperatorView(
        operator.operator,
        None if metadata is None else metadata.operator_name,
        operator.provider,
        len(operator.partitions),
        {name: tuple(views) for name, views in stores.items()},
    )


def _owner(listing: CheckpointListing, problems: list[Problem]) -> OwnerView | None:
    path = f"{EPOCHAL}/attempts"
    attempts = listing.directories[path]
    if not attempts.files:
        return None
    from epochal.checkpoint.claim import AttemptFormat

    log = read_log(listing.files, path, attempts, AttemptFormat().deserialize)
    newest = log.latest
    if newest is None:
        return None
    if newest in log.broken:
        problems.append(Problem(f"{path}/{newest}", _reason(log.broken[newest])))
        return None
    entry = log.entries[newest]
    leases = listing.directories[f"{EPOCHAL}/lease"].files
    return OwnerView(entry.run_id, entry.purpose, entry.host, entry.run_id in leases)


def _edit(listing: CheckpointListing, problems: list[Problem]) -> EditView | None:
    if not listing.directories[f"{EPOCHAL}/journal"].folders:
        return None
    from epochal.tools.inspect.edit_status import undo_options, unfinished_edit

    try:
        entry = unfinished_edit(listing.files)
    except (EpochalError, OSError) as error:
        problems.append(Problem(f"{EPOCHAL}/journal", str(error)))
        return None
    if entry is None:
        return None
    options = undo_options(entry)
    return EditView(entry.id, entry.command, entry.state.value, entry.summary, options)
