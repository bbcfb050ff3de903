"""Writes, reads, publishes and deletes the files with the state of epochs; decides nothing.

What may be deleted when, `state_chain` decides. An epoch that an earlier release decided has a
state file per store, prepared under a name with the attempt. Those get Spark's names here when such
an epoch is finished after an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from epochal.checkpoint.layout import EPOCHS, STATE, state_store_path
from epochal.checkpoint.metadata_log import storage_errors
from epochal.epoch.epoch_files.epoch_file import (
    EpochFile,
    checksum_of,
    decode_epoch,
    file_name,
    parse_file_name,
)
from epochal.epoch.epoch_files.state_chain import EpochRun, StateChain, is_below, is_stray
from epochal.epoch.messages import PreparedState
from epochal.errors import EpochError, StateLoadError
from epochal.files import Files, join_url
from epochal.state.files.chain import MISSING_DELTA, prepared_before
from epochal.state.store.store_files import PreparedVersion, publish_prepared

_T = TypeVar("_T")
_R = TypeVar("_R")

WORKERS = 8
"""Files read, published or deleted in parallel: all of it mostly waits for storage."""


def write_epoch(files: Files, name: str, data: bytes) -> int:
    """Write a file that must not exist yet; return its checksum."""
    with storage_errors(join_url(files.url, name)):
        try:
            files.create(name, data)
        except FileExistsError:
            raise EpochError(
                f"{join_url(files.url, name)} exists already: another process runs the same task "
                f"of the same attempt. This process ends, so that only one of them counts."
            ) from None
    return checksum_of(data)


def read_chain(
    files: Files,
    chain: StateChain,
    *,
    task: int | None = None,
    tasks: int = 0,
    readers: int = WORKERS,
) -> list[EpochFile]:
    """Read and verify the files of a chain, in the order of epochs.

    With `task`, only the files of this one of `tasks` tasks, where an attempt had as many tasks.
    """
    wanted = [
        (run, epoch, writer)
        for run in chain.runs
        for epoch in range(run.first, run.last + 1)
        for writer in (range(run.tasks) if task is None or run.tasks != tasks else (task,))
    ]
    if not chain.is_gapless:
        raise StateLoadError(
            files.url,
            f"the decision names the epochs {list(chain.epochs)} on top of version "
            f"{chain.published}, which has a gap",
            MISSING_DELTA,
        )

    def read(file: tuple[EpochRun, int, int]) -> EpochFile:
        run, epoch, writer = file
        return read_epoch(files, file_name(epoch, writer, run.attempt))

    read_files = in_parallel(read, wanted, readers)
    # Backwards: the decision vouches for the last file of a run, and each file for the one before.
    # So a file that is not the one which the decision counted on is detected, whoever wrote it.
    expected: dict[tuple[int, int], int] = {}
    for (run, epoch, writer), file in zip(reversed(wanted), reversed(read_files), strict=True):
        named = run.checksums[writer] if epoch == run.last else expected[run.attempt, writer]
        if file.checksum != named:
            name = join_url(files.url, file_name(epoch, writer, run.attempt))
            raise StateLoadError(
                name,
                f"its checksum is {file.checksum}, but the decision or the file after it names "
                f"{named}",
                "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",
            )
        expected[run.attempt, writer] = file.header.before
    return read_files


def read_epoch(files: Files, name: str) -> EpochFile:
    url = join_url(files.url, name)
    with storage_errors(url):
        try:
            return decode_epoch(files.read(name, large=True), url)
        except FileNotFoundError:
            raise StateLoadError(url, "the epoch file does not exist", MISSING_DELTA) from None


def in_parallel(do: Callable[[_T], _R], items: Iterable[_T], workers: int = WORKERS) -> list[_R]:
    """Do something to each item on some threads; return the results in order."""
    listed = list(items)
    if min(len(listed), workers) <= 1:
        return [do(item) for item in listed]
    with ThreadPoolExecutor(workers, "epochal-epoch-files") as pool:
        return list(pool.map(do, listed))


class StateFiles:
    """The state files of a checkpoint, as far as the driver deals with them."""

    def __init__(self, files: Files, *, publishers: int = WORKERS) -> None:
        self._files, self._workers = files, publishers

    def publish(self, states: Sequence[PreparedState]) -> None:
        """Give these versions Spark's plain names. May be repeated, also after a crash."""
        in_parallel(self._publish, states, self._workers)

    def discard_before(self, attempt: int, first_epoch: int = 0) -> list[str]:
        """Delete what attempts before this one prepared and no decision names; return its paths."""
        strays = self._delete_epochs(lambda file: is_stray(file, attempt, first_epoch))
        # And what attempts of an earlier release prepared.
        with storage_errors(join_url(self._files.url, STATE)):
            paths = [path for path, _ in self._files.walk(STATE)]
            prepared = [path for path in paths if prepared_before(path.rpartition("/")[2], attempt)]
            for path in prepared:
                self._files.delete(path)
        return [f"{EPOCHS}/{name}" for name in strays] + prepared

    def delete_before(self, floor: int) -> list[str]:
        """Delete the epoch files of epochs before this one; return their names."""
        return self._delete_epochs(lambda name: is_below(name, floor))

    def _publish(self, state: PreparedState) -> None:
        path = state_store_path(state.operator, state.partition, state.store)
        version = PreparedVersion(state.version, state.name, state.checksum)
        url = join_url(self._files.url, path)
        with storage_errors(url):
            publish_prepared(self._files.at(path), version, url)

    def _delete_epochs(self, is_garbage: Callable[[tuple[int, int, int]], bool]) -> list[str]:
        epochs = self._files.at(EPOCHS)
        with storage_errors(epochs.url):
            names = [info.name for info in epochs.list() if not info.is_dir]
            parsed = ((name, parse_file_name(name)) for name in names)
            gone = [name for name, file in parsed if file is not None and is_garbage(file)]
            in_parallel(epochs.delete, gone, self._workers)
        return gone
