"""What the epoch protocol asks of sources and sinks: a part of `epochal.connectors.contract`.

The protocol is below the connectors in the order of packages, so it cannot import their contract.

Who acknowledges a committed epoch to a source? Every source declares `acknowledges_in_tasks`, and
only `acknowledged_in_tasks` turns these declarations into a decision; the driver, the plan and so
the tasks call it.

- **The driver acknowledges** (False) if the source only needs a position. After the commit the
  driver calls `Source.acknowledge(epoch, positions)` on a separate thread. Example: Kafka, where
  any process may commit the offsets of a consumer group.
- **The tasks acknowledge** (True) if only the connection that received a message can confirm it.
  The driver then adds the newest committed epoch to its messages (`EpochStarted.committed`), and
  each task calls `AcknowledgingReader.committed(epoch)`. Example: Pub/Sub in continuous mode.

In both cases the source hears of an epoch only after `commits/e` is written. An acknowledgement
that is lost in a crash is not repeated. The source must tolerate that: Pub/Sub redelivers the
message, and for Kafka the next position includes the lost one.

Note: Pub/Sub in *micro-batch* mode takes a separate path by nature. Spark runs the batches, so
there is neither an epoch driver nor a task of the engine. The sidecar acknowledges when Spark
commits a batch; see `connectors.pubsub.sidecar.sidecar_feed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def acknowledged_in_tasks(sources: Iterable[LoggedSource]) -> tuple[bool, ...]:
    """Return, per source, whether its readers in the tasks acknowledge; else the driver does."""
    return tuple(source.acknowledges_in_tasks for source in sources)
