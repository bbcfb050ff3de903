"""What the epoch protocol asks of sources and sinks: a part of `epochal.connectors.contract`.

The protocol is below the connectors in the order of packages, so it cannot import their contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

Positions: TypeAlias = Mapping[str, str]
"""Positions by the id of a source's partition."""


class LoggedSource(Protocol):
    """A source as the driver needs it to log and resume epochs.

    A class that inherits from it has what is optional, so that it has no effect.
    """

    tells_waiting: bool = False
    """Its readers tell which partitions have rows waiting."""
    lists_together: bool = False
    """What is between two boundaries of its offsets was listed together, and all its partitions
    must have read it before its event times count. Files are like that."""

    @property
    def acknowledges_in_tasks(self) -> bool: ...
    def initial(self) -> Positions: ...
    def resume(self, offset: str) -> Positions: ...
    def offset(self, positions: Positions) -> str: ...
    def boundary(self, positions: Positions) -> Positions: ...
    def acknowledge(self, epoch: int, positions: Positions) -> None: ...

    def latest(self) -> Positions | None:
        return None

    def lag(self, positions: Positions, latest: Positions) -> int:
        del positions, latest
        return 0

    def unit_end(self, at: Positions, latest: Positions) -> Positions:
        """As much of what waits as a unit of event time may have, up to `latest`."""
        del at
        return latest


class CommittedSink(Protocol):
    """A sink as the driver needs it to commit epochs.

    A class that inherits from it has what is optional, so that it has no effect.
    """

    @property
    def decides(self) -> bool: ...
    def fence(self, attempt: int) -> None: ...
    def decided(self, epoch: int) -> bool: ...
    def commit(self, epoch: int, messages: Sequence[bytes]) -> None: ...

    def begin_commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        """Start to write in the background what `commit`, with the same arguments, will complete.

        Called just before the epoch is logged. Nothing may become visible before `commit`, which
        may never follow.
        """
        del epoch, messages
