"""Compares what a query and its clone have written, up to the first difference.

The logs of both checkpoints tell at which epochs both have read the same (`boundaries.py`), and the
outputs which parts were visible after these epochs. Where an output does not know that, all of it
is compared, once, provided that both queries now stand at the same boundary.

Note: the rows of one segment are held in memory, of both outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.checkpoint.layout import COMMITS, OFFSETS, STATE
from epochal.checkpoint.metadata_log import parse_batch_id
from epochal.files import Files
from epochal.tools.inspect.edit_status import JournalState, journal_entries
from epochal.tools.reporting import tracked
from epochal.tools.switch.boundaries import (
    Boundary,
    ReadPosition,
    Segment,
    common_boundaries,
    why_none,
)
from epochal.tools.switch.clone import COMMAND
from epochal.tools.switch.compare_rows import (
    OutputDifference,
    Rows,
    Written,
    compare,
    count_rows,
    pairs_of,
    row_text,
    subtract_moved,
)
from epochal.tools.switch.places import places_of
from epochal.tools.switch.query_outputs import Output
from epochal.wording import counted

Parts = frozenset[str]


class Verdict(StrEnum):
    SAME = "same"
    DIFFERENT = "different"
    UNKNOWN = "cannot be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowOptions:
    key: tuple[str, ...] = ()
    """The columns that identify a row."""
    ignored: tuple[str, ...] = ()
    """Columns that may differ."""
    rows_shown: int = 5


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two queries: its committed epochs, and its output."""

    places: Mapping[int, ReadPosition]
    output: Output
    is_stateful: bool = True


@dataclass(frozen=True, slots=True)
class Compared:
    """A segment whose output is the same."""

    segment: Segment
    rows: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result: what is the same, and the first difference."""

    verdict: Verdict
    compared: tuple[Compared, ...] = ()
    segment: Segment | None = None
    """The one that differs."""
    difference: OutputDifference = field(default_factory=lambda: OutputDifference(Rows(), Rows()))
    pairs: tuple[tuple[str | None, str | None], ...] = ()
    """Some of the rows that differ: of the first query and of the second."""
    reason: str = ""
    """Why nothing could be compared."""
    notes: tuple[str, ...] = ()


def committed_places(files: Files) -> dict[int, ReadPosition]:
    """How far the committed epochs have read that a query has run itself, and the one before them.

    A clone also has entries of the query that it was made from. Its output does not.
    """
    cloned = (
        parse_batch_id(entry.arguments.get("at", ""))
        for entry in journal_entries(files)
        if entry.command == COMMAND and entry.state is JournalState.DONE
    )
    first = max((epoch for epoch in cloned if epoch is not None), default=-1)
    commits = set(CommitLog(files.at(COMMITS), read_only=True).batch_ids())
    log = OffsetLog(files.at(OFFSETS), read_only=True)
    wanted = (epoch for epoch in log.batch_ids() if epoch in commits and epoch >= first)
    entries = {batch_id: log.get(batch_id) for batch_id in wanted}
    return places_of(
        files, {batch_id: entry for batch_id, entry in entries.items() if entry is not None}
    )


def has_state(files: Files) -> bool:
    return any(info.is_dir and info.name.isdigit() for info in files.list(STATE))


def compare_outputs(a: Side, b: Side, options: ShadowOptions) -> Comparison:
    """Compare two outputs, segment by segment, up to the first difference."""
    timed = a.is_stateful or b.is_stateful
    boundaries = common_boundaries(a.places, b.places, timed=timed)
    doubts = tuple(
        f"{side.output.name}: {side.output.doubt}." for side in (a, b) if side.output.doubt
    )
    if not (a.output.by_epoch and b.output.by_epoch):
        return _compare_whole(a, b, boundaries, options)
    compared: list[Compared] = []
    start: tuple[Boundary, Parts, Parts] | None = None
    for boundary in tracked(boundaries):
        parts_a, parts_b = a.output.parts_at(boundary.a), b.output.parts_at(boundary.b)
        if parts_a is None or parts_b is None:
            continue
        if start is not None:
            segment = Segment(start[0], boundary)
            difference, rows = _compare_segment(
                (a.output, b.output), segment, start[1:], (parts_a, parts_b), options
            )
            if difference:
                pairs = pairs_of(difference, options.key, options.rows_shown)
                notes = (*_notes(a, b, boundaries, segment), *doubts)
                return Comparison(
                    Verdict.DIFFERENT, tuple(compared), segment, difference, tuple(pairs), "", notes
                )
            compared.append(Compared(segment, rows))
        start = boundary, parts_a, parts_b
    if not compared:
        reason = why_none(a.places, b.places)
        if boundaries and (start is None or start[0] is not boundaries[-1]):
            reason = "the outputs do not tell any more which epoch wrote what"
        return Comparison(Verdict.UNKNOWN, reason=reason, notes=doubts)
    notes = (*_notes(a, b, boundaries, None), *doubts)
    return Comparison(Verdict.SAME, tuple(compared), notes=notes)


def _compare_segment(
    outputs: tuple[Output, Output],
    segment: Segment,
    before: tuple[Parts, Parts],
    after: tuple[Parts, Parts],
    options: ShadowOptions,
) -> tuple[OutputDifference, int]:
    epochs = segment.epochs_a, segment.epochs_b
    replaced = any(output.replaces(of) for output, of in zip(outputs, epochs, strict=True))
    sides: list[Written] = []
    for output, then, now in zip(outputs, before, after, strict=True):
        new, gone, whole = (
            count_rows(output.rows(parts), options.ignored)
            for parts in (now - then, then - now, now if replaced else Parts())
        )
        sides.append(subtract_moved(new, gone, whole if replaced else None))
    difference = compare(sides[0], sides[1], keyed=bool(options.key))
    return difference, sides[0].added.total()


def _compare_whole(
    a: Side, b: Side, boundaries: Sequence[Boundary], options: ShadowOptions
) -> Comparison:
    whole = [side.output.name for side in (a, b) if not side.output.by_epoch]
    notes = [
        f"It is not known which epoch wrote what: {' and '.join(whole)}. All rows are compared, so "
        f"both outputs must have begun with the same rows."
    ]
    newest = boundaries[-1] if boundaries else None
    if newest is None:
        return Comparison(Verdict.UNKNOWN, reason=why_none(a.places, b.places), notes=tuple(notes))
    ends = max(a.places), max(b.places)
    if (newest.a, newest.b) != ends:
        reason = (
            f"the queries do not stand at the same place. They did after epoch {newest.a} of the "
            f"first and epoch {newest.b} of the second query, but now they are at {ends[0]} and "
            f"{ends[1]}. Stop them where both have read the same"
        )
        return Comparison(Verdict.UNKNOWN, reason=reason, notes=tuple(notes))
    rows = []
    for side, epoch in ((a, newest.a), (b, newest.b)):
        parts = side.output.parts_at(epoch) or Parts()
        rows.append(count_rows(side.output.rows(parts), options.ignored))
    if options.key:

        def key_of(row: str) -> str:
            values = json.loads(row)
            return row_text({name: values.get(name) for name in options.key})

        keys = {key_of(row) for row in rows[1]}
        rows_with_keys = Rows({row: n for row, n in rows[0].items() if key_of(row) in keys})
        if left_out := rows[0].total() - rows_with_keys.total():
            notes.append(
                f"Left out: {counted(left_out, 'row')} of the first output, whose keys the second "
                f"has not."
            )
        rows[0] = rows_with_keys
    segment = Segment(Boundary(-1, -1, (), 0), newest)
    difference = OutputDifference(rows[0] - rows[1], rows[1] - rows[0])
    if not difference:
        compared = (Compared(segment, rows[0].total()),)
        return Comparison(Verdict.SAME, compared, notes=tuple(notes))
    pairs = tuple(pairs_of(difference, options.key, options.rows_shown))
    return Comparison(Verdict.DIFFERENT, (), segment, difference, pairs, "", tuple(notes))


def _notes(
    a: Side, b: Side, boundaries: Sequence[Boundary], differing: Segment | None
) -> list[str]:
    notes = []
    if differing is not None and max(len(differing.epochs_a), len(differing.epochs_b)) > 1:
        notes.append(
            f"The first query read this in {counted(len(differing.epochs_a), 'epoch')}, the "
            f"second in {len(differing.epochs_b)}. If it drops late rows, it may drop others "
            f"for that reason."
        )
    if differing is None:
        last = boundaries[-1]
        later = [
            f"{max(side.places) - epoch} later epochs of the {which} query"
            for side, epoch, which in ((a, last.a, "first"), (b, last.b, "second"))
            if max(side.places) > epoch
        ]
        if later:
            notes.append(f"Not compared: {' and '.join(later)}.")
    return notes
