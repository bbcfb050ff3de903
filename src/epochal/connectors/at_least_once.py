"""The driver's side of sinks that write their rows immediately: at least once.

Rows are visible as soon as a task has prepared its epoch, so the driver has nothing left to
commit. After a crash the query reads and writes the rows of an undecided epoch again.

Note: `decided` answers False for every epoch, even for one whose rows are all written. Such a sink
keeps no record of epochs, so recovery relies on the checkpoint's logs alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from epochal.connectors.contract import WriterFactory


class AtLeastOnceSink:
    """Opens writers; every other method of the sink contract does nothing."""

    exactly_once = False
    decides = False

    def __init__(self, writers: WriterFactory) -> None:
        self._writers = writers

    @property
    def writers(self) -> WriterFactory:
        return self._writers

    def fence(self, attempt: int) -> None:
        del attempt

    def decided(self, epoch: int) -> bool:
        del epoch
        return False

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        del epoch, messages

    def close(self) -> None:
        pass
