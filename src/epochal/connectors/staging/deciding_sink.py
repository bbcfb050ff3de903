"""A sink whose own transaction decides each epoch: the driver writes all rows and a marker in it.

    tasks     prepare: send rows to the driver                                 nothing is visible
    driver    offsets/N; meanwhile, if the system allows it, send rows         N is planned
              transaction { all rows of N, marker N }                          N is decided
              commits/N, state, sources

After a crash before the transaction's commit, recovery drops `offsets/N`: the system has aborted
the transaction, or the next attempt aborts it with its claim. After a crash behind the commit,
recovery finishes N without writing rows.

Note: `fence` must be called before `decided`. Until then an earlier attempt could still commit.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.checkpoint.layout import COMMITS, OFFSETS
from epochal.clock import Clock
from epochal.connectors.contract import Sink, WriterFactory
from epochal.connectors.staging.epoch_marker import (
    NO_EPOCH,
    History,
    MarkedOutput,
    Marker,
    Refuse,
    Staged,
    check_marker,
    is_decided,
    logged_epoch,
    plan_commit,
    unpack,
)
from epochal.connectors.staging.staged_rows import delete_staged, delete_stale
from epochal.epoch.manifest import manifest_of
from epochal.errors import MarkerError
from epochal.files import Files, join_url

logger = logging.getLogger(__name__)


class Transactions(Protocol):
    """The transactions of one query, one after the other.

    A class that inherits from it has what is optional, so that it has no effect.
    """

    can_begin: bool = False
    """Whether `begin` does anything."""

    @property
    def place(self) -> str:
        """Where the marker is, for errors: `consumer group 'x'`."""
        ...

    def claim(self, attempt: int) -> Marker | None:
        """Fence earlier attempts, then return the marker; None if there is none."""
        ...

    def write(self, marker: Marker, staging: Files, staged: Sequence[Staged]) -> None:
        """Write the rows and the marker in one transaction.

        If this raises, the transaction may or may not be visible; only the marker after the next
        claim tells.
        """
        ...

    def close(self) -> None: ...

    def begin(self, marker: Marker, staging: Files, staged: Sequence[Staged]) -> None:
        """Start to write, in the background; `write` of the same marker completes that.

        `claim` and `close` abort what is not complete.
        """
        del marker, staging, staged


class StagingWriters(WriterFactory, Protocol):
    """Opens writers that put large outputs into files of the checkpoint."""

    @property
    def staging(self) -> str:
        """Where in the checkpoint the files are."""
        ...


class DecidingSink(Sink):
    """The driver's side of the sink. Only the driver writes rows."""

    exactly_once = True
    decides = True

    def __init__(
        self,
        transactions: Transactions,
        writers: StagingWriters,
        checkpoint: Files,
        output: MarkedOutput,
        clock: Clock,
        *,
        refresh_seconds: float | None = None,
        reset_marker: int | None = None,
    ) -> None:
        """`refresh_seconds` is how often a query without rows renews its marker; None is never."""
        self._transactions, self._writers, self._output = transactions, writers, output
        self._checkpoint, self._staging = checkpoint, checkpoint.at(writers.staging)
        self._clock, self._refresh_seconds = clock, refresh_seconds
        self._reset_marker = reset_marker
        self._marker: Marker | None = None
        self._marked_at: float | None = None
        """When this attempt last wrote a marker, on the monotonic clock."""

    @property
    def writers(self) -> StagingWriters:
        return self._writers

    def fence(self, attempt: int) -> None:
        # The order matters. Claim first: an earlier attempt could otherwise still commit after the
        # marker was read. Read the log last: an epoch's entry is written before its transaction, so
        # the log then has every epoch that the marker can name.
        self._marker = self._marked_at = None
        current = self._transactions.claim(attempt)
        marked = NO_EPOCH if current is None else current.epoch
        history = read_history(self._checkpoint, marked, self._output.magic)
        match check_marker(current, history, self._reset_marker, self._output):
            case Refuse(reason, remedy):
                raise MarkerError(self._transactions.place, reason, remedy)
            case Marker() as marker:
                logger.info(
                    "%s: the first marker is at epoch %d", self._transactions.place, marker.epoch
                )
                self._write(marker, ())
            case None:
                self._marker = current
        # Nobody reads these files again: an epoch that the marker names is finished without rows,
        # and any other epoch of an earlier attempt is dropped from the log.
        removed = delete_stale(self._staging, before=attempt)
        if removed:
            logger.info("removed %d staged files of earlier attempts", removed)

    def decided(self, epoch: int) -> bool:
        assert self._marker is not None, "call fence first"
        offsets = OffsetLog(self._checkpoint.at(OFFSETS), read_only=True)
        entry = logged_epoch(epoch, logged_messages(offsets, epoch), self._output.magic)
        return is_decided(self._marker, epoch, entry)

    def begin_commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        """Start to write an epoch that is not logged yet. Nothing becomes visible."""
        if not self._transactions.can_begin or self._marker is None:
            return
        refresh = self._must_refresh()
        plan = plan_commit(self._marker, epoch, messages, self._output, refresh=refresh)
        # A refusal is not raised here: `commit` asks again, once the epoch is logged.
        if isinstance(plan, Marker):
            self._transactions.begin(plan, self._staging, self._staged(messages))

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        assert self._marker is not None, "call fence first"
        refresh = self._must_refresh()
        match plan_commit(self._marker, epoch, messages, self._output, refresh=refresh):
            case Refuse(reason, remedy):
                raise MarkerError(self._transactions.place, reason, remedy)
            case Marker() as marker:
                self._write(marker, messages)
            case None:
                delete_staged(self._staging, self._staged(messages))

    def close(self) -> None:
        self._transactions.close()

    def _must_refresh(self) -> bool:
        if self._refresh_seconds is None:
            return False
        marked_at = self._marked_at
        return marked_at is None or self._clock.monotonic() - marked_at >= self._refresh_seconds

    def _write(self, marker: Marker, messages: Sequence[bytes]) -> None:
        """Write all rows and the marker in one transaction. Any error ends the attempt."""
        staged = self._staged(messages)
        self._transactions.write(marker, self._staging, staged)
        # If `write` raises, the marker is unknown. This attempt must not use its own any more, and
        # it does not: the next one begins with `fence`.
        self._marker, self._marked_at = marker, self._clock.monotonic()
        delete_staged(self._staging, staged)

    def _staged(self, messages: Sequence[bytes]) -> list[Staged]:
        reports = (unpack(message, self._output.magic) for message in messages)
        return [report for report in reports if report is not None]


def read_history(checkpoint: Files, marked: int, magic: bytes) -> History:
    """This sink's epochs in the logs, back to the marked one."""
    offsets = OffsetLog(checkpoint.at(OFFSETS), read_only=True)
    ids = offsets.batch_ids()
    committed = CommitLog(checkpoint.at(COMMITS), read_only=True).latest_batch_id()
    epochs = []
    for epoch in reversed(ids):
        if epoch < marked:
            break  # the marker stands for it and for all before it
        entry = logged_epoch(epoch, logged_messages(offsets, epoch), magic)
        if entry is not None:
            epochs.append(entry)
        if marked == NO_EPOCH and epochs:
            break  # one epoch is enough to know that a marker is missing
    return History(
        newest=max(ids, default=NO_EPOCH),
        committed=NO_EPOCH if committed is None else committed,
        epochs=tuple(epochs),
    )


def logged_messages(offsets: OffsetLog, epoch: int) -> tuple[bytes, ...]:
    """What tasks reported of an epoch, from its entry in the log; nothing if it has none."""
    entry = offsets.get(epoch)
    path = join_url(offsets.url, str(epoch))
    manifest = None if entry is None else manifest_of(entry, path, epoch)
    return () if manifest is None else manifest.messages
