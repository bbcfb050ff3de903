"""The journal of a run: a small file of records that other processes, such as the dashboard, read.

There is one file per run, in a directory that only its user can access. The size is limited: when
the file is full, a new file with the newest records replaces it. The writer holds a lock on the
file for as long as it lives, so a reader can tell a run that was killed from one that is idle
without looking up process ids.

Note: The journal is not durable and need not be. It holds only what the checkpoint does not, and
may be deleted at any time.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from epochal.errors import OptionError
from epochal.metrics.run_records import Record, RunStarted, decode, encode

SUFFIX = ".jsonl"
MAX_FILE_BYTES = 2 << 20
KEPT_BYTES = 1 << 20
KEPT_RUNS = 50
MAX_LINE_BYTES = 256 << 10
"""Longer records, such as the offsets of very many partitions, are not written."""


def runs_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """The directory of the journals of this user on this host."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime, "epochal")
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache, "epochal", "runs")


class JournalWriter:
    """Writes the journal of one run. Not thread-safe."""

    def __init__(
        self,
        directory: Path,
        first: RunStarted,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        kept_bytes: int = KEPT_BYTES,
        kept_runs: int = KEPT_RUNS,
    ) -> None:
        _require_private(directory)
        _delete_old(directory, kept_runs)
        self._path = directory / f"{first.run_id}{SUFFIX}"
        self._first = encode(first)
        self._max_bytes, self._kept_bytes = max_bytes, kept_bytes
        self._recent: deque[bytes] = deque()
        self._recent_bytes = 0
        self._size = 0
        self._file = self._begin()

    def write(self, records: list[Record]) -> None:
        """Append records; if the file is full, the oldest records are dropped."""
        lines = [line for line in map(encode, records) if len(line) <= MAX_LINE_BYTES]
        for line in lines:
            self._recent.append(line)
            self._recent_bytes += len(line)
        while self._recent_bytes > self._kept_bytes and len(self._recent) > 1:
            self._recent_bytes -= len(self._recent.popleft())
        data = b"".join(lines)
        if self._size + len(data) > self._max_bytes:
            # The new file is locked before the old one is closed, which releases its lock.
            before, self._file = self._file, self._begin()
            os.close(before)
        else:
            self._append(self._file, data)

    def close(self) -> None:
        """Close the file. A later run deletes it once it is among the oldest."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin(self) -> int:
        """Write a new file with the recent records and put it in place.

        It is locked before it gets its name, so that no reader takes the run for dead.
        """
        file, name = tempfile.mkstemp(prefix=".", suffix=".new", dir=self._path.parent)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._size = 0
            self._append(file, self._first + b"".join(self._recent))
            os.rename(name, self._path)
        except OSError:
            os.close(file)
            with suppress(OSError):
                os.unlink(name)
            raise
        return file

    def _append(self, file: int, data: bytes) -> None:
        while data:
            written = os.write(file, data)
            self._size += written
            data = data[written:]


@dataclass(slots=True)
class JournalTail:
    """Reads the journal of one run as it grows."""

    path: Path
    _inode: int = -1
    _offset: int = 0
    _rest: bytes = field(default=b"")
    alive: bool = True
    """Whether the writer still held its lock at the last `read`."""

    def read(self) -> tuple[list[Record], bool]:
        """Return the records since the last call, and whether the file was replaced.

        If it was replaced, the result has all records of the new file; discard earlier ones.
        Raises FileNotFoundError if the file has been deleted.
        """
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # Check the lock before reading. Otherwise a writer could write its last records and
            # end in between, and the caller would stop reading without them.
            self.alive = _is_locked(file)
            status = os.fstat(file)
            replaced = status.st_ino != self._inode
            if replaced:
                self._inode, self._offset, self._rest = status.st_ino, 0, b""
            if status.st_size <= self._offset:
                return [], replaced
            data = os.pread(file, status.st_size - self._offset, self._offset)
        finally:
            os.close(file)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        decoded = (decode(line) for line in lines if line)
        return [record for record in decoded if record is not None], replaced


def run_files(directory: Path) -> list[Path]:
    """The journals of all runs in a directory; empty if it does not exist."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        return []
    return [directory / name for name in sorted(names) if name.endswith(SUFFIX)]


def _is_locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _require_private(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.stat(directory)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise OptionError(
            f"{directory} belongs to user {status.st_uid} and has mode "
            f"{stat.S_IMODE(status.st_mode):o}. Journals contain details of queries, so other "
            f"users must not be able to read them. Make the directory yours with mode 700, or use "
            f"another telemetryLocation."
        )


def _delete_old(directory: Path, most: int) -> None:
    """Delete the oldest journals of ended runs, so that `kept` remain with the new one."""

    def modified(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            return 0.0

    for path in sorted(run_files(directory), key=modified, reverse=True)[max(0, most - 1) :]:
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if not _is_locked(file):
                    os.unlink(path)
            finally:
                os.close(file)
