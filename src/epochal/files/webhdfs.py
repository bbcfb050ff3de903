"""Files in HDFS, through WebHDFS: plain HTTP, which needs no native library.

A file is written under a temporary name and then renamed. The NameNode performs the rename
atomically, so of several writers of one name exactly one succeeds. If the answer to a rename is
lost, the temporary name shows what happened: if it is gone, the rename succeeded, because no other
process renames it.

`webhdfs://HOST:PORT/PATH` and `swebhdfs://…` (TLS) contain the NameNode's web port. `hdfs://`
contains its RPC port, which does not speak HTTP; the web address is then taken from the environment
variable EPOCHAL_WEBHDFS, or is the same host with port 9870. For a nameservice with several
NameNodes, list all of them, separated by commas, in the URL or in EPOCHAL_WEBHDFS; those that are
standby or do not answer are skipped. The user is HADOOP_USER_NAME or the user of this process. On a
secure cluster, HADOOP_TOKEN is the delegation token.
"""

from __future__ import annotations

import errno
import getpass
import os
import posixpath
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from epochal.errors import LostAnswerError, OptionError, StorageError
from epochal.files.contract import (
    UNBOUNDED,
    Bounds,
    BufferedAtomicFile,
    FileInfo,
    check_depth,
    checked_path,
    join_url,
)
from epochal.files.namenode import NameNodes

DEFAULT_PORTS = {"http": 9870, "https": 9871}


def open_webhdfs(location: str, bounds: Bounds = UNBOUNDED) -> WebHdfsFiles:
    """Open the HDFS of `location`, rooted at its path."""
    scheme, _, rest = location.partition("://")
    authority, _, path = rest.partition("/")
    listed = authority
    if scheme.lower() == "hdfs":
        configured = os.environ.get("EPOCHAL_WEBHDFS")
        listed = configured or ",".join(name.partition(":")[0] for name in authority.split(","))
    protocol = "https" if scheme.lower() == "swebhdfs" else "http"
    addresses = tuple(_address(location, name, protocol) for name in listed.split(","))
    namenodes = NameNodes(protocol, addresses, _identity())
    return WebHdfsFiles(namenodes, location.rstrip("/"), "/" + path.strip("/"), bounds)


def _address(location: str, name: str, protocol: str) -> tuple[str, int]:
    host, _, port = name.strip().partition(":")
    if not host or not (port.isdigit() or port == ""):
        raise OptionError(
            f"{location}: {name!r} is not the HOST:PORT of a NameNode's web server. For hdfs:// "
            f"URLs, set EPOCHAL_WEBHDFS to it; separate several by commas."
        )
    return host, int(port) if port else DEFAULT_PORTS[protocol]


def _identity() -> dict[str, str]:
    token = os.environ.get("HADOOP_TOKEN")
    if token:
        return {"delegation": token}
    return {"user.name": os.environ.get("HADOOP_USER_NAME") or getpass.getuser()}


class WebHdfsFiles:
    """Files below a directory of HDFS."""

    def __init__(
        self, namenodes: NameNodes, url: str, root: str, bounds: Bounds = UNBOUNDED
    ) -> None:
        self._namenodes, self._url, self._root, self._bounds = namenodes, url, root, bounds

    def __repr__(self) -> str:
        return f"WebHdfsFiles({self._url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_webhdfs, (self._url, self._bounds)

    @property
    def url(self) -> str:
        return self._url

    @property
    def bounds(self) -> Bounds:
        return self._bounds

    def at(self, path: str) -> WebHdfsFiles:
        return WebHdfsFiles(self._namenodes, self._full(path), self._path(path), self._bounds)

    def create_atomic(self, path: str, *, overwrite: bool = False) -> BufferedAtomicFile:
        self._path(path)
        publish = self.replace if overwrite else self.create
        return BufferedAtomicFile(lambda data: publish(path, data))

    def create(self, path: str, data: bytes) -> None:
        try:
            self._write(path, data, "NONE")
        except IsADirectoryError:
            raise FileExistsError(errno.EEXIST, "File exists", self._full(path)) from None

    def replace(self, path: str, data: bytes) -> None:
        self._write(path, data, "OVERWRITE")

    def read(self, path: str, *, large: bool = False) -> bytes:
        url = self._full(path)
        most = self._bounds.most(large=large)
        # One byte more than allowed shows that the file is too large, and no more is transferred.
        part = {} if most is None else {"length": str(most + 1)}
        try:
            content = self._namenodes.open(self._path(path), url, **part)
            self._bounds.check(url, len(content), large=large)
            return content
        except (FileNotFoundError, NotADirectoryError):
            info = self.info(path)
            if info is not None and info.is_dir:
                raise IsADirectoryError(errno.EISDIR, "Is a directory", url) from None
            raise FileNotFoundError(errno.ENOENT, "No such file", url) from None

    def info(self, path: str) -> FileInfo | None:
        full = self._path(path)
        try:
            status = self._namenodes.call("GET", full, "GETFILESTATUS", self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _info(posixpath.basename(full), status["FileStatus"])

    def list(self, path: str = "") -> list[FileInfo]:
        names: list[FileInfo] = []
        after = ""
        while True:
            try:
                statuses, remaining = self._page(path, after)
            except FileNotFoundError:
                return []
            if len(statuses) == 1 and statuses[0]["pathSuffix"] == "":
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", self._full(path))
            names += [_info(status["pathSuffix"], status) for status in statuses]
            if not statuses or remaining == 0:
                return sorted(names, key=lambda info: info.name)
            if statuses[-1]["pathSuffix"] == after:
                raise StorageError(
                    self._full(path),
                    f"the listing repeats {after!r} and would never end. Check the NameNode, or "
                    f"the gateway in front of it.",
                )
            after = statuses[-1]["pathSuffix"]

    def _page(self, path: str, after: str) -> tuple[Any, int]:
        listing = self._namenodes.call(
            *("GET", self._path(path), "LISTSTATUS_BATCH", self._full(path)),
            # The NameNode reads the first name, Hadoop's gateway HttpFS the second.
            startafter=after,
            startAfter=after,
        )["DirectoryListing"]
        return listing["partialListing"]["FileStatuses"]["FileStatus"], listing["remainingEntries"]

    def walk(self, path: str = "") -> Iterator[tuple[str, FileInfo]]:
        check_depth(self._url, path)
        # Directories sort with their slash, so that the paths below them come out in order.
        for info in sorted(self.list(path), key=lambda info: info.name + "/" * info.is_dir):
            below = join_url(path, info.name) if path else info.name
            if info.is_dir:
                yield from self.walk(below)
            else:
                yield below, info

    def make_dirs(self, path: str = "") -> None:
        self._namenodes.call("PUT", self._path(path), "MKDIRS", self._full(path))

    def delete(self, path: str) -> None:
        self._delete(path, recursive="false")

    def delete_tree(self, path: str = "") -> None:
        self._delete(path, recursive="true")

    def _delete(self, path: str, *, recursive: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            self._namenodes.call(
                "DELETE", self._path(path), "DELETE", self._full(path), recursive=recursive
            )

    def _write(self, path: str, data: bytes, options: str) -> None:
        folder, name = posixpath.split(self._path(path))
        temp = posixpath.join(folder, f".{name}.{uuid.uuid4()}.tmp")
        url = self._full(path)
        try:
            self._namenodes.upload(temp, data, url)
            self._rename(temp, self._path(path), options, url)
        except BaseException:
            self._drop(temp, url)
            raise

    def _rename(self, temp: str, target: str, options: str, url: str) -> None:
        lost = False
        for last in (False, False, True):
            try:
                self._namenodes.call(
                    *("PUT", temp, "RENAME", url),
                    repeatable=False,
                    destination=target,
                    renameoptions=options,
                )
                return
            except FileNotFoundError:
                if lost:
                    return  # an earlier try, whose answer was lost, did the rename
                raise
            except LostAnswerError:
                if last:
                    raise
                lost = True

    def _drop(self, temp: str, url: str) -> None:
        """Delete a temporary file. If that fails, it stays behind hidden, which is harmless."""
        try:
            self._namenodes.call("DELETE", temp, "DELETE", url, rounds=1)
        except Exception:  # noqa: BLE001 - the caller reports the original error
            return

    def _path(self, path: str) -> str:
        return posixpath.join(self._root, checked_path(self._url, path)).rstrip("/") or "/"

    def _full(self, path: str) -> str:
        return join_url(self._url, path)


def _info(name: str, status: dict[str, Any]) -> FileInfo:
    is_dir = status["type"] == "DIRECTORY"
    return FileInfo(name, is_dir, 0 if is_dir else status["length"], status["modificationTime"])
