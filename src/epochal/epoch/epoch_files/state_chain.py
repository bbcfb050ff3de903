"""Which files make the state of a decided epoch, when they are published and deleted. Pure.

The state of epoch N is Spark's files at version `published`, and on top of them the epoch files of
all epochs from `published` to N. (Version V is the state before epoch V.) The names of epoch files
follow from epoch, task and attempt, so a chain is described by one run per attempt. The checksums
of a run's last files vouch for the files before them.

The driver orders the tasks to publish the state of a committed epoch: to write it under Spark's
names. When all tasks have done it, the next decision may start its chain there: it names the
version as `published`. Never before, as otherwise a crash could leave a decision that names a
version of which some stores have no file.

What may be deleted follows from the decisions that are retained for a rewind:

- The *floor* is the lowest version that one of them starts from. Files of Spark's below it, and
  epoch files of epochs below it, are no longer needed.
- A log entry goes when it is beyond the retention and not needed by the floor.
- A *stray* epoch file is named by no decision and never will be. It may be deleted only after this
  attempt has decided an epoch. Until then, a driver that was fenced a moment ago can still win the
  race for that epoch's offset entry, and the epoch would need its files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

REST = 9
"""After a publication the tasks rest for this many times its length, if that is longer than the
interval. So they spend at most a tenth of their time on it, however large the state is."""


class EpochRun(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Epochs that one attempt decided one after the other."""

    first: int
    last: int
    attempt: int
    checksums: tuple[int, ...]
    """Of the files of the last epoch, by task."""

    @property
    def tasks(self) -> int:
        return len(self.checksums)


@dataclass(frozen=True, slots=True)
class StateChain:
    """What the state of one decided epoch consists of."""

    published: int
    """The version of Spark's files to start from."""
    runs: tuple[EpochRun, ...] = ()

    @property
    def epochs(self) -> Iterator[int]:
        """The epochs whose files are needed, in order."""
        for run in self.runs:
            yield from range(run.first, run.last + 1)

    @property
    def version(self) -> int:
        return self.runs[-1].last + 1 if self.runs else self.published

    @property
    def is_gapless(self) -> bool:
        """Whether every epoch from `published` on is there once."""
        return list(self.epochs) == list(range(self.published, self.version))


def extended(before: Sequence[EpochRun], own: EpochRun, published: int) -> StateChain:
    """The chain of the newest epoch of `own`, decided by an attempt that started after `before`."""
    runs = [
        msgspec.structs.replace(run, first=max(run.first, published))
        for run in (*before, own)
        if run.last >= published
    ]
    return StateChain(published, tuple(runs))


def is_stray(name: tuple[int, int, int], attempt: int, first_epoch: int) -> bool:
    """Whether an epoch file can be named by no decision, now that `attempt` has decided an epoch.

    Files of earlier attempts may belong to decisions before `first_epoch`, so those stay. From
    `first_epoch` on, only this attempt and later ones decide.
    """
    epoch, _, written_by = name
    return epoch >= first_epoch and written_by < attempt


def is_below(name: tuple[int, int, int], floor: int) -> bool:
    """Whether no epoch that a restart or a rewind may use needs an epoch file: `floor` is the first
    epoch that one of them needs."""
    return name[0] < floor


def oldest_retained(logged: Sequence[int], first_epoch: int, retained: int) -> int:
    """Return the oldest logged epoch that a rewind of an attempt, before its first epoch, may use.

    The log may have older entries. They do not count: otherwise a query that restarts before it
    has committed as many epochs as are retained would never delete anything.
    """
    older = [epoch for epoch in logged if epoch <= first_epoch - retained]
    return older[-1] if older else logged[0]


def first_needed_entry(epoch: int, floor: int, retained: int, *, is_stateful: bool) -> int:
    """Return the lowest epoch whose log entries are needed, now that `epoch` is committed."""
    oldest = epoch + 1 - retained
    # The commit before the version at the floor stays: it may name the version's files.
    return min(oldest, floor - 1) if is_stateful else oldest


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
