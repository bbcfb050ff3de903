"""Plans to switch a query from one checkpoint to another, and back.

A query runs where the file `metadata` has an id. A switch takes the id away from the old checkpoint
(`checkpoint.entries`) and only then opens the new one, in one journaled plan, whose journal is in
the checkpoint that opens. So at any moment at most one of the two can be started, and after a crash
the same command, or an undo, leaves exactly one:

    old    new
    open   closed, or empty     the plan is decided
    gone   closed               the old one is fenced
    gone   closed               files and the sink's log are written
    gone   open

Both queries must have stopped at the end of an epoch, at the same offsets. Then nothing is lost or
repeated: the old query has written everything up to there, and the new one writes what follows.

Going back is the same, with two differences. The old query goes on from where it was, so what the
new one has written since must be taken out of the output. And the checkpoint of the new query stays
behind, closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from epochal.checkpoint.entries import OFFSET_FORMAT, QueryMetadata, Switched, parse_switched
from epochal.checkpoint.layout import COMMITS, METADATA, OFFSETS
from epochal.errors import EditError, EpochalError
from epochal.files import Files, join_url
from epochal.tools.edit.copy_checkpoint import refuse_nested, refuse_occupied
from epochal.tools.edit.edit_file_log import (
    SinkSurvey,
    add_sink_batches,
    data_outside,
    rewind_sink,
    with_sink,
)
from epochal.tools.edit.edit_plan import ORIGIN, Change, Plan, Tree, Watch
from epochal.tools.edit.survey import Survey, last_committed
from epochal.tools.switch.boundaries import common_boundaries
from epochal.tools.switch.clone import clone_contents, decided_after, why, without_messages
from epochal.tools.switch.places import places_of

COMMAND = "switch"
FENCED = ORIGIN
"""The name of the checkpoint that is closed, among a plan's roots."""


@dataclass(frozen=True, slots=True)
class SwitchedOutput:
    """What is known of the query's output."""

    sink: SinkSurvey | None = None
    """Of a file sink."""
    restored: bool = False
    """Whether the caller has taken back what the new query wrote, or accepts duplicates."""
    before: str = "the version before the first of these epochs, which its history names by that id"
    """Where a table was at the switch, if that is known."""


def plan_new(old: Survey, target: Files, query_id: str) -> Plan:
    """Plan to switch to a new checkpoint at `target`, which goes on where the old one ended."""
    refuse_nested(old.url, target.url)
    refuse_occupied(target)
    epoch = _end_of(old)
    empty = Tree({})
    contents = dict(clone_contents(old, target, epoch, decided_after(old, epoch)))
    contents[METADATA] = QueryMetadata(query_id).serialize()
    written = [empty.write(path, content, why(content)) for path, content in contents.items()]
    changes = (_fence(old, target.url, epoch, epoch), *written)
    return _switch(old, target.url, epoch, changes, (Watch(OFFSETS, ()), Watch(COMMITS, ())))


def _switch(
    fenced: Survey,
    to: str,
    epoch: int,
    changes: Iterable[Change],
    watches: tuple[Watch, ...],
    verb: str = "switch",
) -> Plan:
    """The plan of a switch from the checkpoint that is closed."""
    return Plan(
        command=COMMAND,
        summary=f"{verb} from {fenced.url} to {to} after epoch {epoch}",
        changes=tuple(changes),
        arguments={"from": fenced.url, "to": to, "epoch": str(epoch)},
        warnings=(
            f"No query starts on {fenced.url} after this. A query of Spark's that still runs there "
            f"is not stopped by it: make sure that it has ended.",
        ),
        watches=(*(replace(watch, root=FENCED) for watch in fenced.log_watches()), *watches),
        roots={FENCED: fenced.files},
    )


def plan_existing(old: Survey, new: Survey, sink: SinkSurvey | None) -> Plan:
    """Plan to switch to a checkpoint that exists: a clone whose state was changed, or a shadow."""
    refuse_nested(old.url, new.url)
    epoch, new_epoch = _end_of(old), _end_of(new)
    old_end, new_end = (
        places_of(files.files, {at: files.offsets[at]})
        for files, at in ((old, epoch), (new, new_epoch))
    )
    if not common_boundaries(old_end, new_end, timed=bool(old.operators or new.operators)):
        raise EditError(
            new.url,
            f"ends at {_place(new, new_epoch)}, but {old.url} at {_place(old, epoch)}. A switch "
            f"would lose or repeat the rows between them. (Offsets of a file source count batches "
            f"of its own log, which may have other files.) Let both read to the same place, or "
            f"clone the checkpoint again.",
        )
    if not isinstance(new.listing.metadata, QueryMetadata):
        raise EditError(
            new.url, f"has no query id: {new.listing.metadata}. Switch to a new directory instead."
        )
    # The new query forgets the sink to which it wrote before: its markers are not in this one.
    kept = ((at, entry, without_messages(entry)) for at, entry in new.offsets.items())
    forgotten = [
        new.tree.write(f"{OFFSETS}/{at}", OFFSET_FORMAT.serialize(rest), "without its former sink")
        for at, entry, rest in kept
        if rest != entry
    ]
    changes = (_fence(old, new.url, epoch, new_epoch), *forgotten)
    plan = _switch(old, new.url, epoch, changes, new.log_watches())
    if new_epoch == epoch:
        return plan
    if new_epoch < epoch and sink is not None:
        raise EditError(
            new.url,
            f"ends with epoch {new_epoch}, but the log of the file sink in {sink.files.url} has "
            f"epoch {epoch}. The sink would skip the epochs up to it. Clone the checkpoint again.",
        )
    return add_sink_batches(plan, sink, range(epoch + 1, new_epoch + 1))


def read_switched(files: Files) -> Switched:
    """Where the query of a checkpoint went; EditError if it is still here."""
    url = join_url(files.url, METADATA)
    try:
        target = parse_switched(files.read(METADATA), url)
    except FileNotFoundError:
        target = None
    if target is None:
        raise EditError(
            files.url, "its query was not switched to another checkpoint, so there is no way back."
        )
    return target


def plan_back(old: Survey, new: Survey, output: SwitchedOutput) -> Plan:
    """Plan to return from `new` to `old`, which goes on right after the epoch of the switch."""
    went = read_switched(old.files)
    _require_pair(went, old, new)
    written = range(went.new_epoch + 1, max(new.offsets, default=-1) + 1)
    fence = _fence(new, old.url, max(new.offsets, default=-1), went.epoch)
    opened = old.tree.write(METADATA, QueryMetadata(went.query_id).serialize(), "the query's id")
    changes = (fence, opened)
    plan = _switch(new, old.url, went.epoch, changes, old.log_watches(), "switch back")
    plan = replace(plan, warnings=())
    if not written:
        return plan
    if output.sink is not None:
        plan = with_sink(plan, output.sink, (), data_outside(output.sink, went.epoch, "epochs"))
        return replace(plan, changes=(fence, *rewind_sink(output.sink, went.epoch), opened))
    if not output.restored:
        raise EditError(
            old.url,
            f"cannot go back yet: the query on {new.url} has committed the epochs "
            f"{written.start} to {written.stop - 1} since the switch, under the query id "
            f"{_id(new)}. {old.url} reads the same input again, so their rows would be in the "
            f"output twice. If it is a file sink, pass its directory with --sink: its log goes "
            f"back, too. If it is a table, restore it to {output.before}; then pass "
            f"--output-restored.",
        )
    warning = (
        f"The rows of the epochs {written.start} to {written.stop - 1} on {new.url} are written "
        f"again. Where the output still has them, they are there twice."
    )
    return replace(plan, warnings=(warning,))


def _require_pair(went: Switched, old: Survey, new: Survey) -> None:
    if went.to != new.url:
        raise EditError(
            old.url, f"its query was switched to {went.to}, not to {new.url}. Name that one."
        )
    _id(new)  # raises if the query has gone on from there, too
    committed = max(new.commits, default=-1)
    if max(new.offsets, default=-1) > committed:
        raise EditError(
            new.url,
            f"epoch {committed + 1} is not committed, so it is not known whether the output has "
            f"its rows. Start the query once more, and let it end at the end of an epoch.",
        )


def _end_of(surveyed: Survey) -> int:
    """The epoch after which a query has stopped; EditError if it did not stop at an end."""
    epoch, newest = last_committed(surveyed), max(surveyed.offsets)
    if newest > epoch:
        raise EditError(
            surveyed.url,
            f"did not stop at the end of an epoch: epoch {newest} was begun but not committed, and "
            f"its output may or may not be there. Start the query once more until it has finished "
            f"that epoch, with trigger(availableNow=True) for example.",
        )
    return epoch


def _id(surveyed: Survey) -> str:
    metadata = surveyed.listing.metadata
    if isinstance(metadata, QueryMetadata):
        return metadata.id
    if isinstance(metadata, EpochalError):
        raise metadata
    raise EditError(surveyed.url, "has no file `metadata`, so it has no query.")


def _fence(old: Survey, to: str, epoch: int, new_epoch: int) -> Change:
    content = Switched(to, epoch, new_epoch, _id(old)).serialize()
    return replace(old.tree.write(METADATA, content, "the query goes on elsewhere"), root=FENCED)


def _place(surveyed: Survey, epoch: int) -> str:
    entry = surveyed.offsets[epoch]
    offsets = ", ".join(str(offset) for offset in entry.by_source.values())
    return f"{offsets} with watermark {entry.watermark_ms} ms (epoch {epoch})"
