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

Every request ends: connecting and waiting for an answer have timeouts, the number of tries is
limited, and no try starts after RETRY_SECONDS. A request that was sent but not answered is retried
only if it is idempotent; otherwise it raises LostAnswerError.
"""

from __future__ import annotations

import errno
import getpass
import http.client
import json
import os
import posixpath
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from epochal.errors import LostAnswerError, OptionError, StorageError
from epochal.files import (
    SILENCE_SECONDS,
    UNBOUNDED,
    Bounds,
    BufferedAtomicFile,
    FileInfo,
    checked_path,
    join_url,
    walked,
)

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
        self._namenodes, self.url, self._root, self.bounds = namenodes, url, root, bounds

    def __repr__(self) -> str:
        return f"WebHdfsFiles({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return open_webhdfs, (self.url, self.bounds)

    def at(self, path: str) -> WebHdfsFiles:
        return WebHdfsFiles(self._namenodes, self._full(path), self._path(path), self.bounds)

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
        most = self.bounds.most(large=large)
        # One byte more than allowed shows that the file is too large, and no more is transferred.
        part = {} if most is None else {"length": str(most + 1)}
        try:
            content = self._namenodes.transfer("GET", self._path(path), "OPEN", url, part)
            self.bounds.check(url, len(content), large=large)
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
        return walked(self, path)

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
            self._namenodes.transfer("PUT", temp, "CREATE", url, {"overwrite": "true"}, data)
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
        return posixpath.join(self._root, checked_path(self.url, path)).rstrip("/") or "/"

    def _full(self, path: str) -> str:
        return join_url(self.url, path)


def _info(name: str, status: dict[str, Any]) -> FileInfo:
    is_dir = status["type"] == "DIRECTORY"
    return FileInfo(name, is_dir, 0 if is_dir else status["length"], status["modificationTime"])


CONNECT_SECONDS = 10.0
RETRY_SECONDS = 60.0
ROUNDS = 5
FIRST_PAUSE_SECONDS = 0.1

_NOT_ALLOWED = frozenset({"AccessControlException", "AuthorizationException", "SecurityException"})
_TRY_ANOTHER = frozenset({"StandbyException", "RetriableException"})


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A server's HTTP response."""

    status: int
    location: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Why a request failed, or may have failed."""

    reason: str
    lost: bool
    """True if the request was sent, so that it may have been executed all the same."""


class NameNodes:
    """The NameNodes of one file system, of which one is active. Safe to use from any thread."""

    def __init__(
        self, protocol: str, addresses: tuple[tuple[str, int], ...], identity: Mapping[str, str]
    ) -> None:
        self._protocol, self._addresses, self._identity = protocol, addresses, identity
        self._active = 0
        self._local = threading.local()

    def call(
        self,
        method: str,
        path: str,
        operation: str,
        url: str,
        *,
        repeatable: bool = True,
        rounds: int = ROUNDS,
        **parameters: str,
    ) -> Any:
        """Perform an operation that transfers no file content; return its JSON answer."""
        target = self._target(path, operation, parameters)
        answer = self._retry(
            lambda address: self._request(address, method, target),
            url,
            repeatable=repeatable,
            rounds=rounds,
        )
        _raise_for(answer, url)
        return json.loads(answer.body) if answer.body else None

    def transfer(
        self,
        method: str,
        path: str,
        operation: str,
        url: str,
        parameters: Mapping[str, str],
        data: bytes | None = None,
    ) -> bytes:
        """Read or write a file at the DataNode that a NameNode redirects to; return its answer."""
        target = self._target(path, operation, parameters)

        def attempt(address: tuple[str, int]) -> HttpAnswer | RequestFailure:
            answer = self._request(address, method, target)
            if isinstance(answer, HttpAnswer) and answer.location is not None:
                return _send_once(method, self._redirect(answer.location, url), data)
            return answer

        answer = self._retry(attempt, url)
        _raise_for(answer, url)
        return answer.body

    def _redirect(self, location: str, url: str) -> str:
        """The address of a DataNode. It has the token, so it must not be sent in the clear."""
        scheme = urlsplit(location).scheme
        if scheme == self._protocol or scheme == "https":
            return location
        raise StorageError(
            url,
            f"the NameNode is asked by {self._protocol}, but redirects to {scheme or 'no'} "
            f"addresses, to which the user's token is not sent. Set dfs.http.policy to HTTPS_ONLY "
            f"for the DataNodes, too.",
        )

    def _retry(
        self,
        attempt: Callable[[tuple[str, int]], HttpAnswer | RequestFailure],
        url: str,
        *,
        repeatable: bool = True,
        rounds: int = ROUNDS,
    ) -> HttpAnswer:
        deadline = time.monotonic() + RETRY_SECONDS
        pause = FIRST_PAUSE_SECONDS
        reasons: list[str] = []
        for _ in range(rounds):
            reasons.clear()
            for _ in self._addresses:
                active = self._active
                outcome = attempt(self._addresses[active])
                if isinstance(outcome, HttpAnswer):
                    return outcome
                if outcome.lost and not repeatable:
                    raise LostAnswerError(url, outcome.reason)
                reasons.append(outcome.reason)
                self._active = (active + 1) % len(self._addresses)
            if time.monotonic() + pause > deadline:
                break
            time.sleep(pause)
            pause *= 2
        raise StorageError(
            url,
            f"no NameNode executed the request: {'; '.join(reasons)}. Check that WebHDFS listens "
            f"at these addresses. For hdfs:// URLs, EPOCHAL_WEBHDFS sets them.",
        )

    def _request(
        self, address: tuple[str, int], method: str, target: str
    ) -> HttpAnswer | RequestFailure:
        connections: _Connections = self._local.__dict__.setdefault("kept", _Connections())
        if address not in connections.by_address:
            connections.by_address[address] = _connection(self._protocol, *address)
        answer = _send(connections.by_address[address], method, target)
        if isinstance(answer, HttpAnswer):
            exception, message = _remote_exception(answer)
            if exception in _TRY_ANOTHER:
                host, port = address
                return RequestFailure(f"{host}:{port} answered {exception}: {message}", lost=False)
        return answer

    def _target(self, path: str, operation: str, parameters: Mapping[str, str]) -> str:
        query = {"op": operation, **self._identity, **parameters}
        return f"/webhdfs/v1{quote(path)}?{urlencode(query, quote_via=quote, safe='')}"


class _Connections:
    """The connections of one thread, closed when the thread or the NameNodes object ends."""

    def __init__(self) -> None:
        self.by_address: dict[tuple[str, int], http.client.HTTPConnection] = {}

    def __del__(self) -> None:
        for connection in self.by_address.values():
            connection.close()


def _connection(protocol: str, host: str, port: int) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if protocol == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=CONNECT_SECONDS)


def _send_once(
    method: str, location: str, body: bytes | None = None
) -> HttpAnswer | RequestFailure:
    parts = urlsplit(location)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection = _connection(parts.scheme, parts.hostname or "", port)
    try:
        return _send(connection, method, f"{parts.path}?{parts.query}", body)
    finally:
        connection.close()


def _send(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None = None
) -> HttpAnswer | RequestFailure:
    where = f"{connection.host}:{connection.port}"
    fresh = connection.sock is None
    try:
        if fresh:
            connection.connect()
            connection.sock.settimeout(SILENCE_SECONDS)
    except OSError as error:
        connection.close()
        return RequestFailure(f"{where} cannot be reached ({error})", lost=False)
    # Some servers accept a body only with this type, and a PUT only with a length.
    headers = {"Content-Type": "application/octet-stream"} if body is not None else {}
    try:
        connection.request(method, target, body=body, headers=headers)
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        reason = str(error) or type(error).__name__
        return RequestFailure(f"{where} gave no answer ({reason})", lost=True)
    return HttpAnswer(response.status, response.getheader("Location"), content)


def _remote_exception(answer: HttpAnswer) -> tuple[str, str]:
    """The Java exception in an answer and the first line of its message; empty on success."""
    if answer.status < 400:
        return "", ""
    try:
        remote = json.loads(answer.body)["RemoteException"]
        return remote["exception"], str(remote.get("message", "")).strip().split("\n", 1)[0]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status}", answer.body[:200].decode("utf-8", "replace").strip()


def _raise_for(answer: HttpAnswer, url: str) -> None:
    exception, message = _remote_exception(answer)
    if not exception:
        return
    if exception == "FileNotFoundException":
        raise FileNotFoundError(errno.ENOENT, "No such file", url)
    # For a path below a file HDFS reports that access is denied, with this ending.
    if exception == "ParentNotDirectoryException" or message.endswith("(is not a directory)"):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", url)
    if exception == "FileAlreadyExistsException":
        raise FileExistsError(errno.EEXIST, "File exists", url)
    if message.endswith("must both be directories"):  # a file renamed to a directory's name
        raise IsADirectoryError(errno.EISDIR, "Is a directory", url)
    if exception in _NOT_ALLOWED or answer.status == 401:
        raise PermissionError(errno.EACCES, f"Not allowed: {message or exception}", url)
    raise StorageError(url, f"{exception}: {message}")
