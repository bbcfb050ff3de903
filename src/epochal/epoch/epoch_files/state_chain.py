"""Which files make the state of a decided epoch. Pure.

The state of epoch N is Spark's files at version `published`, and on top of them the epoch files of
all epochs from `published` to N. (Version V is the state before epoch V.) The names of epoch files
follow from epoch, task and attempt, so a chain is described by one run per attempt. The checksums
of a run's last files vouch for the files before them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class EpochRun:
    """Epochs that one attempt decided one after the other."""

    first: int
    last: int
    attempt: int
    checksums: tuple[int, ...]
    """Of the files of the last epoch, by task."""

    @property
    def tasks(self) -> int:
        """How many tasks the attempt had."""
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
        """The version that the chain makes."""
        return self.runs[-1].last + 1 if self.runs else self.published

    @property
    def is_gapless(self) -> bool:
        """Whether every epoch from `published` on is there once."""
        return list(self.epochs) == list(range(self.published, self.version))


def extended(
    before: Sequence[EpochRun],
    *,
    published: int,
    first_epoch: int,
    epoch: int,
    attempt: int,
    checksums: tuple[int, ...],
) -> StateChain:
    """The chain of `epoch`, decided by an attempt that started at `first_epoch` after `before`."""
    older = (
        replace(run, first=max(run.first, published)) for run in before if run.last >= published
    )
    own = EpochRun(max(first_epoch, published), epoch, attempt, checksums)
    return StateChain(published, (*older, own))


def is_stray(name: tuple[int, int, int], attempt: int, first_epoch: int) -> bool:
    """Whether an epoch file can be named by no decision, now that `attempt` has decided an epoch.

    Files of earlier attempts may belong to decisions before `first_epoch`, so those stay. From
    `first_epoch` on, only this attempt and later ones decide.
    """
    epoch, _, written_by = name
    return epoch >= first_epoch and written_by < attempt
