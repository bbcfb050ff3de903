"""Who acknowledges a committed epoch to a source: the driver, or the tasks that read it. Pure.

Every source declares it, by `acknowledges_in_tasks` in `connectors.contract.Source`. This is the
only place that turns the declarations into a decision; driver and tasks both ask it.

- **The driver acknowledges** (False) where a position is all that the source must hear. After the
  commit the driver calls `Source.acknowledge(epoch, positions)` on a thread of its own. Kafka works
  so: any process may commit the offsets of a consumer group.
- **The tasks acknowledge** (True) where only the connection that received a message can confirm it.
  The driver then adds the newest committed epoch to its messages (`EpochStarted.committed`), and
  each task calls `AcknowledgingReader.committed(epoch)`. Pub/Sub in continuous mode works so.

In both cases the source hears of an epoch only after `commits/e` is written. An acknowledgement
that is lost in a crash is not repeated. The source must tolerate that: Pub/Sub redelivers the
message, and for Kafka the next position includes the lost one.

Note: Pub/Sub in *micro-batch* mode does not come here. Spark runs the batches there, so there is no
epoch driver and no task of ours. The sidecar acknowledges when Spark commits a batch; see
`connectors.pubsub.sidecar.sidecar_feed`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class DeclaringSource(Protocol):
    """The one declaration of a source that matters here."""

    @property
    def acknowledges_in_tasks(self) -> bool: ...


def acknowledged_in_tasks(sources: Iterable[DeclaringSource]) -> tuple[bool, ...]:
    """Return, per source, whether its readers in the tasks acknowledge; else the driver does."""
    return tuple(source.acknowledges_in_tasks for source in sources)
