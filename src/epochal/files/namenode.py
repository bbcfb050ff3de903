"""Asks HDFS's NameNodes over HTTP: which one, how often, and what an answer means.

Asking ends: each connection and each silence has a timeout, each request a number of tries and a
time after which no further one begins. A request that reached a NameNode and got no answer is
repeated only where asking twice is the same as asking once; otherwise it is a LostAnswerError.
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

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
RETRY_SECONDS = 60.0
ROUNDS = 5
FIRST_PAUSE_SECONDS = 0.1

_NOT_ALLOWED = frozenset({"AccessControlException", "AuthorizationException", "SecurityException"})
_ASK_ANOTHER = frozenset({"StandbyException", "RetriableException"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said."""

    status: int
    location: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """Why no server carried out a request, or none is known to have."""

    reason: str
    lost: bool
    """The request went out, so it may have been carried out all the same."""


class NameNodes:
    """One file system's NameNodes, of which one is active. Any thread may ask."""

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
        """The JSON answer to an operation that moves no data."""
        target = self._target(path, operation, parameters)
        answer = self._insist(
            lambda address: self._ask(address, method, target),
            url,
            repeatable=repeatable,
            rounds=rounds,
        )
        _raise_for(answer, url)
        return json.loads(answer.body) if answer.body else None

    def open(self, path: str, url: str) -> bytes:
        """The content of a file, which a DataNode sends."""
        target = self._target(path, "OPEN", {})

        def attempt(address: tuple[str, int]) -> Answer | Failure:
            answer = self._ask(address, "GET", target)
            if isinstance(answer, Answer) and answer.location is not None:
                return _send_once("GET", answer.location)
            return answer

        answer = self._insist(attempt, url)
        _raise_for(answer, url)
        return answer.body

    def upload(self, path: str, data: bytes, url: str) -> None:
        """Write a file, which a DataNode takes; complete once this returns."""
        target = self._target(path, "CREATE", {"overwrite": "true"})

        def attempt(address: tuple[str, int]) -> Answer | Failure:
            answer = self._ask(address, "PUT", target)
            if isinstance(answer, Answer) and answer.location is not None:
                return _send_once("PUT", answer.location, data)
            return answer

        _raise_for(self._insist(attempt, url), url)

    def _insist(
        self,
        attempt: Callable[[tuple[str, int]], Answer | Failure],
        url: str,
        *,
        repeatable: bool = True,
        rounds: int = ROUNDS,
    ) -> Answer:
        deadline = time.monotonic() + RETRY_SECONDS
        pause = FIRST_PAUSE_SECONDS
        reasons: list[str] = []
        for _ in range(rounds):
            reasons.clear()
            for _ in self._addresses:
                active = self._active
                outcome = attempt(self._addresses[active])
                if isinstance(outcome, Answer):
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
            f"no NameNode did what was asked: {'; '.join(reasons)}. Check that WebHDFS listens "
            f"there; EPOCHAL_WEBHDFS names the web addresses behind hdfs:// URLs.",
        )

    def _ask(self, address: tuple[str, int], method: str, target: str) -> Answer | Failure:
        kept: _KeptConnections = self._local.__dict__.setdefault("kept", _KeptConnections())
        if address not in kept.by_address:
            kept.by_address[address] = _connection(self._protocol, *address)
        answer = _send(kept.by_address[address], method, target)
        if isinstance(answer, Answer):
            refusal, message = _remote_exception(answer)
            if refusal in _ASK_ANOTHER:
                host, port = address
                return Failure(f"{host}:{port} says {refusal}: {message}", lost=False)
        return answer

    def _target(self, path: str, operation: str, parameters: Mapping[str, str]) -> str:
        asked = {"op": operation, **self._identity, **parameters}
        return f"/webhdfs/v1{quote(path)}?{urlencode(asked, quote_via=quote, safe='')}"


class _KeptConnections:
    """One thread's connections, closed when the thread or the NameNodes object ends."""

    def __init__(self) -> None:
        self.by_address: dict[tuple[str, int], http.client.HTTPConnection] = {}

    def __del__(self) -> None:
        for connection in self.by_address.values():
            connection.close()


def _connection(protocol: str, host: str, port: int) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if protocol == "https" else http.client.HTTPConnection
    return kind(host, port, timeout=CONNECT_SECONDS)


def _send_once(method: str, location: str, body: bytes | None = None) -> Answer | Failure:
    parts = urlsplit(location)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    connection = _connection(parts.scheme, parts.hostname or "", port)
    try:
        return _send(connection, method, f"{parts.path}?{parts.query}", body)
    finally:
        connection.close()


def _send(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None = None
) -> Answer | Failure:
    where = f"{connection.host}:{connection.port}"
    fresh = connection.sock is None
    try:
        if fresh:
            connection.connect()
            connection.sock.settimeout(SILENCE_SECONDS)
    except OSError as error:
        connection.close()
        return Failure(f"{where} cannot be reached ({error})", lost=False)
    # Some servers take a body only with this type, and a PUT only with a length.
    headers = {"Content-Type": "application/octet-stream"} if body is not None else {}
    try:
        connection.request(method, target, body=body, headers=headers)
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        reason = str(error) or type(error).__name__
        return Failure(f"{where} gave no answer ({reason})", lost=True)
    return Answer(response.status, response.getheader("Location"), content)


def _remote_exception(answer: Answer) -> tuple[str, str]:
    """The Java exception an answer reports and its first line; empty for a good answer."""
    if answer.status < 400:
        return "", ""
    try:
        told = json.loads(answer.body)["RemoteException"]
        return told["exception"], str(told.get("message", "")).strip().split("\n", 1)[0]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status}", answer.body[:200].decode("utf-8", "replace").strip()


def _raise_for(answer: Answer, url: str) -> None:
    exception, message = _remote_exception(answer)
    if not exception:
        return
    if exception == "FileNotFoundException":
        raise FileNotFoundError(errno.ENOENT, "No such file", url)
    # Access is denied, says HDFS, to what would be below a file.
    if exception == "ParentNotDirectoryException" or message.endswith("(is not a directory)"):
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", url)
    if exception == "FileAlreadyExistsException":
        raise FileExistsError(errno.EEXIST, "File exists", url)
    if message.endswith("must both be directories"):  # a file renamed to a directory's name
        raise IsADirectoryError(errno.EISDIR, "Is a directory", url)
    if exception in _NOT_ALLOWED or answer.status == 401:
        raise PermissionError(errno.EACCES, f"Not allowed: {message or exception}", url)
    raise StorageError(url, f"{exception}: {message}")
