"""Sends batches to the evaluator of the executor, and gets the results of Spark's own code.

If the evaluator crashes or is killed, another one is started and the batch is sent again: steps
have no memory, so a repeated request has the same answer and no row is lost or doubled. Only what
numbers rows (`monotonically_increasing_id`) goes on from the number that it is prepared with. An
evaluator that answers nothing, not even a ping, is stopped (SIGSTOP) or hangs: it is killed, and
treated as crashed.

A large batch is sent in slices, one after the other, so that the evaluator's memory is bounded.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from epochal.errors import EvaluatorError, EvaluatorLostError, ExpressionError
from epochal.evaluator.evaluator_process import POLL_SECONDS, open_socket, pid_of
from epochal.evaluator.executor_jvm import DEFAULT_MEMORY_MB, find_executor, is_stopped

logger = logging.getLogger(__name__)

T = TypeVar("T")

PREPARE, RUN, PING = 1, 2, 3
OK, FAILED, OUT_OF_MEMORY = 0, 1, 2

TRIES = 3
"""How often a request is sent to an evaluator that crashes on it."""

MEMORY_TRIES = 2

ANSWER_SECONDS, PING_SECONDS = 5.0, 60.0
"""After this long without an answer the evaluator is pinged, and must answer the ping, even on a
machine that has far too much to do."""

REQUEST_BYTES = 1 << 20
"""About how much of a batch is sent at once, so that the evaluator's memory is bounded."""

MAX_STEPS = 256
"""How many steps are prepared on a connection. One more, and it starts anew without them."""

_JOINED_BYTES = 1 << 16
_COUNTER = b"MonotonicallyIncreasingID"
_HEAD, _LENGTH, _ANSWER = struct.Struct(">iii"), struct.Struct(">i"), struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class Session:
    """What Spark's code needs to know of the user's session. All steps of a query share one."""

    settings: str
    """Keys and values in turn, one per line, newlines as `\\n`."""
    jars: str = ""
    """The names of jars that were added to the application, one per line."""


@dataclass(frozen=True, slots=True)
class EvaluatorStep:
    """A step of a plan, as the evaluator prepares it."""

    kind: str
    session: Session
    schema_json: str
    """Spark's schema of the result."""
    fields: tuple[bytes, ...]

    @property
    def counts_rows(self) -> bool:
        """Whether its results depend on how many rows there were before."""
        return any(_COUNTER in field for field in self.fields)

    def request(self, jars: Sequence[str], task: int, rows: int) -> list[bytes]:
        """The fields that prepare it, for a task whose rows before were evaluated elsewhere."""
        of_task = (str(task), str(rows))
        texts = (self.kind, self.session.settings, "\n".join(jars), *of_task, self.schema_json)
        return [*(text.encode() for text in texts), *self.fields]


def _jar_paths(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Where Spark has put jars on this executor, and the names of those that are not there."""
    if not names:
        return [], []
    from pyspark import SparkFiles

    # On a cluster it is the directory in which the executor runs, and the evaluator does not.
    folder = os.path.abspath(SparkFiles.getRootDirectory())
    paths = {name: os.path.join(folder, name) for name in names}
    missing = [name for name, path in paths.items() if not os.path.exists(path)]
    return [path for name, path in paths.items() if name not in missing], missing


class _Gone(Exception):
    """The evaluator has ended, or it hangs."""


class _OutOfMemory(Exception):
    """The evaluator has ended because its memory did not suffice."""


@dataclass(slots=True)
class _Prepared:
    """A step that is prepared on a connection, and the schemas of its last stream and answer."""

    number: int
    counts_rows: bool
    sent: pa.Schema | None = None
    answered: pa.Schema | None = None


class _Connection:
    """A connection, and the steps that are prepared there."""

    def __init__(self, memory_mb: int, task: int, rows: dict[EvaluatorStep, int]) -> None:
        """`rows` has how many rows were evaluated by steps that count them."""
        self.pid, self.memory_mb, self._task, self._rows = os.getpid(), memory_mb, task, rows
        self._socket = open_socket(find_executor(), memory_mb)
        # Of the ways to wait at most so long, this one needs no further system call.
        seconds = struct.pack("ll", int(ANSWER_SECONDS), int(ANSWER_SECONDS % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, seconds)
        self.evaluator = pid_of(self._socket)
        self._steps: dict[EvaluatorStep, _Prepared] = {}

    @property
    def is_full(self) -> bool:
        return len(self._steps) >= MAX_STEPS

    def run(self, step: EvaluatorStep, fields: Sequence[bytes | pa.Buffer]) -> pa.Buffer:
        """Return the answer to a request."""
        return self._ask(RUN, self._prepared(step).number, fields)

    def run_rows(
        self, step: EvaluatorStep, slices: Iterable[pa.RecordBatch]
    ) -> list[pa.RecordBatch]:
        """Return the rows that a step makes of batches with one schema."""
        prepared = self._prepared(step)
        answers = []
        for batch in slices:
            message = batch.serialize()
            if prepared.sent is None or not prepared.sent.equals(batch.schema):
                prepared.sent, prepared.answered = batch.schema, None
                head = batch.schema.serialize().to_pybytes()
                message = pa.py_buffer(head + memoryview(message))
            try:
                answer = self._ask(RUN, prepared.number, (message,))
            except ExpressionError:
                prepared.sent = None  # the answers go on with a new stream
                raise
            answers.append(self._decoded(prepared, answer))
            if prepared.counts_rows:
                self._rows[step] = self._rows.get(step, 0) + batch.num_rows
        return answers

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self.close()  # its thread has ended

    def wait_for_end(self) -> None:
        """Wait until the evaluator has ended, which it is about to do."""
        with suppress(OSError):
            while self._socket.recv(1 << 16):
                pass

    def _prepared(self, step: EvaluatorStep) -> _Prepared:
        prepared = self._steps.get(step)
        if prepared is None:
            jars, missing = _jar_paths(step.session.jars.splitlines())
            try:
                request = step.request(jars, self._task, self._rows.get(step, 0))
                self._ask(PREPARE, os.getpid(), request)
            except ExpressionError as error:
                if not missing:
                    raise
                names = ", ".join(missing)
                raise ExpressionError(f"{error} (not on this executor: {names})") from None
            prepared = self._steps[step] = _Prepared(len(self._steps), step.counts_rows)
        return prepared

    def _decoded(self, prepared: _Prepared, answer: pa.Buffer) -> pa.RecordBatch:
        if prepared.answered is not None:
            return pa.ipc.read_record_batch(answer, prepared.answered)
        stream = pa.ipc.open_stream(answer)
        prepared.answered = stream.schema
        return stream.read_next_batch()

    def _ask(self, operation: int, step: int, fields: Sequence[bytes | pa.Buffer]) -> pa.Buffer:
        """Send a request and return the answer."""
        parts: list[bytes | memoryview] = [_HEAD.pack(operation, step, len(fields))]
        for field in fields:
            parts += (_LENGTH.pack(len(field)), memoryview(field))
        if sum(map(len, parts)) <= _JOINED_BYTES:
            parts = [b"".join(parts)]
        try:
            with suppress(ConnectionError):  # it has ended, but may have said why
                for part in parts:
                    self._send(memoryview(part))
            status, size = _ANSWER.unpack(self._receive(_ANSWER.size))
            answer = self._receive(size)
        except (ConnectionError, EOFError) as error:
            raise _Gone(str(error)) from error
        if status == OK:
            return answer
        text = answer.to_pybytes().decode(errors="replace")
        if status == OUT_OF_MEMORY:
            raise _OutOfMemory(text)
        raise ExpressionError(text.strip())

    def _send(self, rest: memoryview) -> None:
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                self._check_alive()

    def _receive(self, size: int) -> pa.Buffer:
        data, at = pa.allocate_buffer(size), 0
        view = memoryview(data)
        while at < size:
            try:
                count = self._socket.recv_into(view[at:])
            except BlockingIOError:
                self._check_alive()
                continue
            if not count:
                raise EOFError("the connection was closed")
            at += count
        return data

    def _check_alive(self) -> None:
        """Kill an evaluator that is stopped, or does not even answer a ping."""
        pid = self.evaluator
        if not is_stopped(pid) and self._is_answered(pid):
            return  # it works, for long
        logger.warning("the evaluator does not answer, and is killed")
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise _Gone("it did not answer")

    def _is_answered(self, pid: int | None) -> bool:
        """Whether a ping is answered, over a connection of its own."""
        deadline = time.monotonic() + PING_SECONDS
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other, suppress(OSError):
            other.settimeout(ANSWER_SECONDS)
            # The system knows the name that the socket had until the evaluator was ready.
            other.connect(self._socket.getpeername().removesuffix(".new"))
            other.sendall(_HEAD.pack(PING, 0, 0))
            while time.monotonic() < deadline and not is_stopped(pid):
                with suppress(TimeoutError):
                    return bool(other.recv(_ANSWER.size))
        return False


class EvaluatorClient:
    """The way of one process to its evaluator. Each thread has a connection of its own."""

    def __init__(self) -> None:
        self._local = threading.local()
        self.task = 0
        """The number of the task in this process: what `spark_partition_id()` returns."""
        self.memory_mb = DEFAULT_MEMORY_MB
        """How much memory the evaluator may use in all. Another number is another evaluator."""

    def run(self, step: EvaluatorStep, *fields: bytes | pa.Buffer) -> bytes:
        """Run a step; ExpressionError with Spark's own message if it fails."""
        answer = self._tried(step, lambda connection, _: connection.run(step, fields))
        return answer.to_pybytes()

    def run_rows(self, step: EvaluatorStep, batch: pa.RecordBatch) -> list[pa.Array[Any]]:
        """The columns that a step makes of rows; ExpressionError if it fails."""

        def run(connection: _Connection, shortages: int) -> list[pa.RecordBatch]:
            return connection.run_rows(step, slices(batch, REQUEST_BYTES >> 4 * shortages))

        parts = self._tried(step, run)
        if len(parts) == 1:
            return parts[0].columns
        columns = zip(*(part.columns for part in parts), strict=True)
        return list(map(pa.concat_arrays, columns))

    def _tried(self, step: EvaluatorStep, run: Callable[[_Connection, int], T]) -> T:
        lost: set[object] = set()
        shortages = 0
        while True:
            evaluator: object = None
            try:
                connection = self._connection()
                evaluator = connection.evaluator
                return run(connection, shortages)
            except (_Gone, EvaluatorLostError) as error:
                self.close()
                # One that is about to end may still accept connections: it is lost only once.
                lost.add(evaluator or error)
                if len(lost) == TRIES:
                    raise EvaluatorLostError(
                        f"it ended {TRIES} times on one batch: {error}"
                    ) from None
                logger.warning("the evaluator has ended: starting another one")
                time.sleep(POLL_SECONDS)
            except _OutOfMemory as error:
                connection.wait_for_end()
                self.close()
                shortages += 1
                if shortages == MEMORY_TRIES:
                    raise EvaluatorError(
                        f"its memory of {self.memory_mb} MiB does not suffice for one "
                        f"batch: {error}. Raise the option evaluatorMemory"
                    ) from None
                logger.warning("the evaluator is out of memory: starting another one")
            except ExpressionError:
                raise
            except BaseException:
                self.close()  # answers may be on their way, which are not those of the next batch
                raise

    def close(self) -> None:
        """Close the connection of this thread. The evaluator forgets the steps that it prepared."""
        connection: _Connection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _connection(self) -> _Connection:
        connection: _Connection | None = getattr(self._local, "connection", None)
        # A process that was forked must not answer for its parent.
        if connection is not None and (
            connection.pid != os.getpid()
            or connection.memory_mb != self.memory_mb
            or connection.is_full
        ):
            self.close()
            connection = None
        if connection is None:
            rows = self._local.__dict__.setdefault("rows", {})
            connection = self._local.connection = _Connection(self.memory_mb, self.task, rows)
        return connection


CLIENT = EvaluatorClient()
"""The client of this process: there is one evaluator, so there is one way to it."""


def slices(batch: pa.RecordBatch, limit: int = REQUEST_BYTES) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in parts of about so many bytes; at least one part."""
    rows = batch.num_rows
    size = max(1, min(rows, limit * rows // max(1, batch.nbytes)))
    if size >= rows:
        yield batch
        return
    for start in range(0, rows, size):
        yield batch.slice(start, size)
