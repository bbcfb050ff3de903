"""Exactly-once delivery to Kafka: the driver writes each epoch in one transaction.

The commit of that transaction decides the epoch:

    tasks     prepare: send rows to the driver                                 nothing is visible
    driver    offsets/N                                                        N is planned
              transaction { all rows of N, marker N }                          N is decided
              commits/N, state, sources

After a crash before the transaction's commit, recovery drops `offsets/N`: Kafka has aborted the
transaction, or the next attempt aborts it when it claims the transactional id. After a crash behind
the commit, recovery finishes N without writing rows.

Note: `fence` must be called before `decided`. Until then an earlier attempt could still commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.checkpoint.layout import COMMITS, OFFSETS
from epochal.clock import Clock
from epochal.connectors.kafka.sink.encoded_values import EncodingWriters
from epochal.connectors.kafka.sink.sink_marker import (
    NO_EPOCH,
    Begin,
    Continue,
    Done,
    History,
    LoggedEpoch,
    Marker,
    Refuse,
    Write,
    check_marker,
    is_decided,
    logged_epoch,
    plan_commit,
    unpack,
)
from epochal.connectors.kafka.sink.sink_rows import Record
from epochal.connectors.kafka.sink.sink_staged import (
    STAGING,
    StagedWriters,
    delete_stale,
    staged_rows,
)
from epochal.epoch.manifest import manifest_of
from epochal.errors import MarkerError
from epochal.files import Files, join_url

logger = logging.getLogger(__name__)


class Transactions(Protocol):
    """The calls to Kafka; see `transaction.KafkaTransactions`."""

    def claim(self) -> None: ...
    def marker(self) -> Marker | None: ...
    def begin(self) -> None: ...
    def send(self, highest_partitions: Mapping[str, int], records: Iterable[Record]) -> None: ...
    def mark(self, marker: Marker) -> None: ...
    def commit(self) -> None: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...


class ExactKafkaSink:
    """The driver's side of the sink. Only the driver writes to Kafka."""

    exactly_once = True
    decides = True

    def __init__(
        self,
        transactions: Transactions,
        writers: StagedWriters | EncodingWriters,
        checkpoint: Files,
        group: str,
        clock: Clock,
        *,
        refresh_seconds: float,
        reset_marker: int | None = None,
    ) -> None:
        self._transactions, self._writers, self._group = transactions, writers, group
        self._checkpoint, self._staging = checkpoint, checkpoint.at(STAGING)
        self._clock, self._refresh_seconds = clock, refresh_seconds
        self._reset_marker = reset_marker
        self._marker: Marker | None = None
        self._marked_at = 0.0
        """When a marker was last written, on the monotonic clock."""

    @property
    def writers(self) -> StagedWriters | EncodingWriters:
        return self._writers

    def fence(self, attempt: int) -> None:
        # The order matters. Claim first: an earlier attempt could otherwise still commit after the
        # marker was read. Read the log last: an epoch's entry is written before its transaction, so
        # the log then has every epoch that the marker can name.
        self._marker = None
        self._transactions.claim()
        found = self._transactions.marker()
        history = read_history(self._checkpoint, NO_EPOCH if found is None else found.epoch)
        self._marked_at = self._clock.monotonic() - self._refresh_seconds
        match check_marker(found, history, self._reset_marker):
            case Refuse(reason, remedy):
                raise MarkerError(self._group, reason, remedy)
            case Begin(marker):
                logger.info("%s: the first marker is at epoch %d", self._group, marker.epoch)
                self._write(marker, ())
            case Continue(marker):
                self._marker = marker
        removed = delete_stale(self._staging, before=attempt)
        if removed:
            logger.info("kafka sink: removed %d files of earlier attempts", removed)

    def decided(self, epoch: int) -> bool:
        assert self._marker is not None, "call fence first"
        offsets = OffsetLog(self._checkpoint.at(OFFSETS), read_only=True)
        return is_decided(self._marker, epoch, _read_epoch(offsets, epoch))

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        assert self._marker is not None, "call fence first"
        refresh = self._clock.monotonic() - self._marked_at >= self._refresh_seconds
        match plan_commit(self._marker, epoch, messages, refresh=refresh):
            case Refuse(reason, remedy):
                raise MarkerError(self._group, reason, remedy)
            case Write(marker):
                self._write(marker, messages)
            case Done():
                pass

    def close(self) -> None:
        self._transactions.close()

    def _write(self, marker: Marker, messages: Sequence[bytes]) -> None:
        """Write all rows and the marker in one transaction. Any error ends the attempt."""
        transactions, plan = self._transactions, self._writers.plan
        staged = [found for found in map(unpack, messages) if found is not None]
        try:
            transactions.begin()
            for each in staged:
                for batch in staged_rows(self._staging, each):
                    transactions.send(plan.highest_partitions(batch), plan.records(batch))
            transactions.mark(marker)
            transactions.commit()
        except Exception:
            transactions.abandon()
            raise
        self._marker, self._marked_at = marker, self._clock.monotonic()
        for each in staged:
            if each.name:
                with suppress(OSError):
                    self._staging.delete(each.name)


def read_history(checkpoint: Files, marked: int) -> History:
    """This sink's epochs in the logs, back to the marked one."""
    offsets = OffsetLog(checkpoint.at(OFFSETS), read_only=True)
    ids = offsets.batch_ids()
    committed = CommitLog(checkpoint.at(COMMITS), read_only=True).latest_batch_id()
    epochs = []
    for epoch in reversed(ids):
        if epoch < marked:
            break
        found = _read_epoch(offsets, epoch)
        if found is not None:
            epochs.append(found)
        if marked == NO_EPOCH and epochs:
            break  # one epoch is enough to know that a marker is missing
    return History(
        newest=max(ids, default=NO_EPOCH),
        committed=NO_EPOCH if committed is None else committed,
        epochs=tuple(epochs),
    )


def _read_epoch(offsets: OffsetLog, epoch: int) -> LoggedEpoch | None:
    entry = offsets.get(epoch)
    if entry is None:
        return None
    manifest = manifest_of(entry, join_url(offsets.url, str(epoch)), epoch)
    return None if manifest is None else logged_epoch(epoch, manifest.messages)
