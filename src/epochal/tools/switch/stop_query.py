"""Asks the query that owns a checkpoint to stop, and waits until it has.

The request is a file that the query looks for (`checkpoint.stop_request`). Whether the query has
stopped is read from the checkpoint, never from an answer: its claim is released, every epoch that
was begun is committed, and Spark's files have the state. A driver that is killed meanwhile is
noticed because it renews its claim no more, or because its process is gone.

Note: Spark's own queries do not look for requests, and Spark has no lock that would show that one
runs. So a checkpoint that Spark wrote last is refused.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from epochal.checkpoint.claim import (
    ATTEMPT_FORMAT,
    QUERY_PURPOSE,
    ClaimAttempt,
    claim_path,
    has_ended,
)
from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.checkpoint.layout import ATTEMPTS, COMMITS, OFFSETS, OWN_KEY
from epochal.checkpoint.metadata_log import MetadataLog
from epochal.checkpoint.stop_request import forget_stop, request_stop, stop_path
from epochal.clock import Clock
from epochal.errors import CheckpointInUseError, EditError, MissingBatchError, NotStoppedError
from epochal.files import Files, join_url
from epochal.tools.inspect.epoch_overlay import view_with_epochs
from epochal.tools.inspect.listing import require_checkpoint, require_directory

POLL_SECONDS = 0.25


class Ending(StrEnum):
    """How the run that was asked has ended."""

    STOPPED = "stopped"
    ENDED_BEFORE = "not running"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class StoppedQuery:
    """A query that does not run any more, and where it stands."""

    run_id: str
    ending: Ending
    epoch: int
    """The newest committed epoch; -1 if there is none."""
    owed: str = ""
    """What must happen before a switch, or before Spark starts; empty after a clean stop."""


def stop_query(
    files: Files,
    *,
    timeout_seconds: float,
    clock: Clock,
    on_asked: Callable[[ClaimAttempt], None] = lambda _owner: None,
    advance: Callable[[int, int], None] = lambda _done, _total: None,
) -> StoppedQuery:
    """Ask the query on this checkpoint to stop, and wait; NotStoppedError if it does not."""
    require_directory(files)
    owner = _newest(files)
    if owner is None or owner.purpose != QUERY_PURPOSE or not _is_claimed(files, owner):
        return _not_running(files, owner)
    request_stop(files, owner.run_id, asked_by=socket.gethostname(), now_ms=clock.now_ms())
    on_asked(owner)
    ending = _wait(files, owner, timeout_seconds, clock, advance)
    forget_stop(files, owner.run_id)
    return _judge(files, owner, ending)


def _not_running(files: Files, owner: ClaimAttempt | None) -> StoppedQuery:
    if owner is not None and owner.purpose != QUERY_PURPOSE and _is_claimed(files, owner):
        evidence = f"{owner.purpose}, process {owner.process} on {owner.host}"
        raise CheckpointInUseError(files.url, "that asks to stop", owner.run_id, evidence)
    if owner is None:
        require_checkpoint(files)
    if owner is None or not _is_ours(files):
        raise EditError(
            files.url,
            "no query of Epochal's runs here. A query of Spark's cannot be asked to stop: it looks "
            "for no request, and nothing in its checkpoint shows whether it runs. Call stop() in "
            "its program, or end the program. If it leaves a batch that is not committed, start "
            "it once more with trigger(availableNow=True).",
        )
    return _judge(files, owner, Ending.ENDED_BEFORE)


def _wait(
    files: Files,
    owner: ClaimAttempt,
    timeout_seconds: float,
    clock: Clock,
    advance: Callable[[int, int], None],
) -> Ending:
    started = renewed_at = clock.monotonic()
    renewed_ms: int | None = None
    while True:
        claim = files.info(claim_path(owner.run_id))
        newest = _newest(files)
        if newest is not None and newest.run_id != owner.run_id:
            raise NotStoppedError(
                files.url,
                owner.run_id,
                f"it has ended, but run {newest.run_id} ({newest.purpose}) has begun since. "
                f"Something starts the query again, such as a supervisor or a scheduled job: stop "
                f"that first",
            )
        if claim is None:
            return Ending.STOPPED
        now = clock.monotonic()
        if claim.modified_ms != renewed_ms:
            renewed_ms, renewed_at = claim.modified_ms, now
        if has_ended(owner) or (now - renewed_at) * 1000 > owner.claim_ms:
            return Ending.DIED
        if now - started >= timeout_seconds:
            request = join_url(files.url, stop_path(owner.run_id))
            raise NotStoppedError(
                files.url,
                owner.run_id,
                f"it still runs after {timeout_seconds:g} s (process {owner.process} on "
                f"{owner.host}). The request stays in {request}, and the query stops when it can; "
                f"delete that file to take the request back. Run the same command again to wait "
                f"longer. A driver of an earlier release looks for no request: call query.stop() "
                f"there",
            )
        advance(round(now - started), round(timeout_seconds))
        clock.sleep(POLL_SECONDS)


def _judge(files: Files, owner: ClaimAttempt, ending: Ending) -> StoppedQuery:
    committed = CommitLog(files.at(COMMITS), read_only=True).latest_batch_id()
    newest = OffsetLog(files.at(OFFSETS), read_only=True).latest_batch_id()
    epoch = -1 if committed is None else committed
    owed = ""
    if newest is not None and newest > epoch:
        owed = (
            f"epoch {newest} was begun but is not committed. Start the query once more, with "
            f"trigger(availableNow=True) for example: it finishes that epoch"
        )
    elif (unpublished := view_with_epochs(files).unpublished) is not None:
        owed = (
            f"Spark's files do not have the state after epoch {unpublished}. Start the query "
            f"again, or run `epochal checkpoint publish {files.url} --execute`"
        )
    return StoppedQuery(owner.run_id, ending, epoch, owed)


def _newest(files: Files) -> ClaimAttempt | None:
    log = MetadataLog(files.at(ATTEMPTS), ATTEMPT_FORMAT, read_only=True)
    while True:
        try:
            newest = log.get_latest()
        except MissingBatchError:
            continue  # a newer attempt has just purged it
        return None if newest is None else newest[1]


def _is_claimed(files: Files, owner: ClaimAttempt) -> bool:
    return files.info(claim_path(owner.run_id)) is not None and not has_ended(owner)


def _is_ours(files: Files) -> bool:
    """Whether Epochal, and not Spark, has written the newest batch, or there is none."""
    offsets = OffsetLog(files.at(OFFSETS), read_only=True).get_latest()
    if offsets is None:
        return True
    commit = CommitLog(files.at(COMMITS), read_only=True).get(offsets[0])
    return OWN_KEY in offsets[1].extra and (commit is None or OWN_KEY in commit.extra)
