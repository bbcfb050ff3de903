"""Plans a rewind: which files to delete so that a query continues after an earlier batch.

After a rewind to batch N, the newest batch of both logs is N, and no state file has a version above
N+1. So Spark plans batch N+1 again, with new offsets. This module reads, but never writes.

Note:

- The state of a continuous query may be in epoch files only. Then it gets Spark's names first. A
  query that is stopped does this itself. After a crash, Spark can start from the checkpoint only
  when the next start of the query, or `plan_publish`, has done it. The plan writes a delta or
  changelog per store and epoch, oldest first: Spark refuses to start until all of them are there.
- A snapshot that is left above N+1 corrupts the state. Spark writes new deltas next to it, and
  loads the old snapshot instead of them at the next cold start.
- The log of a file source keeps its entries after N on purpose. The source reads their files again,
  all in one batch, even those that are no longer in the input directory.
- A file sink skips every batch up to the latest in its log. A replay writes nothing unless that
  log is rewound too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from epochal.checkpoint.layout import (
    STAND_IN_KEY,
    operator_metadata_log_path,
    operator_path,
    parse_state_file,
)
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.errors import EditError, EpochalError
from epochal.tools.edit.edit_file_log import (
    SinkSurvey,
    data_outside,
    rewind_sink,
    skipped_by_tables,
    with_sink,
)
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.edit.survey import Survey, delete_batches_after
from epochal.tools.inspect.epoch_overlay import Decided, missing_files, newest_decided
from epochal.tools.verify.check_logs import tracks_asynchronously
from epochal.tools.verify.findings import START_OVER
from epochal.wording import time_text


def plan_rewind(
    surveyed: Survey,
    to_batch: int,
    *,
    sink: SinkSurvey | None = None,
    keep_sink_files: bool = False,
) -> Plan:
    """Plan the deletions after which the query continues right after `to_batch`."""
    obstacle, published = _obstacle_or_state(surveyed, to_batch)
    if obstacle is not None:
        raise EditError(
            surveyed.url,
            f"cannot rewind to batch {to_batch}: {obstacle}. {_possible(surveyed, to_batch)}",
        )
    tree = surveyed.tree
    changes = [
        *published,
        *delete_state_after(surveyed, to_batch + 1),
        *_schemas_after(surveyed, to_batch),
        *delete_batches_after(tree, to_batch, f"batch after {to_batch}"),
    ]
    warnings = []
    if to_batch > 0 and to_batch - 1 not in surveyed.offsets:
        warnings.append(
            f"offsets/{to_batch - 1} does not exist. Only a query that runs with "
            f"asyncProgressTrackingEnabled can restart without it."
        )
    of_sink: list[Change] = []
    if sink is not None:
        of_sink += rewind_sink(sink, to_batch, keep_files=keep_sink_files)
        if not keep_sink_files:
            warnings += data_outside(sink, to_batch, "batches")
        else:
            warnings.append(
                "The data files of the removed batches are kept. Spark ignores them, because it "
                "reads this directory through its log; other readers will see duplicate rows."
            )
    elif changes:
        warnings.append(skipped_by_tables(surveyed.url, to_batch))
    plan = Plan(
        command="rewind",
        summary=f"rewind to batch {to_batch}",
        changes=tuple(changes),
        arguments={"to_batch": str(to_batch)},
        warnings=tuple(warnings),
        watches=surveyed.log_watches(),
    )
    return with_sink(plan, sink, of_sink)


def batch_at(surveyed: Survey, moment_ms: int) -> int:
    """Return the last committed batch that was planned at or before `moment_ms`."""
    times = {
        batch_id: entry.timestamp_ms
        for batch_id, entry in surveyed.offsets.items()
        if batch_id in surveyed.commits and STAND_IN_KEY not in entry.extra
    }
    earlier = [batch_id for batch_id, time_ms in times.items() if time_ms <= moment_ms]
    if not earlier:
        oldest = f"the oldest is of {time_text(min(times.values()))}" if times else "there is none"
        raise EditError(
            surveyed.url,
            f"no committed batch is as old as {time_text(moment_ms)}; {oldest}. "
            f"Choose a later time, or {START_OVER}.",
        )
    return max(earlier)


def obstacle_to(
    surveyed: Survey, to_batch: int, *, reads_state: bool = True, has_state: bool = False
) -> str | None:
    """Why a query cannot restart right after `to_batch`; None if it can.

    Without `reads_state`, state files only have to be there, whatever their content is. With
    `has_state` they need not be there: the caller writes them.
    """
    for log, name in ((surveyed.listing.offsets, "offsets"), (surveyed.listing.commits, "commits")):
        if to_batch in log.broken:
            return f"{name}/{to_batch} cannot be read"
        if to_batch not in log.entries:
            return f"{name}/{to_batch} does not exist"
    if (later := surveyed.offsets[to_batch].extra.get(STAND_IN_KEY)) is not None:
        return (
            f"offsets/{to_batch} was made up by a repair and has the offsets of batch {later}, so "
            f"the rows of batch {later} would be lost"
        )
    has_before = to_batch == 0 or to_batch - 1 in surveyed.offsets
    if not has_before and (surveyed.stores or not tracks_asynchronously(surveyed.offsets)):
        return f"a restart also needs offsets/{to_batch - 1}, which is missing or unreadable"
    if has_state:
        return None
    if (missing := surveyed.missing_state(to_batch)) is not None:
        return f"the state after it needs {missing}, which is missing"
    if reads_state and (damage := surveyed.damaged_state(to_batch)) is not None:
        return f"the state after it cannot be loaded: {damage.path}: {damage.message}"
    return None


def _obstacle_or_state(surveyed: Survey, to_batch: int) -> tuple[str | None, tuple[Change, ...]]:
    """Why a rewind cannot go to `to_batch`, if so, and the state in epoch files that it needs."""
    published = changes_to_publish(surveyed, to_batch)
    return obstacle_to(surveyed, to_batch, has_state=bool(published)), published


def possible_batches(surveyed: Survey) -> Iterator[int]:
    """Yield the batches from which a restart can continue with Spark's files alone, ascending."""
    for batch_id in sorted(surveyed.offsets.keys() & surveyed.commits.keys()):
        if obstacle_to(surveyed, batch_id) is None:
            yield batch_id


def rewind_command(url: str, to_batch: int) -> str:
    words = ("epochal", "checkpoint", "rewind", url, "--to-batch", str(to_batch))
    return f"`{shlex.join(words)} --sink OUTPUT`"


def delete_state_after(surveyed: Survey, version: int) -> Iterator[Change]:
    """Delete the state files of every version above `version`, with their checksum files."""
    tree = surveyed.tree
    for store in surveyed.stores:
        found = [(parse_state_file(name), name) for name in sorted(store.files)]
        newer = [(file, name) for file, name in found if file and file.version > version]
        for file, name in sorted(newer, key=lambda item: item[0].version, reverse=True):
            path = f"{store.path}/{name}"
            main = name[1:].removesuffix(".crc") if name.startswith(".") else ""
            if not main or main not in store.files:  # deleting a file deletes its hidden crc too
                kind = "checksum" if file.is_checksum else str(file.kind)
                yield tree.delete(path, f"{kind} of version {file.version}")


def _schemas_after(surveyed: Survey, to_batch: int) -> Iterator[Change]:
    tree = surveyed.tree
    for operator in surveyed.operators:
        log = operator_metadata_log_path(operator.operator)
        schemas = f"{operator_path(operator.operator)}/_stateSchema"
        for directory, kind in ((log, "operator metadata"), (schemas, "state schema")):
            for path in tree.under(directory):
                name = path.rpartition("/")[2]
                batch_id = parse_batch_id(name.partition("_")[0])
                if batch_id is not None and batch_id > to_batch:
                    yield tree.delete(path, f"{kind} of batch {batch_id}")


def _possible(surveyed: Survey, to_batch: int) -> str:
    both = sorted(surveyed.offsets.keys() & surveyed.commits.keys())
    possible = [each for each in both if _obstacle_or_state(surveyed, each)[0] is None]
    if not possible:
        return "No other batch is possible either: restore the files from a backup."
    if possible[-1] - possible[0] + 1 == len(possible):
        return f"The earliest possible batch is {possible[0]}, the latest {possible[-1]}."
    below = max((each for each in possible if each < to_batch), default=None)
    above = min((each for each in possible if each > to_batch), default=None)
    if above is None:
        return f"The newest possible batch is {below}."
    if below is None:
        return f"The oldest possible batch is {above}, the newest {possible[-1]}."
    newest = "" if above == possible[-1] else f" The newest is {possible[-1]}."
    return f"The nearest possible batches are {below} and {above}.{newest}"


def plan_publish(surveyed: Survey) -> Plan:
    """Plan to publish the state after the newest batch whose offsets can be read."""
    decided = _newest_readable(surveyed)
    what = "the newest state" if decided is None else f"the state after epoch {decided.epoch}"
    return Plan(
        command="publish",
        summary=f"publish {what}",
        changes=_changes(surveyed, decided),
        watches=surveyed.log_watches(),
    )


def changes_to_publish(surveyed: Survey, batch_id: int) -> tuple[Change, ...]:
    """The changes after which Spark's files have the state after a batch; empty if that fails."""
    try:
        decided = newest_decided(surveyed.files, batch_id)
        base = 0 if decided is None else decided.chain.published
        if base and surveyed.missing_state(base - 1) is not None:
            return ()
        return _changes(surveyed, decided)
    except EpochalError:
        return ()


def require_published(surveyed: Survey) -> None:
    """Raise EditError if an edit would not see the newest state."""
    try:
        decided = newest_decided(surveyed.files)
        unpublished = _changes(surveyed, decided)
    except EpochalError as error:
        raise EditError(surveyed.url, f"its newest state cannot be read: {error}") from error
    if decided is not None and unpublished:
        raise _not_published(surveyed, decided)


def refuse_unpublished(surveyed: Survey) -> None:
    """Raise EditError if the newest state is whole but does not have Spark's names.

    What cannot be read does not count: a repair reports it, and can often mend it.
    """
    try:
        decided = _newest_readable(surveyed)
        unpublished = _changes(surveyed, decided)
    except EpochalError:
        return
    if decided is not None and unpublished:
        raise _not_published(surveyed, decided)


def _newest_readable(surveyed: Survey) -> Decided | None:
    newest = max(surveyed.offsets, default=None)
    return None if newest is None else newest_decided(surveyed.files, newest)


def _not_published(surveyed: Survey, decided: Decided) -> EditError:
    place = shlex.quote(surveyed.url)
    return EditError(
        surveyed.url,
        f"the state after epoch {decided.epoch} does not have Spark's names yet, because the "
        f"query was not stopped gracefully. Run `epochal checkpoint publish {place} --execute` "
        f"first, or start and stop the query.",
    )


def _changes(surveyed: Survey, decided: Decided | None) -> tuple[Change, ...]:
    if decided is None:
        return ()
    missing = missing_files(surveyed.files, decided, surveyed.tree.infos)
    return tuple(surveyed.tree.write(path, data, why) for path, data, why in missing)
