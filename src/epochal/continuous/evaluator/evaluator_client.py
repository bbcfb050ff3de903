"""Sends batches to the evaluator of the executor, and gets the results of Spark's own code.

A request is answered before the next one is sent. If the evaluator crashes or is killed, another
one is started and the request is sent again: steps have no memory, so a repeated request has the
same answer and no row is lost or doubled. An evaluator that answers nothing, not even a ping, is
stopped (SIGSTOP) or hangs: it is killed, and treated as crashed.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from epochal.continuous.evaluator.evaluator_process import (
    DEFAULT_MEMORY_MB,
    find_executor,
    open_socket,
    pid_of,
)
from epochal.errors import EvaluatorError, ExpressionError

logger = logging.getLogger(__name__)

PREPARE, RUN, PING = 1, 2, 3
OK, FAILED, OUT_OF_MEMORY = 0, 1, 2

TRIES = 3
"""How often a request is sent to an evaluator that crashes on it."""

MEMORY_TRIES = 2

ANSWER_SECONDS, PING_SECONDS = 10.0, 5.0
"""After this long without an answer the evaluator is pinged, and must answer the ping."""

REQUEST_BYTES = 1 << 21
"""About how much of a batch is sent at once, so that the evaluator's memory is bounded."""

_HEAD, _LENGTH, _ANSWER = struct.Struct(">iii"), struct.Struct(">i"), struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class Session:
    """What Spark's code needs to know of the user's session. All steps of a query share one."""

    settings: str
    """Keys and values in turn, one per line, newlines as `\\n`."""
    jars: str = ""
    """Paths of jars on the executor, one per line."""


@dataclass(frozen=True, slots=True)
class EvaluatorStep:
    """A step of a plan, as the evaluator prepares it."""

    kind: str
    session: Session
    schema_json: str
    """Spark's schema of the result."""
    fields: tuple[bytes, ...]

    @property
    def request(self) -> list[bytes]:
        texts = (self.kind, self.session.settings, self.session.jars, self.schema_json)
        return [*(text.encode() for text in texts), *self.fields]


class _Gone(Exception):
    """The evaluator has ended, or it hangs."""


class _Connection:
    """A connection, and the steps that are prepared there."""

    def __init__(self, memory_mb: int) -> None:
        self._socket = open_socket(find_executor(), memory_mb)
        self._socket.settimeout(ANSWER_SECONDS)
        self._memory_mb = memory_mb
        self._steps: dict[EvaluatorStep, int] = {}

    def run(self, step: EvaluatorStep, fields: Sequence[bytes | pa.Buffer]) -> tuple[int, bytes]:
        """Return the status and the answer."""
        number = self._steps.get(step)
        if number is None:
            status, answer = self._ask(PREPARE, 0, step.request)
            if status != OK:
                return status, answer
            number = self._steps[step] = len(self._steps)
        return self._ask(RUN, number, fields)

    def close(self) -> None:
        self._socket.close()

    def _ask(
        self, operation: int, step: int, fields: Sequence[bytes | pa.Buffer]
    ) -> tuple[int, bytes]:
        head = [_HEAD.pack(operation, step, len(fields))]
        for field in fields:
            head += (_LENGTH.pack(len(field)), memoryview(field))
        try:
            self._send(b"".join(head))
            status, size = _ANSWER.unpack(self._receive(_ANSWER.size))
            return status, self._receive(size)
        except (ConnectionError, EOFError) as error:
            raise _Gone(str(error)) from error

    def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                self._check_alive()

    def _receive(self, size: int) -> bytes:
        data, at = bytearray(size), 0
        view = memoryview(data)
        while at < size:
            try:
                count = self._socket.recv_into(view[at:])
            except TimeoutError:
                self._check_alive()
                continue
            if not count:
                raise EOFError("the connection was closed")
            at += count
        return bytes(data)

    def _check_alive(self) -> None:
        """Kill an evaluator that does not even answer a ping."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
            other.settimeout(PING_SECONDS)
            try:
                # The socket had this name when it was bound, and has been renamed since.
                other.connect(self._socket.getpeername().removesuffix(".new"))
                other.sendall(_HEAD.pack(PING, 0, 0))
                if other.recv(_ANSWER.size):
                    return  # it works, for long
            except OSError:
                pass
        logger.warning("the evaluator does not answer, and is killed")
        with suppress(ProcessLookupError, OSError):
            os.kill(pid_of(self._socket), signal.SIGKILL)
        raise _Gone("it did not answer")


class EvaluatorClient:
    """The way of one process to its evaluator. Each thread has a connection of its own."""

    def __init__(self, memory_mb: int = DEFAULT_MEMORY_MB) -> None:
        self.memory_mb = memory_mb
        self._local = threading.local()

    def run(self, step: EvaluatorStep, *fields: bytes | pa.Buffer) -> bytes:
        """Run a step; ExpressionError with Spark's own message if it fails."""
        crashes = shortages = 0
        while True:
            try:
                status, answer = self._connection().run(step, fields)
            except _Gone as error:
                self.close()
                crashes += 1
                if crashes == TRIES:
                    raise EvaluatorError(
                        f"it ended {crashes} times on one batch: {error}"
                    ) from None
                logger.warning("the evaluator has ended: starting another one")
                continue
            if status == OK:
                return answer
            if status == FAILED:
                raise _failure(answer.decode(errors="replace"))
            self.close()
            shortages += 1
            if shortages == MEMORY_TRIES:
                raise EvaluatorError(
                    f"its memory of {self.memory_mb} MiB does not suffice for one batch: "
                    f"{answer.decode(errors='replace')}. Raise the option evaluatorMemory"
                )
            logger.warning("the evaluator is out of memory: starting another one")

    def start(self) -> None:
        """Connect, and start the evaluator if there is none."""
        self._connection()

    def close(self) -> None:
        """Close the connection of this thread."""
        connection: _Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _connection(self) -> _Connection:
        made: _Connection | None = getattr(self._local, "connection", None)
        if made is None:
            made = self._local.connection = _Connection(self.memory_mb)
        return made


CLIENT = EvaluatorClient()
"""The client of this process: there is one evaluator, so there is one way to it."""


def _failure(text: str) -> ExpressionError:
    _condition, _, message = text.partition("\n")
    return ExpressionError(message.strip())
