"""What the comparison needs to know of an output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from epochal.tools.switch.compare_rows import Row


class Output(Protocol):
    """An output that consists of parts, usually files. A part never changes."""

    @property
    def name(self) -> str:
        """What it is, for reports: `Delta table /data/orders`."""
        ...

    @property
    def by_epoch(self) -> bool:
        """Whether it is known which epoch wrote what. If not, only the newest content is."""
        ...

    @property
    def doubt(self) -> str:
        """Why it may not be this query's output; empty if it is."""
        ...

    def parts_at(self, epoch: int) -> frozenset[str] | None:
        """The parts that are visible after an epoch; None if that is not known any more."""
        ...

    def replaces(self, epochs: range) -> bool:
        """Whether one of these epochs has removed parts, and so may have replaced rows."""
        ...

    def rows(self, parts: Iterable[str]) -> Iterator[Row]:
        """The rows in some parts."""
        ...


class WholeOutput:
    """An output of which nobody knows which epoch wrote what, so that it is compared as a whole."""

    by_epoch = False
    doubt = ""

    def parts_at(self, epoch: int) -> frozenset[str] | None:
        del epoch
        return frozenset({"all of it"})

    def replaces(self, epochs: range) -> bool:
        del epochs
        return False
