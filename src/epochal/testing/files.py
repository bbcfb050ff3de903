"""Files in memory, and files that fail or crash at a chosen operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from epochal.clock import Clock, SystemClock
from epochal.files import (
    UNBOUNDED,
    AtomicFile,
    Bounds,
    BufferedAtomicFile,
    FileInfo,
    Files,
    checked_path,
    join_url,
)


class MemoryFiles:
    """A file tree in a dict from path to (bytes, modified_ms). Directories are implicit."""

    def __init__(
        self,
        tree: dict[str, tuple[bytes, int]] | None = None,
        *,
        prefix: str = "",
        clock: Clock | None = None,
    ) -> None:
        self.tree = {} if tree is None else tree
        self._prefix = prefix
        self._clock = clock or SystemClock()

    @property
    def url(self) -> str:
        return join_url("memory:", self._prefix)

    @property
    def bounds(self) -> Bounds:
        return UNBOUNDED

    def at(self, path: str) -> MemoryFiles:
        return MemoryFiles(self.tree, prefix=self._key(path), clock=self._clock)

    def create_atomic(self, path: str, *, overwrite: bool = False) -> BufferedAtomicFile:
        key = self._key(path)

        def publish(data: bytes) -> None:
            written = (data, self._clock.now_ms())
            if overwrite:
                self.tree[key] = written
            # `setdefault` checks and writes in one step, so that of two racing threads one fails.
            elif self.tree.setdefault(key, written) is not written:
                raise FileExistsError(17, "File exists", join_url(self.url, path))
            self.tree.pop(_crc_of(key), None)

        return BufferedAtomicFile(publish)

    def create(self, path: str, data: bytes) -> None:
        with self.create_atomic(path) as out:
            out.write(data)

    def replace(self, path: str, data: bytes) -> None:
        with self.create_atomic(path, overwrite=True) as out:
            out.write(data)

    def read(self, path: str, *, large: bool = False) -> bytes:
        try:
            return self.tree[self._key(path)][0]
        except KeyError:
            raise FileNotFoundError(2, "No such file", join_url(self.url, path)) from None

    def info(self, path: str) -> FileInfo | None:
        key = self._key(path)
        name = key.rpartition("/")[2]
        if key in self.tree:
            data, modified_ms = self.tree[key]
            return FileInfo(name, False, len(data), modified_ms)
        start = self._start(path)
        if any(other.startswith(start) for other in self.tree):
            return FileInfo(name, True, 0, 0)
        return None

    def list(self, path: str = "") -> list[FileInfo]:
        infos: dict[str, FileInfo] = {}
        start = self._start(path)
        self._raise_if_file(path)
        for key, (data, modified_ms) in self.tree.copy().items():
            if key.startswith(start):
                name, slash, _ = key[len(start) :].partition("/")
                infos[name] = (
                    FileInfo(name, True, 0, 0)
                    if slash
                    else FileInfo(name, False, len(data), modified_ms)
                )
        return [infos[name] for name in sorted(infos)]

    def walk(self, path: str = "") -> Iterator[tuple[str, FileInfo]]:
        root, start = self._start(""), self._start(path)
        self._raise_if_file(path)
        for key in sorted(self.tree):
            if key.startswith(start):
                data, modified_ms = self.tree[key]
                yield (
                    key[len(root) :],
                    FileInfo(key.rpartition("/")[2], False, len(data), modified_ms),
                )

    def make_dirs(self, path: str = "") -> None:
        del path

    def delete(self, path: str) -> None:
        key = self._key(path)
        self.tree.pop(_crc_of(key), None)
        self.tree.pop(key, None)

    def delete_tree(self, path: str = "") -> None:
        start = self._start(path)
        for key in [key for key in self.tree if key.startswith(start)]:
            del self.tree[key]
        self.delete(path)

    def _raise_if_file(self, path: str) -> None:
        if self._key(path) in self.tree:
            raise NotADirectoryError(20, "Not a directory", join_url(self.url, path))

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, checked_path(self.url, path)) if part)

    def _start(self, path: str) -> str:
        key = self._key(path)
        return f"{key}/" if key else ""


class Crash(BaseException):
    """Simulates the death of the process. It derives from BaseException, so that no `except
    Exception` handles it."""


class FaultyFiles:
    """Passes all operations to `inner`, but calls `before(operation, path)` first, which may raise.

    The operations are `create`, `replace`, `delete`, `delete_tree` and `make_dirs`, which change
    files, and `read`, `info` and `list`, which do not. For `create_atomic`, `before` is called when
    the file is closed.
    """

    def __init__(self, inner: Files, before: Callable[[str, str], None], *, base: str = "") -> None:
        self._inner, self._before, self._base = inner, before, base

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def bounds(self) -> Bounds:
        return self._inner.bounds

    def at(self, path: str) -> FaultyFiles:
        return FaultyFiles(self._inner.at(path), self._before, base=self._full(path))

    def create_atomic(self, path: str, *, overwrite: bool = False) -> AtomicFile:
        def publish(data: bytes) -> None:
            (self.replace if overwrite else self.create)(path, data)

        return BufferedAtomicFile(publish)

    def create(self, path: str, data: bytes) -> None:
        self._before("create", self._full(path))
        self._inner.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._before("replace", self._full(path))
        self._inner.replace(path, data)

    def read(self, path: str, *, large: bool = False) -> bytes:
        self._before("read", self._full(path))
        return self._inner.read(path, large=large)

    def info(self, path: str) -> FileInfo | None:
        self._before("info", self._full(path))
        return self._inner.info(path)

    def list(self, path: str = "") -> list[FileInfo]:
        self._before("list", self._full(path))
        return self._inner.list(path)

    def walk(self, path: str = "") -> Iterator[tuple[str, FileInfo]]:
        self._before("list", self._full(path))
        return self._inner.walk(path)

    def make_dirs(self, path: str = "") -> None:
        self._before("make_dirs", self._full(path))
        self._inner.make_dirs(path)

    def delete(self, path: str) -> None:
        self._before("delete", self._full(path))
        self._inner.delete(path)

    def delete_tree(self, path: str = "") -> None:
        self._before("delete_tree", self._full(path))
        self._inner.delete_tree(path)

    def _full(self, path: str) -> str:
        return "/".join(part for part in (self._base, path) if part)


def crash_after(operations: int) -> Callable[[str, str], None]:
    """A `before` for FaultyFiles: permits this many changes and raises Crash at the next one."""
    left = operations

    def before(operation: str, path: str) -> None:
        nonlocal left
        del path
        if operation in ("create", "replace", "delete", "delete_tree"):
            if left == 0:
                raise Crash
            left -= 1

    return before


def _crc_of(key: str) -> str:
    folder, slash, name = key.rpartition("/")
    return f"{folder}{slash}.{name}.crc"
