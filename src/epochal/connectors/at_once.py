"""The driver's side of a sink whose rows are out as soon as a task has prepared them.

What a reader would get wrong: `decided` says no for every epoch, also for one whose rows are all
out. The sink keeps no record of epochs; whether one is history is for the logs alone to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from epochal.connectors.contract import WriterFactory


class AtOnceSink:
    """At least once: there is nothing left to commit, and nobody to shut out."""

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
