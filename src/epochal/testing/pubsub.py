"""The embedded Pub/Sub server as a process of its own, on a free loopback port.

A process, not a thread: Spark's launcher forks, and gRPC in the forking process does not like it.
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
    """A running server: `address` is what PUBSUB_EMULATOR_HOST has to say."""

    address: str
    pid: int

    def environment(self) -> dict[str, str]:
        """What Google's clients and our connector need to find it."""
        return {"PUBSUB_EMULATOR_HOST": self.address}


@contextmanager
def running_server(*options: str) -> Iterator[PubSubServer]:
    """Start an empty server and end it with the block.

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
                raise ComponentError(f"The Pub/Sub server does not say where it listens. {server}")
            yield PubSubServer(address, server.pid)


def _address(log: Path) -> str | None:
    found = _READY.search(log.read_text(encoding="utf-8"))
    return found[1] if found else None
