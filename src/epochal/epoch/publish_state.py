"""The driver's part of the state's files: deletes epoch files that no decision needs.

An epoch that an earlier release decided has a state file per store, prepared under a name with the
attempt. Those get Spark's names here when such an epoch is finished after an update.

Note: files of an earlier attempt may be discarded only after this attempt has decided an epoch.
Until then, a driver that was fenced a moment ago can still win the race for that epoch's offset
entry, and the epoch would need its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from epochal.checkpoint.layout import EPOCHS, STATE, state_store_path
from epochal.checkpoint.metadata_log import storage_errors
from epochal.epoch.epoch_files.chain_files import delete_before, sweep
from epochal.epoch.messages import PreparedState
from epochal.files import Files, join_url
from epochal.state.files.chain import prepared_before
from epochal.state.store.store_files import PreparedVersion, publish_prepared

PUBLISHERS = 8
"""Number of threads. Publishing mostly waits for storage."""


class StateFiles:
    """The state files of a checkpoint."""

    def __init__(self, files: Files, *, publishers: int = PUBLISHERS) -> None:
        self._files = files
        self._publishers = publishers
        self._pool: ThreadPoolExecutor | None = None

    def publish(self, states: Sequence[PreparedState]) -> None:
        """Give these versions Spark's plain names. May be repeated, also after a crash."""
        if len(states) <= 1 or self._publishers <= 1:
            for state in states:
                self._publish(state)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._publishers, "epochal-publish")
        for _ in self._pool.map(self._publish, states):
            pass

    def discard_before(self, attempt: int, first_epoch: int = 0) -> list[str]:
        """Delete what attempts before this one prepared and no decision names; return its paths."""
        gone = sweep(self._files.at(EPOCHS), attempt, first_epoch, self._publishers)
        return [f"{EPOCHS}/{name}" for name in gone] + self._discard_prepared(attempt)

    def delete_before(self, version: int) -> None:
        """Delete the epoch files of epochs before this one."""
        delete_before(self._files.at(EPOCHS), version, self._publishers)

    def _discard_prepared(self, attempt: int) -> list[str]:
        """Delete the files that attempts of an earlier release prepared."""
        with storage_errors(join_url(self._files.url, STATE)):
            found = [path for path, _ in self._files.walk(STATE)]
            gone = [path for path in found if prepared_before(path.rpartition("/")[2], attempt)]
            for path in gone:
                self._files.delete(path)
        return gone

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _publish(self, state: PreparedState) -> None:
        path = state_store_path(state.operator, state.partition, state.store)
        version = PreparedVersion(state.version, state.name, state.checksum)
        url = join_url(self._files.url, path)
        with storage_errors(url):
            publish_prepared(self._files.at(path), version, url)
