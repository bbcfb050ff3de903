"""Keeps answers that are expensive to compute, so that open pages do not burden a checkpoint.

The longer an answer took, the longer it is kept: only a share of the time is spent on computing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from epochal.clock import Clock

MIN_SECONDS = 1.0
MAX_KEPT = 64


@dataclass(slots=True)
class KeptAnswers:
    """Answers of one kind, by name. Any number of threads may ask."""

    clock: Clock
    share: float = 0.1
    """The share of the time to spend on computing."""
    _kept: dict[Hashable, tuple[float, dict[str, Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, name: Hashable, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the kept answer of this name, or compute it if it is too old."""
        with self._lock:  # a second page waits for the answer instead of computing it too
            until, found = self._kept.get(name, (0.0, {}))
            now = self.clock.monotonic()
            if now < until:
                return found
            found = compute()
            took = self.clock.monotonic() - now
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            self._kept[name] = (now + took + max(MIN_SECONDS, took / self.share), found)
            return found
