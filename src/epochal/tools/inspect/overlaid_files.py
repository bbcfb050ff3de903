"""Shows files as they would be after a change that was not made. Read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

from epochal.errors import EditError
from epochal.files import AtomicFile, Bounds, FileInfo, Files, join_url


class OverlaidFiles:
    """Files with some more in memory, and without those whose path `is_hidden`."""

    def __init__(
        self,
        files: Files,
        contents: Mapping[str, bytes],
        is_hidden: Callable[[str], bool],
        prefix: str = "",
    ) -> None:
        self._files, self._contents = files, contents
        self._is_hidden, self._prefix = is_hidden, prefix

    @property
    def url(self) -> str:
        return self._files.url

    @property
    def bounds(self) -> Bounds:
        return self._files.bounds

    def at(self, path: str) -> Files:
        if not path:
            return self
        return OverlaidFiles(self._files.at(path), self._contents, self._is_hidden, self._key(path))

    def read(self, path: str, *, large: bool = False) -> bytes:
        key = self._key(path)
        if key in self._contents:
            return self._contents[key]
        if self._is_hidden(key):
            raise FileNotFoundError(2, "No such file", join_url(self.url, path))
        return self._files.read(path, large=large)

    def info(self, path: str) -> FileInfo | None:
        key = self._key(path)
        if key in self._contents:
            return FileInfo(path.rpartition("/")[2], False, len(self._contents[key]), 0)
        if any(each.startswith(f"{key}/") for each in self._contents):
            return FileInfo(path.rpartition("/")[2], True, 0, 0)
        return None if self._is_hidden(key) else self._files.info(path)

    def list(self, path: str = "") -> list[FileInfo]:
        key = self._key(path)
        start = f"{key}/" if key else ""
        listed = self._files.list(path)
        found = {info.name: info for info in listed if not self._is_hidden(start + info.name)}
        for each, data in self._below(key):
            name, slash, _ = each.partition("/")
            found[name] = FileInfo(name, bool(slash), 0 if slash else len(data), 0)
        return [found[name] for name in sorted(found)]

    def walk(self, path: str = "") -> Iterator[tuple[str, FileInfo]]:
        found = {
            each: info
            for each, info in self._files.walk(path)
            if not self._is_hidden(self._key(each))
        }
        start = f"{path}/" if path else ""
        for each, data in self._below(self._key(path)):
            found[start + each] = FileInfo(each.rpartition("/")[2], False, len(data), 0)
        yield from sorted(found.items())

    def create_atomic(self, path: str, *, overwrite: bool = False) -> AtomicFile:
        self._refuse()

    def create(self, path: str, data: bytes) -> None:
        self._refuse()

    def replace(self, path: str, data: bytes) -> None:
        self._refuse()

    def make_dirs(self, path: str = "") -> None:
        self._refuse()

    def delete(self, path: str) -> None:
        self._refuse()

    def delete_tree(self, path: str = "") -> None:
        self._refuse()

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    def _below(self, key: str) -> Iterator[tuple[str, bytes]]:
        start = f"{key}/" if key else ""
        for each, data in self._contents.items():
            if each.startswith(start):
                yield each[len(start) :], data

    def _refuse(self) -> NoReturn:
        raise EditError(self.url, "cannot be changed through a view that is read-only")
