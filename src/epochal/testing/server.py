"""Starts a server as a separate process, waits until it is ready, and ends it.

A pipe connects this process with the server. When this process ends in any way, even by `kill -9`,
the pipe closes and the server is killed, so no test run leaves a server behind.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from epochal.errors import ComponentError

# A background shell waits for the end of the pipe and kills the server, $$. It stays in the
# server's process group. While the group exists, the system does not reuse the process id $$, so
# the kill cannot hit another process.
_KILL_WITH_PARENT = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -9 $$) & exec "$@" 3<&-'

PORTS = range(10_000, 32_768)
"""Below those of outgoing connections: from 32768 on Linux, from 49152 elsewhere."""


class Server:
    """A running server that writes its output to `log`. As a context manager, it ends with the
    block."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path) -> None:
        self._name, self._log = name, log
        with open(log, "ab") as out:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _KILL_WITH_PARENT, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Wait until `ready()` is true. Raises, with the end of the log, if the server ends first
        or takes longer than `seconds`."""
        deadline = time.monotonic() + seconds
        while not ready():
            code = self._process.poll()
            if code is not None:
                raise ComponentError(f"{self._name} ended with code {code} during start. {self}")
            if time.monotonic() > deadline:
                raise ComponentError(f"{self._name} was not ready after {seconds:.0f} s. {self}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill the server and its watcher, and wait until it has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __str__(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return f"Its log {self._log} ends:\n" + "\n".join(line[:300] for line in lines[-30:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """A loopback port that is free now. Another server may take it before the caller does.

    It is not one that the system gives to outgoing connections. Otherwise a client could get the
    port of a server that is down for a moment, and the server could not start again.
    """
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
