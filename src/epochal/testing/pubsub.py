"""Runs the embedded Pub/Sub server as a separate process, on a free loopback port.

It is a process and not a thread, because Spark's launcher forks and gRPC does not survive a fork.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from epochal.errors import ComponentError
from epochal.testing.server import Server

START_SECONDS = 60
_READY = re.compile(r"^export PUBSUB_EMULATOR_HOST=(\S+)$", re.M)


@dataclass(frozen=True, slots=True)
class PubSubServer:
    """A running server. `address` is the value for PUBSUB_EMULATOR_HOST."""

    address: str
    pid: int

    def environment(self) -> dict[str, str]:
        """The environment in which Google's clients and the connector find the server."""
        return {"PUBSUB_EMULATOR_HOST": self.address}


@contextmanager
def running_server(*options: str) -> Iterator[PubSubServer]:
    """Start an empty server. It ends at the end of the block.

    `options` are those of `epochal pubsub serve`.
    """
    with tempfile.TemporaryDirectory(prefix="epochal-pubsub-") as folder:
        log = Path(folder, "pubsub.log")
        command = [sys.executable, "-m", "epochal"]
        command += ["pubsub", "serve", "--port", "0", *options]
        with Server("The Pub/Sub server", command, log=log) as server:
            server.wait_until(lambda: _address(log) is not None, seconds=START_SECONDS)
            address = _address(log)
            if address is None:
                raise ComponentError(f"The Pub/Sub server did not print its address. {server}")
            yield PubSubServer(address, server.pid)


def _address(log: Path) -> str | None:
    match = _READY.search(log.read_text(encoding="utf-8"))
    return match[1] if match else None
