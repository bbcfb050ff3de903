"""What the epoch protocol asks of sources and sinks: a part of `epochal.connectors.contract`.

The protocol is below the connectors in the order of packages, so it cannot import their contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

Positions: TypeAlias = Mapping[str, str]
"""Positions by the id of a source's partition."""


class LoggedSource(Protocol):
    """A source as the driver needs it to log and resume epochs."""

    @property
    def acknowledges_in_tasks(self) -> bool: ...
    def initial(self) -> Positions: ...
    def resume(self, offset: str) -> Positions: ...
    def offset(self, positions: Positions) -> str: ...
    def boundary(self, positions: Positions) -> Positions: ...
    def acknowledge(self, epoch: int, positions: Positions) -> None: ...


class CommittedSink(Protocol):
    """A sink as the driver needs it to commit epochs. It may also have `begin_commit`."""

    @property
    def decides(self) -> bool: ...
    def fence(self, attempt: int) -> None: ...
    def decided(self, epoch: int) -> bool: ...
    def commit(self, epoch: int, messages: Sequence[bytes]) -> None: ...
