"""Starts a server as a process of its own, waits until it answers, and ends it.

The process hangs on a leash: a pipe from here. When this process ends in any way, `kill -9` too,
the pipe closes and the server is killed, so no test run leaves one behind.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from epochal.errors import ComponentError

# The watcher stays in the server's process group, which keeps the number $$ from being given to
# anybody else: the kill cannot hit a stranger.
_LEASH = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -9 $$) & exec "$@" 3<&-'


class Server:
    """A running server, its output in `log`; as a context manager it ends with the block."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path) -> None:
        self._name, self._log = name, log
        with open(log, "ab") as out:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _LEASH, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Return once `ready()`; an error with the log's last lines if the server will not be."""
        deadline = time.monotonic() + seconds
        while not ready():
            code = self._process.poll()
            if code is not None:
                raise ComponentError(f"{self._name} ended with code {code} as it started. {self}")
            if time.monotonic() > deadline:
                raise ComponentError(f"{self._name} was not ready after {seconds:.0f} s. {self}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill the server and its watcher, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __str__(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return f"Its log, {self._log}, ends:\n" + "\n".join(line[:300] for line in lines[-30:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """A loopback port nobody listens on now; somebody else may take it before you do."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts(host: str, port: int) -> bool:
    """Whether a connection can be made."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
