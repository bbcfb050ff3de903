"""Waiting for what another thread or process is about to do.

Only a test that fails waits until the deadline, so the deadline is far longer than a busy machine
needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 120.0


def eventually(
    found: Callable[[], T | None],
    what: str | Callable[[], object] = "it did not happen",
    seconds: float = SECONDS,
    *,
    pause: float = 0.01,
) -> T:
    """Call `found` until it returns something true, and return that.

    `what` goes into the failure. A callable is asked for it only then, so it can describe the
    state at the deadline. `pause` is for calls that cost something, such as a request to a broker.
    """
    deadline = time.monotonic() + seconds
    while not (value := found()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what() if callable(what) else what}: not within {seconds:g} s")
        time.sleep(pause)
    return value
