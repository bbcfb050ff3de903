"""Sends requests to the NameNodes of HDFS over HTTP: failover, retries and error translation.

Every request ends: connecting and waiting for an answer have timeouts, the number of tries is
limited, and no try starts after RETRY_SECONDS. A request that was sent but not answered is retried
only if it is idempotent; otherwise it raises LostAnswerError.
"""

from __future__ import annotations

import errno
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from epochal.errors import LostAnswerError, StorageError
from epochal.files.contract import SILENCE_SECONDS

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

    def open(self, path: str, url: str, **parameters: str) -> bytes:
        """Read a file from the DataNode that the NameNode redirects to."""
        target = self._target(path, "OPEN", parameters)

        def attempt(address: tuple[str, int]) -> HttpAnswer | RequestFailure:
            answer = self._request(address, "GET", target)
            if isinstance(answer, HttpAnswer) and answer.location is not None:
                return _send_once("GET", self._redirect(answer.location, url))
            return answer

        answer = self._retry(attempt, url)
        _raise_for(answer, url)
        return answer.body

    def upload(self, path: str, data: bytes, url: str) -> None:
        """Write a file to the DataNode that the NameNode redirects to; complete on return."""
        target = self._target(path, "CREATE", {"overwrite": "true"})

        def attempt(address: tuple[str, int]) -> HttpAnswer | RequestFailure:
            answer = self._request(address, "PUT", target)
            if isinstance(answer, HttpAnswer) and answer.location is not None:
                return _send_once("PUT", self._redirect(answer.location, url), data)
            return answer

        _raise_for(self._retry(attempt, url), url)

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
