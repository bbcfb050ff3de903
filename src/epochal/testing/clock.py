"""A clock that moves only when a test advances it."""

from __future__ import annotations


class ManualClock:
    """Starts at `now_ms`. Only `sleep`, `advance` and `step` move it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def uptime(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock forward by `seconds`, without waiting."""
        self._now_ms += round(seconds * 1000)
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Set the wall time forward, or back, as an administrator or NTP does."""
        self._now_ms += round(seconds * 1000)
