"""Carries a plan out on a checkpoint that nobody else is using: guard, quiet, journal.

Spark takes no lock, so a live query can only be seen by what it does. Three things stand between
an edit and a running query: the guard, for runs that use it; watching the checkpoint for a moment;
and the journal's own checks of every file it touches. What a reader would get wrong: an idle query
shows nothing at all. The operator has to stop it; these checks catch forgetting, not intent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from epochal.checkpoint.claim import Claim
from epochal.clock import Clock, SystemClock
from epochal.errors import CheckpointInUseError, EditError
from epochal.files import Files, open_files
from epochal.tools.edit.edit_journal import Journal, Progress
from epochal.tools.edit.edit_plan import Plan, Tree, is_temporary, read_tree
from epochal.tools.inspect.edit_status import JournalEntry, JournalState

DEFAULT_SETTLE_SECONDS = 2.0
FRESH_MS = 10_000
GUARD_CHECK_SECONDS = 5.0
EVIDENCE_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of it: the journal's entry, or None if there was nothing to change."""

    entry: JournalEntry | None
    finished_earlier: bool = False
    """True if an interrupted run of the same command was finished, and nothing else done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How an edit is carried out."""

    run_id: str
    settle_seconds: float = DEFAULT_SETTLE_SECONDS
    """How long to watch for signs of a live query first; 0 looks once."""
    even_if_busy: bool = False
    """Go on although the checkpoint seems to be written to."""
    clock: Clock = field(default_factory=SystemClock)
    open_root: Callable[[str], Files] = open_files


def apply(
    files: Files,
    command: str,
    make_plan: Callable[[], Plan],
    conditions: Conditions,
    progress: Progress | None = None,
) -> Applied:
    """Make a plan and carry it out, or finish the one that a crash interrupted."""
    with _claimed(files, command, conditions) as guard:
        journal = _journal(files, conditions)
        if (entry := journal.unfinished()) is not None:
            if entry.command != command or entry.state is not JournalState.UNFINISHED:
                raise _in_the_way(files, entry)
            return Applied(
                journal.finish(entry.id, _checked(guard, files, conditions, progress)), True
            )
        require_quiet(files, conditions)
        plan = make_plan()
        if plan.is_empty:
            return Applied(None)
        return Applied(journal.execute(plan, _checked(guard, files, conditions, progress)))


def undo(
    files: Files,
    entry_id: str | None,
    conditions: Conditions,
    progress: Progress | None = None,
) -> JournalEntry:
    """Take an edit back: the newest one unless named."""
    with _claimed(files, "undo", conditions) as guard:
        journal = _journal(files, conditions)
        if journal.unfinished() is None:  # otherwise no query can have started
            require_quiet(files, conditions)
        return journal.undo(entry_id, _checked(guard, files, conditions, progress))


def prune(files: Files, conditions: Conditions) -> list[str]:
    """Forget every finished edit; under the claim, so that none is being prepared meanwhile."""
    with _claimed(files, "undo --prune", conditions):
        return _journal(files, conditions).prune()


def require_quiet(files: Files, conditions: Conditions) -> None:
    """Watch a checkpoint; CheckpointInUseError if anything in it moves meanwhile."""
    if conditions.even_if_busy:
        return
    before = read_tree(files)
    if conditions.settle_seconds > 0:
        conditions.clock.sleep(conditions.settle_seconds)
        after = read_tree(files)
    else:
        after = before
    seen = disturbances(before, after, conditions.clock.now_ms())
    if seen:
        shown = "; ".join(seen[:EVIDENCE_SHOWN])
        more = f" and {len(seen) - EVIDENCE_SHOWN} more" if len(seen) > EVIDENCE_SHOWN else ""
        raise CheckpointInUseError(
            files.url, conditions.run_id, "that Spark does not name", f"{shown}{more}"
        )


def disturbances(before: Tree, after: Tree, now_ms: int) -> list[str]:
    """What happened between two listings, and temporary files too fresh to be forgotten ones."""
    seen = [f"{path} appeared" for path in after.infos if path not in before]
    seen += [f"{path} vanished" for path in before.infos if path not in after]
    seen += [
        f"{path} changed"
        for path, info in after.infos.items()
        if path in before and info != before.infos[path]
    ]
    seen += [
        f"{path} is being written"
        for path, info in after.infos.items()
        if is_temporary(path) and path in before and now_ms - info.modified_ms < FRESH_MS
    ]
    return seen


def _claimed(files: Files, command: str, conditions: Conditions) -> Claim:
    return Claim.acquire(files, conditions.run_id, purpose=command, clock=conditions.clock)


def _journal(files: Files, conditions: Conditions) -> Journal:
    return Journal(files, clock=conditions.clock, open_root=conditions.open_root)


def _checked(
    guard: Claim, files: Files, conditions: Conditions, progress: Progress | None
) -> Progress:
    """Progress that also stops the edit when the claim is lost, as after a long sleep."""
    looked = conditions.clock.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal looked
        if conditions.clock.monotonic() - looked > GUARD_CHECK_SECONDS:
            if not guard.still_mine():
                raise EditError(
                    files.url,
                    f"run {conditions.run_id} was silent for so long that it lost its claim. "
                    f"Nothing more is changed; run the same command again to finish.",
                )
            looked = conditions.clock.monotonic()
        if progress is not None:
            progress(done, total)

    return advance


def _in_the_way(files: Files, entry: JournalEntry) -> EditError:
    way = (
        f"run the same {entry.command} again to finish it, or `epochal checkpoint undo` to take "
        f"it back"
        if entry.state is JournalState.UNFINISHED
        else "run `epochal checkpoint undo` again to complete the way back"
    )
    return EditError(
        files.url,
        f"the {entry.command} {entry.id} was interrupted and is {entry.state}: {way}. Nothing "
        f"was changed.",
    )
