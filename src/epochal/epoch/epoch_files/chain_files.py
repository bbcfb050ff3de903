"""Writes, reads and deletes epoch files.

Note: files of an earlier attempt may be deleted only after this attempt has decided an epoch. Until
then, a driver that was fenced a moment ago can still win the race for that epoch's offset entry,
and the epoch would need its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from epochal.checkpoint.metadata_log import storage_errors
from epochal.epoch.epoch_files.epoch_file import (
    EpochFile,
    checksum_of,
    decode_epoch,
    file_name,
    parse_file_name,
)
from epochal.epoch.epoch_files.state_chain import EpochRun, StateChain, is_stray
from epochal.errors import EpochError, StateLoadError
from epochal.files import Files, join_url
from epochal.state.files.chain import MISSING_DELTA

_T = TypeVar("_T")
_R = TypeVar("_R")

READERS = 8
"""Files read or deleted in parallel: both mostly wait for storage."""


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
    readers: int = READERS,
) -> list[EpochFile]:
    """Read and verify the files of a chain, in the order of epochs.

    With `task`, only the files of this one of `tasks` tasks, where an attempt had as many tasks.
    """
    wanted = [
        (run, epoch, each)
        for run in chain.runs
        for epoch in range(run.first, run.last + 1)
        for each in _tasks_of(run, task, tasks)
    ]
    if not chain.is_gapless:
        raise StateLoadError(
            files.url,
            f"the decision names the epochs {list(chain.epochs)} on top of version "
            f"{chain.published}, which has a gap",
            MISSING_DELTA,
        )

    def read(each: tuple[EpochRun, int, int]) -> EpochFile:
        run, epoch, writer = each
        return read_epoch(files, file_name(epoch, writer, run.attempt))

    found = in_parallel(read, wanted, readers)
    expected: dict[tuple[int, int], int] = {}
    for (run, epoch, writer), file in zip(reversed(wanted), reversed(found), strict=True):
        known = run.checksums[writer] if epoch == run.last else expected[run.attempt, writer]
        if file.checksum != known:
            name = join_url(files.url, file_name(epoch, writer, run.attempt))
            raise StateLoadError(
                name,
                f"its checksum is {file.checksum}, but the decision or the file after it names "
                f"{known}",
                "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",
            )
        expected[run.attempt, writer] = file.header.before
    return found


def read_epoch(files: Files, name: str) -> EpochFile:
    """Read one file."""
    url = join_url(files.url, name)
    with storage_errors(url):
        try:
            return decode_epoch(files.read(name, large=True), url)
        except FileNotFoundError:
            raise StateLoadError(url, "the epoch file does not exist", MISSING_DELTA) from None


def sweep(files: Files, attempt: int, first_epoch: int, workers: int = READERS) -> list[str]:
    """Delete what earlier attempts wrote for epochs that this attempt decides; return the names."""
    return _delete(files, lambda found: is_stray(found, attempt, first_epoch), workers)


def delete_before(files: Files, version: int, workers: int = READERS) -> list[str]:
    """Delete the files of epochs that no retained decision needs; return their names."""
    return _delete(files, lambda found: found[0] < version, workers)


def _tasks_of(run: EpochRun, task: int | None, tasks: int) -> Sequence[int]:
    return range(run.tasks) if task is None or run.tasks != tasks else (task,)


def in_parallel(do: Callable[[_T], _R], items: Iterable[_T], workers: int = READERS) -> list[_R]:
    """Do something to each item on some threads; return the results in order."""
    listed = list(items)
    if min(len(listed), workers) <= 1:
        return [do(item) for item in listed]
    with ThreadPoolExecutor(workers, "epochal-epoch-files") as pool:
        return list(pool.map(do, listed))


def _delete(
    files: Files, is_garbage: Callable[[tuple[int, int, int]], bool], workers: int
) -> list[str]:
    with storage_errors(files.url):
        names = [info.name for info in files.list() if not info.is_dir]
        found = ((name, parse_file_name(name)) for name in names)
        gone = [name for name, parsed in found if parsed is not None and is_garbage(parsed)]
        in_parallel(files.delete, gone, workers)
    return gone
