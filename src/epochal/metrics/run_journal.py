"""A run's records in a small file of their own, for whoever looks on from another process.

One file per run below a directory that only its user may enter. The file is bounded: when it is
full, a new one with the newest records takes its name. The writer holds a lock on it for as long
as it lives, so that a reader knows a run that was killed from one that is silent, without asking
for process ids.

What a reader would get wrong: nothing here is durable or needs to be. A query's history is its
checkpoint; this is what a checkpoint does not hold, and it may be deleted at any time.
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
"""A longer record is left out: offsets of very many partitions, say."""


def runs_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where runs of this user tell of themselves on this host."""
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime, "epochal")
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache, "epochal", "runs")


class JournalWriter:
    """Writes one run's file. Not for several threads at once."""

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
        _forget_old(directory, kept_runs)
        self._path = directory / f"{first.run_id}{SUFFIX}"
        self._first = encode(first)
        self._max_bytes, self._kept_bytes = max_bytes, kept_bytes
        self._recent: deque[bytes] = deque()
        self._recent_bytes = 0
        self._size = 0
        self._file = self._begin()

    def write(self, records: list[Record]) -> None:
        """Append records; the oldest make room for them."""
        lines = [line for line in map(encode, records) if len(line) <= MAX_LINE_BYTES]
        for line in lines:
            self._recent.append(line)
            self._recent_bytes += len(line)
        while self._recent_bytes > self._kept_bytes and len(self._recent) > 1:
            self._recent_bytes -= len(self._recent.popleft())
        data = b"".join(lines)
        if self._size + len(data) > self._max_bytes:
            before, self._file = self._file, self._begin()
            os.close(before)
        else:
            self._append(self._file, data)

    def close(self) -> None:
        """Let go of the file, which stays until it is among the oldest."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin(self) -> int:
        """A file with what is worth keeping, locked before anybody can see it under its name."""
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
    """Reads one run's file as it grows."""

    path: Path
    _inode: int = -1
    _offset: int = 0
    _rest: bytes = field(default=b"")
    alive: bool = True
    """Whether the writer still held its lock at the last `read`."""

    def read(self) -> tuple[list[Record], bool]:
        """What was written since the last time, and whether it begins anew.

        It begins anew when the file was replaced: then all of it is returned, and what was read
        before counts no more. Raises FileNotFoundError when the file is gone.
        """
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # Before reading: what a writer wrote in its last moments must not be missed.
            self.alive = _is_locked(file)
            found = os.fstat(file)
            anew = found.st_ino != self._inode
            if anew:
                self._inode, self._offset, self._rest = found.st_ino, 0, b""
            if found.st_size <= self._offset:
                return [], anew
            data = os.pread(file, found.st_size - self._offset, self._offset)
        finally:
            os.close(file)
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        decoded = (decode(line) for line in lines if line)
        return [record for record in decoded if record is not None], anew


def run_files(directory: Path) -> list[Path]:
    """The files of all runs that are known here; none if there is no such directory."""
    try:
        with os.scandir(directory) as entries:
            names = [each.name for each in entries if not each.name.startswith(".")]
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
    found = os.stat(directory)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise OptionError(
            f"{directory} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o};"
            f" what queries tell of themselves is kept where nobody else may look. Make it yours "
            f"with mode 700, or give another telemetryLocation."
        )


def _forget_old(directory: Path, kept: int) -> None:
    """Remove the oldest files of runs that have ended, but for the newest so many."""

    def modified(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            return 0.0

    for path in sorted(run_files(directory), key=modified, reverse=True)[max(0, kept - 1) :]:
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if not _is_locked(file):
                    os.unlink(path)
            finally:
                os.close(file)
