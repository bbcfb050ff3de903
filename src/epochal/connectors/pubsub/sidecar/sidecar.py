"""The sidecar: one process per executor JVM that reads Pub/Sub for the executor's tasks.

Spark's Python workers are short-lived, so the sidecar holds what must outlive a task: streams,
leases, and rows until their batch is committed. The first task of an executor starts it
(`sidecar_client`). It ends with the executor's JVM, or after a minute without a query.

Note: no message is lost if a sidecar dies. The messages it held were not acknowledged, so Pub/Sub
redelivers them. But retries read its partitions as empty.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections import deque
from io import BufferedIOBase
from pathlib import Path

import pyarrow as pa

from epochal.connectors.pubsub.sidecar.sidecar_feed import Feed
from epochal.connectors.pubsub.sidecar.sidecar_messages import LogLine, Read, Reading
from epochal.connectors.pubsub.sidecar.sidecar_wire import receive, send
from epochal.errors import EpochalError

logger = logging.getLogger(__name__)

IDLE_EXIT_S = 60.0
KEPT_LINES = 500
"""Log records to keep until a task copies them into the executor's log."""


class KeptLog(logging.Handler):
    """Keeps the newest log records until `take` is called."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[LogLine] = deque(maxlen=KEPT_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(LogLine(record.levelno, record.name, record.getMessage()))

    def take(self) -> list[LogLine]:
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines


class Sidecar:
    """Serves the tasks of one executor over a unix socket."""

    def __init__(self, path: Path, jvm_pid: int, log: KeptLog) -> None:
        self._path, self._log = path, log
        self._directory = path.with_suffix(".d")
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {}
        self._opening: dict[str, threading.Lock] = {}
        self._serving = 0
        self._ending = threading.Event()
        self._busy_s = time.monotonic()
        self._jvm = _process_file(jvm_pid)
        self._jvm_pid = jvm_pid
        shutil.rmtree(self._directory, ignore_errors=True)
        sweep(path.parent)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        staged = path.with_suffix(f".{os.getpid()}")
        self._listener.bind(str(staged))
        self._listener.listen(128)
        staged.rename(path)  # a socket with the final name is always one that listens

    def run(self) -> None:
        """Serve until the JVM is gone, or no query has used the sidecar for a minute."""
        logger.info("sidecar of JVM %d is up", self._jvm_pid)
        watched: list[socket.socket | int] = [self._listener]
        if self._jvm is not None:
            watched.append(self._jvm)
        while not self._ending.is_set():
            ready, _, _ = select.select(watched, [], [], 1.0)
            if self._listener in ready:
                connection, _ = self._listener.accept()
                with self._lock:
                    self._serving += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
            if self._jvm in ready or not _alive(self._jvm_pid):
                logger.info("JVM %d is gone", self._jvm_pid)
                break
            if self._is_idle():
                logger.info("no query has used this sidecar for %g s", IDLE_EXIT_S)
                break
        self._end()

    def end(self) -> None:
        """Ask `run` to return soon. Safe to call from a signal handler."""
        self._ending.set()

    def _is_idle(self) -> bool:
        with self._lock:
            for run, feed in list(self._feeds.items()):
                if feed.closed.is_set():
                    del self._feeds[run]
            if self._feeds or self._serving:
                self._busy_s = time.monotonic()
            return time.monotonic() - self._busy_s > IDLE_EXIT_S

    def _end(self) -> None:
        self._path.unlink(missing_ok=True)
        self._listener.close()
        with self._lock:
            feeds = list(self._feeds.values())
        closers = [
            threading.Thread(target=feed.close, kwargs={"tell": True}, daemon=True)
            for feed in feeds
        ]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(15.0)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._path.with_suffix(".log").unlink(missing_ok=True)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rwb") as file:
                reading = receive(file, Reading)
                if reading is not None:
                    self._answer(reading, file)
        except OSError as error:
            logger.info("a task disconnected before it got its rows: %s", error)
        finally:
            with self._lock:
                self._serving -= 1

    def _answer(self, reading: Reading, file: BufferedIOBase) -> None:
        try:
            feed = self._feed(reading)
            batches = feed.read(reading)
        except EpochalError as error:
            send(file, Read(str(error), self._log.take()))
            return
        except Exception as error:
            logger.exception("reading batch %d failed", reading.batch)
            send(file, Read(f"{type(error).__name__}: {error}", self._log.take()))
            return
        send(file, Read("", self._log.take()))
        with pa.ipc.new_stream(file, feed.schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        file.flush()

    def _feed(self, reading: Reading) -> Feed:
        with self._lock:
            opening = self._opening.setdefault(reading.run, threading.Lock())
        # A lock per run: the first task opens the feed and the run's other tasks wait for it, but
        # tasks of other runs do not.
        with opening:
            with self._lock:
                found = self._feeds.get(reading.run)
            if found is None or found.closed.is_set():
                found = Feed(reading, self._directory)
                with self._lock:
                    self._feeds[reading.run] = found
            return found


def sweep(directory: Path) -> None:
    """Remove the files of sidecars whose JVM is gone."""
    for each in directory.glob("sidecar-*-*.*"):
        pid = each.name.split("-")[1]
        if not pid.isdigit() or _alive(int(pid)):
            continue
        if each.is_dir():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)


def _process_file(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None if unsupported."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def main(arguments: list[str]) -> None:
    """`python -m epochal.connectors.pubsub.sidecar.sidecar SOCKET JVM_PID`"""
    path, jvm_pid = Path(arguments[0]), int(arguments[1])
    kept = KeptLog()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    ours = logging.getLogger("epochal")
    ours.setLevel(logging.INFO)
    ours.addHandler(kept)
    sidecar = Sidecar(path, jvm_pid, kept)
    signal.signal(signal.SIGTERM, lambda *_: sidecar.end())
    sidecar.run()


if __name__ == "__main__":
    main(sys.argv[1:])
