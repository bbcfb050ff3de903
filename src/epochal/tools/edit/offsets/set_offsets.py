"""Moves the offset of a source: plans a new batch that reads nothing and ends at another offset.

The batch has the settings, watermark and state of the last one. A restart finds it committed and
continues from its offsets.

Note: to move a file source back, one batch is not enough. On a restart Spark asks such a source for
the last batch again, from the end of the batch before it to its own end. That range must not run
backwards. So a second batch follows, from the new offset to the same offset.
"""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
from epochal.checkpoint.file_log import FileSourceLog, open_source_log
from epochal.checkpoint.layout import COMMITS, OFFSETS, source_log_path
from epochal.errors import EditError, OptionError
from epochal.tools.edit.edit_file_log import SinkSurvey, add_sink_batches
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.empty_batch import empty_batches
from epochal.tools.edit.offsets.offset_targets import (
    AskBroker,
    Target,
    goes_back,
    is_file_offset,
    move,
    new_partitions,
    no_broker,
)
from epochal.tools.edit.rewind import obstacle_to
from epochal.tools.edit.survey import Survey, last_committed
from epochal.wording import span


def plan_set_offsets(
    surveyed: Survey,
    source: str,
    target: Target,
    *,
    sink: SinkSurvey | None = None,
    ask_broker: AskBroker = no_broker,
    new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
) -> Plan:
    """Plan the batches after which `source` continues from `target`."""
    base = _base(surveyed)
    entry, commit = surveyed.offsets[base], surveyed.commits[base]
    if source not in entry.by_source:
        known = ", ".join(entry.by_source) or "none"
        raise OptionError(f"There is no source {source!r} in offsets/{base}. It has: {known}.")
    current = entry.by_source[source]
    moved = move(
        current,
        target,
        latest_log_batch=_latest_log_batch(surveyed, source) if is_file_offset(current) else None,
        ask_broker=ask_broker,
    )
    back = goes_back(current, moved)
    batches = 2 if back and is_file_offset(current) else 1
    new_ids = range(base + 1, base + 1 + batches)
    watermark_ms = max(entry.watermark_ms, commit.next_watermark_ms)
    empty = empty_batches(surveyed, base, batches, new_id)
    changes = list(empty.changes)
    for batch_id, last in zip(new_ids, empty.commits, strict=True):
        added = replace(_with_offset(entry, source, moved), watermark_ms=watermark_ms)
        done: CommitEntry = replace(last, next_watermark_ms=watermark_ms)
        why = f"source {source}: {current} -> {moved}"
        tree = surveyed.tree
        changes.append(tree.write(f"{OFFSETS}/{batch_id}", OFFSET_FORMAT.serialize(added), why))
        changes.append(tree.write(f"{COMMITS}/{batch_id}", COMMIT_FORMAT.serialize(done), why))
    added_ids = span(new_ids[0], new_ids[-1], "batch")
    plan = Plan(
        command="set-offsets",
        summary=f"add {added_ids}: source {source} {current} -> {moved}",
        changes=tuple(changes),
        arguments={"source": source, "offset": moved},
        warnings=tuple(_warnings(surveyed, source, current, moved, back=back)),
        watches=surveyed.log_watches(),
    )
    return add_sink_batches(plan, sink, new_ids)


def _base(surveyed: Survey) -> int:
    base = last_committed(surveyed)
    newest = max([*surveyed.listing.offsets.ids, *surveyed.listing.commits.ids])
    if newest != base:
        raise EditError(
            surveyed.url,
            f"batch {newest} has started but is not committed. A restart would not run it again "
            f"if a batch were added after it. Let the query finish it, or first run `epochal "
            f"checkpoint rewind {shlex.quote(surveyed.url)} --to-batch {base}`.",
        )
    if (obstacle := obstacle_to(surveyed, base, reads_state=False)) is not None:
        raise EditError(surveyed.url, f"cannot add a batch after {base}: {obstacle}.")
    return base


def _with_offset(entry: OffsetEntry, source: str, offset: str) -> OffsetEntry:
    if isinstance(entry.offsets, dict):
        return replace(entry, offsets={**entry.offsets, source: offset}, control_batch_info=None)
    place = int(source)
    return replace(entry, offsets=(*entry.offsets[:place], offset, *entry.offsets[place + 1 :]))


def _latest_log_batch(surveyed: Survey, source: str) -> int | None:
    log = open_source_log(surveyed.files.at(source_log_path(source)))
    return log.latest_batch_id() if isinstance(log, FileSourceLog) else None


def _warnings(
    surveyed: Survey, source: str, current: str | None, moved: str, *, back: bool
) -> Iterator[str]:
    if current == moved:
        yield f"Source {source} has this offset already: the new batch changes nothing."
    if added := new_partitions(current, moved):
        yield (
            f"Source {source} has not read {', '.join(added)} so far. The query fails if a "
            f"topic has no such partition: check names and numbers."
        )
    if back:
        counted = ", and the state will count them again" if surveyed.stores else ""
        yield f"Source {source} goes back: rows will be read again{counted}."
