"""Applies a plan to a checkpoint that no query is using.

Spark takes no lock, so a running query can be detected only by its writes. Three checks protect it
from an edit. The guard excludes Epochal's own runs. Watching the checkpoint for a moment reveals a
query that writes. And the journal checks every file before it changes it.

Note: an idle query writes nothing, so it cannot be detected. The operator must stop it. The checks
are a safety net for those who forget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from epochal.checkpoint.claim import Claim
from epochal.clock import Clock, SystemClock
from epochal.errors import CheckpointInUseError, EditError
from epochal.files import Files
from epochal.tools.edit.edit_journal import Journal, Progress
from epochal.tools.edit.edit_plan import Plan, Tree, is_temporary, read_tree
from epochal.tools.inspect.edit_status import JournalEntry, JournalState, undo_of

DEFAULT_SETTLE_SECONDS = 2.0
FRESH_MS = 10_000
GUARD_CHECK_SECONDS = 5.0
EVIDENCE_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of an edit: its journal entry, or None if there was nothing to change."""

    entry: JournalEntry | None
    finished_earlier: bool = False
    """Whether only an interrupted run of the same command was finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    run_id: str
    settle_seconds: float = DEFAULT_SETTLE_SECONDS
    """How long to watch for a running query first; with 0, the checkpoint is listed only once."""
    even_if_busy: bool = False
    """Apply the edit even if a query seems to write to the checkpoint."""
    clock: Clock = field(default_factory=SystemClock)
    places: Sequence[Files] = ()
    """The places outside the checkpoint that the caller has named. No others are touched."""


def apply(
    files: Files,
    command: str,
    make_plan: Callable[[], Plan],
    conditions: Conditions,
    progress: Progress | None = None,
) -> Applied:
    """Make a plan and apply it, or finish an interrupted one of the same command."""
    with _claimed(files, command, conditions) as guard:
        journal = _journal(files, conditions)
        if (entry := journal.unfinished()) is not None:
            if entry.command != command or entry.state is not JournalState.UNFINISHED:
                undo = undo_of(files.url, entry)
                remedy = (
                    f"run the same {entry.command} again to finish it, or {undo} to revert it"
                    if entry.state is JournalState.UNFINISHED
                    else f"run {undo} again to finish the undo"
                )
                raise EditError(
                    files.url,
                    f"the {entry.command} {entry.id} was interrupted and is {entry.state}: "
                    f"{remedy}. Nothing was changed.",
                )
            return Applied(
                journal.finish(entry.id, _checked(guard, files, conditions, progress)), True
            )
        require_quiet(files, conditions)
        plan = make_plan()
        if plan.is_empty:
            return Applied(None)
        return Applied(journal.execute(plan, _checked(guard, files, conditions, progress)))


def undo(
    files: Files, entry_id: str | None, conditions: Conditions, progress: Progress | None = None
) -> JournalEntry:
    """Undo the edit `entry_id`, by default the newest one."""
    with _claimed(files, "undo", conditions) as guard:
        journal = _journal(files, conditions)
        # While an edit is unfinished, `metadata` keeps every query from starting.
        if journal.unfinished() is None:
            require_quiet(files, conditions)
        return journal.undo(entry_id, _checked(guard, files, conditions, progress))


def prune(files: Files, conditions: Conditions) -> list[str]:
    """Remove every finished edit from the journal.

    The checkpoint is claimed meanwhile, so that no other tool prepares an edit.
    """
    with _claimed(files, "undo --prune", conditions):
        return _journal(files, conditions).prune()


def require_quiet(files: Files, conditions: Conditions) -> None:
    """Watch a checkpoint for a moment; CheckpointInUseError if a file changes."""
    if conditions.even_if_busy:
        return
    before = after = read_tree(files)
    if conditions.settle_seconds > 0:
        conditions.clock.sleep(conditions.settle_seconds)
        after = read_tree(files)
    seen = disturbances(before, after, conditions.clock.now_ms())
    if seen:
        shown = "; ".join(seen[:EVIDENCE_SHOWN])
        more = f" and {len(seen) - EVIDENCE_SHOWN} more" if len(seen) > EVIDENCE_SHOWN else ""
        raise CheckpointInUseError(
            files.url, conditions.run_id, "that Spark does not name", f"{shown}{more}"
        )


def disturbances(before: Tree, after: Tree, now_ms: int) -> list[str]:
    """Return the changes between two listings, and the temporary files of the last seconds.

    An older temporary file was left behind by a crash.
    """
    both = [(path, info) for path, info in after.infos.items() if path in before]
    return [
        *(f"{path} appeared" for path in after.infos if path not in before),
        *(f"{path} vanished" for path in before.infos if path not in after),
        *(f"{path} changed" for path, info in both if info != before.infos[path]),
        *(
            f"{path} is being written"
            for path, info in both
            if is_temporary(path) and now_ms - info.modified_ms < FRESH_MS
        ),
    ]


def _claimed(files: Files, command: str, conditions: Conditions) -> Claim:
    return Claim.acquire(files, conditions.run_id, purpose=command, clock=conditions.clock)


def _journal(files: Files, conditions: Conditions) -> Journal:
    return Journal(files, clock=conditions.clock, places=conditions.places)


def _checked(
    guard: Claim, files: Files, conditions: Conditions, progress: Progress | None
) -> Progress:
    """Return a progress function that also stops the edit if its claim is lost.

    This happens if the process was suspended for longer than its lease.
    """
    checked_at = conditions.clock.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal checked_at
        if conditions.clock.monotonic() - checked_at > GUARD_CHECK_SECONDS:
            if not guard.still_mine():
                raise EditError(
                    files.url,
                    f"run {conditions.run_id} did not renew its claim on the checkpoint in time "
                    f"and lost its claim. The edit stops here, unfinished. Run the same command "
                    f"again to finish it.",
                )
            checked_at = conditions.clock.monotonic()
        if progress is not None:
            progress(done, total)

    return advance
