"""Plans to give the newest state of a continuous query Spark's names. Reads, but never writes.

A query that is stopped does this itself. After a crash, Spark can start from the checkpoint only
when the next start of the query, or this plan, has done it. The plan writes a delta or changelog
per store and epoch, oldest first: Spark refuses to start until all of them are there.
"""

from __future__ import annotations

import shlex

from epochal.errors import EditError, EpochalError
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.edit.survey import Survey
from epochal.tools.inspect.epoch_overlay import Decided, missing_files, newest_decided

COMMAND = "epochal checkpoint publish"


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
        f"query was not stopped gracefully. Run `{COMMAND} {place} --execute` first, or start and "
        f"stop the query.",
    )


def _changes(surveyed: Survey, decided: Decided | None) -> tuple[Change, ...]:
    if decided is None:
        return ()
    missing = missing_files(surveyed.files, decided, surveyed.tree.infos)
    return tuple(surveyed.tree.write(path, data, why) for path, data, why in missing)
