"""Who acknowledges a committed epoch to a source: the driver, or the tasks that read it. Pure.

Every source declares `acknowledges_in_tasks` (see `connectors.contract.Source`). Only the function
below turns these declarations into a decision; the driver, the plan and so the tasks call it.

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

from collections.abc import Iterable

from epochal.epoch.contract import LoggedSource


def acknowledged_in_tasks(sources: Iterable[LoggedSource]) -> tuple[bool, ...]:
    """Return, per source, whether its readers in the tasks acknowledge; else the driver does."""
    return tuple(source.acknowledges_in_tasks for source in sources)
