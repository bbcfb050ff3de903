"""The task's side of the sidecar: starts this executor's sidecar and reads a partition from it.

A sidecar is identified by the process id and the start time of its executor's JVM. So executors on
the same host do not share one, and a reused process id is not mistaken for the old one. The socket
is in a directory that only this user can enter.

Note: this runs in Spark's Python workers, which are forked. So it must not import gRPC, and it
starts the sidecar as a new program, not as a fork.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

import pyarrow as pa

from epochal.connectors.pubsub.sidecar.sidecar_messages import (
    LogLine,
    PartitionReading,
    Read,
    receive,
    send,
)
from epochal.errors import PubSubReaderError

START_S = 60.0
READ_S = 300.0
TRIES = 3

_started: list[subprocess.Popen[bytes]] = []
"""Sidecars that this worker started. They may outlive it; it reaps those that end earlier."""


def read_rows(reading: PartitionReading, directory: Path | None = None) -> Iterator[pa.RecordBatch]:
    """Read the rows of a partition from the sidecar of this executor."""
    jvm_pid, started = executor_jvm()
    path = (directory or run_directory()) / f"sidecar-{jvm_pid}-{started}.sock"
    for _ in range(TRIES):
        connection = _connect(path) or _start(path, jvm_pid)
        connection.settimeout(READ_S)
        with connection, connection.makefile("rwb") as file:
            answer = _ask(file, reading)
            if answer is None:
                continue  # the sidecar was idle and exited just as we connected
            _log(answer.log)
            if answer.failure:
                raise PubSubReaderError(answer.failure)
            yield from pa.ipc.open_stream(file)
            return
    raise PubSubReaderError(
        f"The Pub/Sub sidecar at {path} exited {TRIES} times during the read of batch "
        f"{reading.batch}. {_last_output(path)}"
    )


def executor_jvm() -> tuple[int, str]:
    """Return the process id and start time of the JVM that started this worker."""
    pid = os.getppid()
    while pid > 1:
        process = _process(pid)
        if process is None:
            break
        name, parent, started = process
        if name == "java":
            return pid, started
        pid = parent
    return os.getppid(), "0"


def run_directory() -> Path:
    """Return the directory for sockets; create it so that only this user can enter it."""
    path = Path(tempfile.gettempdir()) / f"epochal-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PubSubReaderError(
            f"{path} is not a directory that only user {os.getuid()} can enter, so other users "
            f"could read messages there. Remove it."
        )
    return path


def _process(pid: int) -> tuple[str, int, str] | None:
    """Return name, parent and start time of a process; None without /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, int(fields[1]), fields[19]


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def _start(path: Path, jvm_pid: int) -> socket.socket:
    """Start the sidecar, unless another task of this executor has just started it."""
    with path.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _connect(path)
        if connection is not None:
            return connection
        path.unlink(missing_ok=True)
        log = path.with_suffix(".log")
        command = [sys.executable, "-m", "epochal.connectors.pubsub.sidecar.sidecar", str(path)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, str(jvm_pid)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        _started[:] = [running for running in _started if running.poll() is None] + [process]
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            connection = _connect(path)
            if connection is not None:
                return connection
            if process.poll() is not None:
                break
            time.sleep(0.02)
        raise PubSubReaderError(f"The Pub/Sub sidecar cannot be started. {_last_output(path)}")


def _ask(file: BufferedIOBase, reading: PartitionReading) -> Read | None:
    try:
        send(file, reading)
        return receive(file, Read)
    except TimeoutError:
        raise PubSubReaderError(
            f"The Pub/Sub sidecar did not answer a read of batch {reading.batch} within "
            f"{READ_S:g} s. Spark retries the task; look in the executor's log for the cause."
        ) from None
    except OSError:
        return None


def _last_output(path: Path) -> str:
    try:
        text = path.with_suffix(".log").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        text = ""
    return f"Its last output: {text[-2000:]}" if text else "It wrote no output."


def _log(lines: list[LogLine]) -> None:
    """Repeat the sidecar's log records in the executor's log."""
    if lines and not logging.getLogger().handlers:
        logging.basicConfig(
            level=logging.INFO,
            stream=sys.stderr,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
            datefmt="%y/%m/%d %H:%M:%S",
        )
    for line in lines:
        logging.getLogger(line.logger).log(line.level, "%s", line.text)
