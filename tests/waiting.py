"""Waits for a condition that another thread or process will make true."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 30.0


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until `holds()` is true; fail after SECONDS."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"the condition did not hold within {SECONDS} s"
        time.sleep(0.005)
