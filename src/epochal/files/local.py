"""Files on local disks.

A file is created by a hard link from a temporary file, because the kernel rejects a link whose name
is taken. Hadoop checks and then renames, so two processes can both succeed. With `durable` (the
default) the file and its directory are synced before `close` returns, so a power failure after
that loses nothing.

With `existing`, that directory is never created. A query opens its checkpoint like this: if it is
deleted or moved while the query runs, the next write fails instead of creating a part of it.

The root may be a symbolic link, but below it links are not followed: a link in a checkpoint that
somebody else wrote could lead anywhere. Links, pipes, sockets and devices are listed as files, can
be deleted, and cannot be read. Data that the user's own code names is opened with `links`.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from stat import S_ISDIR, S_ISREG

from epochal.errors import StorageError
from epochal.files import UNBOUNDED, AtomicFile, Bounds, FileInfo, checked_path, walked


class LocalFiles:
    """Files below a local directory."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        durable: bool = True,
        existing: str | os.PathLike[str] | None = None,
        links: bool = False,
        bounds: Bounds = UNBOUNDED,
    ) -> None:
        self.url = os.path.abspath(os.fspath(root))
        self._above = ""
        """The part of the root that `at` added, in which links are not followed either."""
        self._durable, self._links, self.bounds = durable, links, bounds
        self._existing = None if existing is None else os.path.abspath(os.fspath(existing))

    def __repr__(self) -> str:
        return f"LocalFiles({self.url!r})"

    def at(self, path: str) -> LocalFiles:
        below = copy(self)
        below.url = self._full(path)
        below._above = f"{self._above}/{path}".strip("/")
        return below

    def create_atomic(self, path: str, *, overwrite: bool = False) -> LocalAtomicFile:
        full = self._path(path)
        return LocalAtomicFile(full, self._make_parents, overwrite=overwrite, durable=self._durable)

    def create(self, path: str, data: bytes) -> None:
        with self.create_atomic(path) as out:
            out.write(data)

    def replace(self, path: str, data: bytes) -> None:
        with self.create_atomic(path, overwrite=True) as out:
            out.write(data)

    def read(self, path: str, *, large: bool = False) -> bytes:
        full = self._path(path)
        try:
            with open(full, "rb", buffering=0, opener=self._open) as source:
                self.bounds.check(full, os.fstat(source.fileno()).st_size, large=large)
                return source.readall()
        except NotADirectoryError:  # a parent of the path is a file
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), full) from None

    def info(self, path: str) -> FileInfo | None:
        full = self._path(path)
        try:
            status = os.stat(full, follow_symlinks=self._links or not (path or self._above))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _info(os.path.basename(full), status)

    def list(self, path: str = "") -> list[FileInfo]:
        names: list[FileInfo] = []
        try:
            with os.scandir(self._directory(path)) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # deleted since the directory was read
                        status = entry.stat(follow_symlinks=self._links)
                        names.append(_info(entry.name, status))
        except FileNotFoundError:
            return []
        return sorted(names, key=lambda info: info.name)

    def walk(self, path: str = "") -> Iterator[tuple[str, FileInfo]]:
        return walked(self, path)

    def make_dirs(self, path: str = "") -> None:
        self._make_parents(self._directory(path))

    def delete(self, path: str) -> None:
        full = self._path(path)
        # The crc is deleted first: after a crash in between, a file without its crc is harmless,
        # but a crc without its file makes Spark's next start fail.
        for name in (_crc_of(full), full):
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(name)

    def delete_tree(self, path: str = "") -> None:
        full = self._path(path)
        if not os.path.isdir(full) or os.path.islink(full):
            self.delete(path)
            return
        # The crcs are deleted first, as in `delete`.
        for below, info in self.walk(path):
            if info.name.startswith(".") and info.name.endswith(".crc"):
                with suppress(FileNotFoundError):
                    os.unlink(self._path(below))
        while os.path.lexists(full):  # retry if a concurrent delete made rmtree fail
            with suppress(FileNotFoundError):
                shutil.rmtree(full)

    def _make_parents(self, folder: str) -> None:
        _make_dirs(folder, durable=self._durable, existing=self._existing)

    def _directory(self, path: str) -> str:
        """The full path of a directory, which must not be a link."""
        full = self._path(path)
        if path or self._above:
            self._refuse_link(full)
        return full

    def _path(self, path: str) -> str:
        """The full path of a file or directory; no directory above it may be a link."""
        full = folder = self._full(path)
        if not self._links:
            for _ in range(f"{self._above}/{path}".strip("/").count("/")):
                folder = os.path.dirname(folder)
                self._refuse_link(folder)
        return full

    def _full(self, path: str) -> str:
        below = checked_path(self.url, path)
        return os.path.join(self.url, below) if below else self.url

    def _refuse_link(self, folder: str) -> None:
        if not self._links and os.path.islink(folder):
            raise special_file_error(folder)

    def _open(self, path: str, flags: int) -> int:
        """Open a regular file. Opening a pipe without O_NONBLOCK would wait for a writer."""
        _require_regular(path, os.stat(path, follow_symlinks=self._links).st_mode)
        descriptor = os.open(path, flags | os.O_NONBLOCK | (0 if self._links else os.O_NOFOLLOW))
        try:  # the file may have been replaced since its status was read
            _require_regular(path, os.fstat(descriptor).st_mode)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


class LocalAtomicFile(AtomicFile):
    """Writes `.NAME.UUID.tmp` (Spark's naming) beside the target, then links or renames it."""

    def __init__(
        self, target: str, make_dirs: Callable[[str], None], *, overwrite: bool, durable: bool
    ) -> None:
        self._target, self._overwrite, self._durable = target, overwrite, durable
        folder, name = os.path.split(target)
        self._temp = os.path.join(folder, f".{name}.{uuid.uuid4()}.tmp")
        try:
            raw = io.FileIO(self._temp, "x")
        except FileNotFoundError:
            make_dirs(folder)
            raw = io.FileIO(self._temp, "x")
        self._out = io.BufferedWriter(raw)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        return self._out.write(data)

    def close(self) -> None:
        if self._out.closed:
            return
        try:
            self._out.flush()
            # Content first, then the name, then the directory: after a power failure a name that is
            # there has its whole content, and one that `close` returned for is there.
            if self._durable:
                os.fsync(self._out.fileno())
            self._out.close()
            self._publish()
        except OSError as error:
            self.cancel()
            if error.filename is None:  # for example, a full disk: add the file's name
                error.filename = self._target
            raise
        except BaseException:
            self.cancel()
            raise
        if self._durable:
            _sync_directory(os.path.dirname(self._target))

    def cancel(self) -> None:
        with suppress(OSError):
            self._out.close()
        with suppress(FileNotFoundError):
            os.unlink(self._temp)

    def _publish(self) -> None:
        # In both cases the old crc is deleted before the new content appears. Otherwise Hadoop
        # would check the new content against it and report corruption.
        if self._overwrite:
            with suppress(FileNotFoundError):
                os.unlink(_crc_of(self._target))
            os.rename(self._temp, self._target)
            return
        # This look only protects the crc of a file that exists. Which of two writers creates the
        # file is decided by the link below: one of two links fails, however close they are.
        if os.path.lexists(self._target):
            raise _exists(self._target)
        with suppress(FileNotFoundError):  # an orphan: the target does not exist
            os.unlink(_crc_of(self._target))
        try:
            os.link(self._temp, self._target)
        except FileExistsError:
            raise _exists(self._target) from None
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise StorageError(
                    self._target,
                    f"cannot be created by a hard link ({error.strerror}). Without hard links two "
                    f"writers could both create the file. Use a file system that supports them.",
                ) from error
            raise
        with suppress(OSError):  # the file is published; a leftover temp file is harmless
            os.unlink(self._temp)


def special_file_error(path: str) -> StorageError:
    """The error for a path that is neither a regular file nor a directory."""
    if os.path.islink(path):
        return StorageError(
            path,
            "is a symbolic link. Links below a checkpoint or an output directory are not followed, "
            "because they may lead out of it. Replace the link by what it points to.",
        )
    return StorageError(
        path, "is a pipe, a socket or a device, and not a file. No query writes such a thing."
    )


def _require_regular(path: str, mode: int) -> None:
    if S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not S_ISREG(mode):
        raise special_file_error(path)


def _crc_of(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.crc")


def _info(name: str, status: os.stat_result) -> FileInfo:
    is_dir = S_ISDIR(status.st_mode)
    return FileInfo(name, is_dir, 0 if is_dir else status.st_size, status.st_mtime_ns // 1_000_000)


def _exists(path: str) -> FileExistsError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def _make_dirs(path: str, *, durable: bool, existing: str | None) -> None:
    missing = []
    above = path
    while not os.path.isdir(above) and above not in (existing, os.path.dirname(above)):
        missing.append(above)
        above = os.path.dirname(above)
    if above == existing and not os.path.isdir(above):
        raise StorageError(
            above,
            "this directory does not exist. It was deleted or moved after the query had started, "
            "or not all hosts share it. It is not created again, because that would leave a part "
            "of a checkpoint",
        )
    for folder in reversed(missing):
        # One by one: a directory above that was deleted meanwhile is not created again either.
        with suppress(FileExistsError):
            os.mkdir(folder)
    if not os.path.isdir(path):
        raise _exists(path)
    if durable:
        for folder in reversed(missing):
            _sync_directory(os.path.dirname(folder))


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
