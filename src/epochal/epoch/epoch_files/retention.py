"""Deletes what no retained decision needs: log entries, and files with state. Off the epoch's path.

What that is, `state_chain` decides. Epochs that are committed while this module works are made up
for by the next round.
"""

from __future__ import annotations

import logging
import threading

from epochal.epoch.durable import EpochResources
from epochal.epoch.epoch_files.state_chain import first_needed_entry
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
                noted, self._waiting = self._waiting, None
                if self._closed or noted is None:
                    return
            self.tidy(*noted)

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
            if not self._swept:  # only now: this attempt has decided an epoch
                state = self._resources.state
                for path in state.discard_before(self._attempt, self._first_epoch):
                    logger.info("discarded %s of an earlier attempt", path)
                self._swept = True
            self._purge(epoch, floor)
        except (EpochalError, OSError) as error:
            logger.warning("old files could not be deleted: %s", error)

    def _purge(self, epoch: int, floor: int) -> None:
        resources = self._resources
        retained, is_stateful = resources.min_batches_to_retain, resources.is_stateful
        # A log with a few entries more does no harm, so this is done only after every tenth of the
        # retention.
        if retained > epoch or epoch % max(1, retained // 10):
            return
        # A crash between these deletions leaves entries without state. They are beyond what a
        # rewind may use, and the next attempt lists and deletes them.
        if is_stateful and floor > self._floor:
            resources.state.delete_before(floor)
            self._floor = floor
        before = first_needed_entry(epoch, floor, retained, is_stateful=is_stateful)
        if before <= self._purged:
            return
        for log in (resources.offsets, resources.commits):
            if self._looked:
                for purged in range(self._purged, before):  # the oldest first, as in `purge`
                    log.remove(purged)
            else:
                log.purge(before)  # lists the log; after that the ids are known
        self._looked, self._purged = True, before
