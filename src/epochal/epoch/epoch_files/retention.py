"""Deletes what no retained decision needs: log entries, and files with state. Off the epoch's path.

Epochs that are committed while it works are made up for by the next round.
"""

from __future__ import annotations

import logging
import threading

from epochal.epoch.durable import EpochResources
from epochal.errors import EpochalError

logger = logging.getLogger(__name__)


class Retention:
    """Tidies up after the epochs of one attempt that starts at `first_epoch`."""

    def __init__(self, resources: EpochResources, attempt: int, first_epoch: int) -> None:
        self._resources, self._attempt, self._first_epoch = resources, attempt, first_epoch
        self._swept = False
        self._floor = self._purged = 0
        """Up to where files with state, and log entries, are deleted."""
        self._looked = False
        """Whether the log entries that earlier attempts left are deleted."""
        self._waiting: tuple[int, int] | None = None
        self._closed = False
        self._work = threading.Condition()

    def note(self, epoch: int, floor: int) -> None:
        """Have `run` tidy up after a committed epoch. `floor` as in `Publication`."""
        with self._work:
            self._waiting = epoch, floor
            self._work.notify()

    def run(self) -> None:
        """Tidy up after the epochs that are noted, until closed."""
        while True:
            with self._work:
                self._work.wait_for(lambda: self._waiting is not None or self._closed)
                found, self._waiting = self._waiting, None
                if self._closed or found is None:
                    return
            self.tidy(*found)

    def close(self) -> None:
        """End `run` after the round under way."""
        with self._work:
            self._closed = True
            self._work.notify()

    def tidy(self, epoch: int, floor: int) -> None:
        """Delete what is not needed, now that `epoch` is committed.

        A failure is only logged: a later round tries again.
        """
        try:
            self._sweep()
            self._purge(epoch, floor)
        except (EpochalError, OSError) as error:
            logger.warning("old files could not be deleted: %s", error)

    def _sweep(self) -> None:
        """Delete what earlier attempts prepared in vain.

        Not before this attempt has decided an epoch: until then, a fenced driver may still win the
        race for the next offset entry, and that epoch would need its files.
        """
        if self._swept:
            return
        for path in self._resources.state.discard_before(self._attempt, self._first_epoch):
            logger.info("discarded %s of an earlier attempt", path)
        self._swept = True

    def _purge(self, epoch: int, floor: int) -> None:
        resources = self._resources
        kept = resources.min_batches_to_retain
        # A log with a few entries more does no harm, so this is done only after every tenth of the
        # retention.
        if kept > epoch or epoch % max(1, kept // 10):
            return
        before = epoch + 1 - kept
        if resources.is_stateful:
            # The commit before the version at the floor stays: it may name the version's files.
            before = min(before, floor - 1)
        if resources.is_stateful and floor > self._floor:
            resources.state.delete_before(floor)
            self._floor = floor
        if before > self._purged:
            self._purge_logs(before)
            self._purged = before

    def _purge_logs(self, before: int) -> None:
        """Delete log entries. The first time the logs are listed; after that the ids are known."""
        for log in (self._resources.offsets, self._resources.commits):
            if self._looked:
                for epoch in range(self._purged, before):  # the oldest first, as in `purge`
                    log.remove(epoch)
            else:
                log.purge(before)
        self._looked = True
