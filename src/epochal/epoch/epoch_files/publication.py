"""Decides when tasks write their state under Spark's names, and which files are still needed. Pure.

The driver orders the tasks to publish the state of a committed epoch. When all tasks have done it,
the next decision may start its chain there: it names the version as `published`. Never before, as
otherwise a crash could leave a decision that names a version of which some stores have no file.

The floor is the lowest version that a retained decision starts from. Files of Spark's below it, and
epoch files of epochs below it, are no longer needed.
"""

from __future__ import annotations

from collections import deque

REST = 9
"""After a publication the tasks rest for this many times its length, if that is longer than the
interval. So they spend at most a tenth of their time on it, however large the state is."""


class Publication:
    """What is published, what is ordered, and what is needed."""

    def __init__(
        self,
        version: int,
        *,
        floor: int | None = None,
        interval_seconds: float = 10.0,
        retained: int = 100,
        is_stateful: bool = True,
    ) -> None:
        self.version = version
        """The newest version that is complete under Spark's names."""
        self.ordered = -1
        """The epoch whose state the tasks are publishing; -1 if none."""
        self._is_stateful = is_stateful
        self._interval, self._retained = interval_seconds, retained
        self._done: set[int] = set()
        self._since = 0.0
        self._due = 0.0
        self._named = deque([(-1, version if floor is None else min(floor, version))])
        """(epoch, version): from this epoch on, decisions start from this version."""

    @property
    def floor(self) -> int:
        """The lowest version that a retained decision starts from."""
        return self._named[0][1]

    def is_behind(self, committed: int) -> bool:
        """Whether Spark could not go on after the newest committed epoch."""
        return self._is_stateful and self.version <= committed

    def due(self, committed: int) -> float | None:
        """Return when a publication may be ordered; None if it need not or is under way."""
        return self._due if self.ordered < 0 and self.is_behind(committed) else None

    def order(self, committed: int, now: float, *, at_once: bool = False) -> int:
        """Return the epoch whose state the tasks must publish now; -1 for none."""
        is_due = at_once or now >= self._due
        if self.ordered < 0 and is_due and self.is_behind(committed):
            self.ordered, self._since = committed, now
            self._done.clear()
        return self.ordered

    def report(self, task: int, epoch: int, tasks: int, now: float) -> bool:
        """Note that a task has published an epoch's state; return whether all have."""
        if self.ordered < 0 or epoch != self.ordered or not 0 <= task < tasks:
            return False
        self._done.add(task)
        if len(self._done) < tasks:
            return False
        self.version, self.ordered = epoch + 1, -1
        self._due = now + max(self._interval, REST * (now - self._since))
        return True

    def decided(self, epoch: int) -> int:
        """Note a decision; return the version that it starts from."""
        if self._named[-1][1] != self.version:
            self._named.append((epoch, self.version))
        return self.version

    def committed(self, epoch: int) -> None:
        """Note a commit: decisions beyond the retention, counted from here, need nothing more."""
        while len(self._named) > 1 and self._named[1][0] <= epoch + 1 - self._retained:
            self._named.popleft()
