"""A clock that is passed as an argument, so that tests and simulations can control time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for timestamps that are stored, monotonic time for timeouts, uptime for claims."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards."""
        ...

    def uptime(self) -> float:
        """Seconds that nobody can set, and that go on while the machine is suspended."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        ...


_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's monotonic clock stops during a suspension, its boot clock does not. Where there is no
boot clock (macOS), the system's monotonic clock goes on."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def uptime(self) -> float:
        return time.clock_gettime(_UPTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Interval:
    """Says when something is to be done again: at most once in so many seconds."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds, self._clock = seconds, clock
        self._last = clock.monotonic()

    def is_due(self) -> bool:
        """Whether the time is up. If so, it begins again."""
        now = self._clock.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True
