"""Time as an argument: whatever needs it takes a `Clock`, so that tests and simulations own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for what is written down, monotonic time for what is waited for."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
