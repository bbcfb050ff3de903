"""Exactly once into Kafka: one transaction per epoch, written by the driver, is the decision.

    tasks     prepare: rows to the driver                                      nothing is visible
    driver    offsets/N                                                        what N would be
              transaction { all rows of N, marker N }                          N is decided
              commits/N, state, sources

A crash before the transaction's commit drops `offsets/N`: Kafka has aborted the transaction, or
the next attempt's claim of the transactional id does. A crash after it finishes N, without rows.

What a reader would get wrong: what `decided` answers depends on `fence`, which must come first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.checkpoint.layout import COMMITS, OFFSETS
from epochal.clock import Clock
from epochal.connectors.kafka.sink.sink_marker import (
    NONE,
    Begin,
    Done,
    GoOn,
    History,
    Logged,
    Marker,
    Refuse,
    Write,
    is_decided,
    logged,
    plan_commit,
    stand,
    unpack,
)
from epochal.connectors.kafka.sink.sink_rows import Record
from epochal.connectors.kafka.sink.sink_staged import STAGING, StagedWriters, staged_rows, sweep
from epochal.epoch.manifest import manifest_of
from epochal.errors import MarkerError
from epochal.files import Files, join_url

logger = logging.getLogger(__name__)


class Transactions(Protocol):
    """What is asked of Kafka; see `transaction.KafkaTransactions`."""

    def claim(self) -> None: ...
    def marker(self) -> Marker | None: ...
    def begin(self) -> None: ...
    def send(self, places: Mapping[str, int], records: Iterable[Record]) -> None: ...
    def mark(self, marker: Marker) -> None: ...
    def commit(self) -> None: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...


class ExactKafkaSink:
    """The driver's side: the only one that writes to Kafka."""

    exactly_once = True
    decides = True

    def __init__(
        self,
        transactions: Transactions,
        writers: StagedWriters,
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
        self._marked = 0.0
        """When a marker was last written, on the monotonic clock."""

    @property
    def writers(self) -> StagedWriters:
        return self._writers

    def fence(self, attempt: int) -> None:
        # In this order: an epoch's entry is older than its transaction, and a transaction that an
        # earlier attempt can still commit must not be missed.
        self._marker = None
        self._transactions.claim()
        found = self._transactions.marker()
        history = read_history(self._checkpoint, NONE if found is None else found.epoch)
        self._marked = self._clock.monotonic() - self._refresh_seconds
        match stand(found, history, self._reset_marker):
            case Refuse(reason, remedy):
                raise MarkerError(self._group, reason, remedy)
            case Begin(marker):
                logger.info("%s: the marker begins at epoch %d", self._group, marker.epoch)
                self._write(marker, ())
            case GoOn(marker):
                self._marker = marker
        removed = sweep(self._staging, before=attempt)
        if removed:
            logger.info("kafka sink: removed %d files of earlier attempts", removed)

    def decided(self, epoch: int) -> bool:
        assert self._marker is not None, "fence comes first"
        offsets = OffsetLog(self._checkpoint.at(OFFSETS), read_only=True)
        return is_decided(self._marker, epoch, _logged(offsets, epoch))

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        assert self._marker is not None, "fence comes first"
        refresh = self._clock.monotonic() - self._marked >= self._refresh_seconds
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
        """One transaction of all rows and the marker. Whatever goes wrong ends the attempt."""
        transactions, plan = self._transactions, self._writers.plan
        staged = [found for found in map(unpack, messages) if found is not None]
        try:
            transactions.begin()
            for each in staged:
                for batch in staged_rows(self._staging, each):
                    transactions.send(plan.places(batch), plan.records(batch))
            transactions.mark(marker)
            transactions.commit()
        except Exception:
            transactions.abandon()
            raise
        self._marker, self._marked = marker, self._clock.monotonic()
        for each in staged:
            if each.name:
                with suppress(OSError):
                    self._staging.delete(each.name)


def read_history(checkpoint: Files, marked: int) -> History:
    """What the logs hold of this sink's epochs, back to the newest that is marked."""
    offsets = OffsetLog(checkpoint.at(OFFSETS), read_only=True)
    ids = offsets.batch_ids()
    committed = CommitLog(checkpoint.at(COMMITS), read_only=True).latest_batch_id()
    epochs = []
    for epoch in reversed(ids):
        if epoch < marked:
            break
        found = _logged(offsets, epoch)
        if found is not None:
            epochs.append(found)
        if marked == NONE and epochs:
            break  # one is enough to know that a marker is missing
    return History(
        newest=max(ids, default=NONE),
        committed=NONE if committed is None else committed,
        epochs=tuple(epochs),
    )


def _logged(offsets: OffsetLog, epoch: int) -> Logged | None:
    entry = offsets.get(epoch)
    if entry is None:
        return None
    manifest = manifest_of(entry, join_url(offsets.url, str(epoch)), epoch)
    return None if manifest is None else logged(epoch, manifest.messages)
