"""A query's position, read from its checkpoint, and how far it is behind the end of its partitions.

Only batches in `commits/` count: an entry in `offsets/` alone is a plan that may run again. The
running job is not involved.

`lag` counts from the *processed* offset if a checkpoint is given, otherwise from the group's
committed offset. `committed_lag` always counts from the committed offset, as Kafka's own tools do.
The two differ while a commit is in flight, and if nothing commits the query's offsets at all.

Note: a running query purges its logs, so an entry may vanish between listing and reading. Then a
newer batch has been committed, and the next read finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from epochal.checkpoint import Checkpoint
from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.connectors.kafka.offsets import (
    CommittedOffset,
    KafkaPartition,
    Mark,
    Position,
    lowest_offsets,
)
from epochal.errors import CheckpointError, OptionError
from epochal.metrics.query_metrics import records_behind


def query_id_of(checkpoint: Checkpoint) -> str:
    """The query's id, which marks its commits."""
    metadata = checkpoint.metadata()
    if metadata is None:
        raise OptionError(
            f"{checkpoint.url}: The directory has no `metadata` file: it is not a checkpoint, or "
            f"the query has not written it yet. Check the path."
        )
    return metadata.id


def read_position(
    checkpoint: Checkpoint, query_id: str, *, after: Position | None = None
) -> Position | None:
    """The end of the newest finished batch; None if there is none, or if it is still `after`.

    A rewound query is at a batch before `after`, or at another batch of the same number; that
    position is returned, too. So the offsets are compared and not only the number.
    """
    batch_id = checkpoint.commits.latest_batch_id()
    if batch_id is None:
        return None
    entry = checkpoint.offsets.get(batch_id)
    if entry is None:
        newer = checkpoint.commits.latest_batch_id()
        if newer == batch_id:
            raise CheckpointError(
                f"{checkpoint.url}: batch {batch_id} is committed, but there is no offsets/"
                f"{batch_id}, so its end is unknown. Run `epochal checkpoint verify` for details."
            )
        return read_position(checkpoint, query_id, after=after)
    position = Position(query_id, batch_id, tuple(entry.by_source.values()))
    return None if position == after else position


def source_names(checkpoint: Checkpoint, batch_id: int) -> list[str]:
    """The names of the sources, in the order of `Position.ends`."""
    entry = checkpoint.offsets.get(batch_id)
    return [] if entry is None else list(entry.by_source)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of one query or group; unknown values are None."""

    query: str | None
    group: str | None
    topic: str
    partition: int
    committed: int | None
    processed: int | None
    earliest: int | None
    latest: int | None
    seconds: float | None = None
    """The age of the oldest waiting record; 0 if none waits."""

    @property
    def position(self) -> int | None:
        return self.committed if self.processed is None else self.processed

    @property
    def lag(self) -> int | None:
        """The number of waiting records, counted from the best known position."""
        return records_behind(self.position, self.latest)

    @property
    def committed_lag(self) -> int | None:
        return records_behind(self.committed, self.latest)

    @property
    def processed_lag(self) -> int | None:
        return records_behind(self.processed, self.latest)

    def as_json(self) -> dict[str, object]:
        """The documented form of `epochal kafka lag --json`."""
        fields = asdict(self)
        seconds = fields.pop("seconds")
        lags = {"lag": self.lag, "committed_lag": self.committed_lag, "lag_seconds": seconds}
        return {**fields, **lags}


def lag_of(
    *,
    query: str | None,
    group: str | None,
    committed: Mapping[KafkaPartition, CommittedOffset],
    processed: Mapping[KafkaPartition, int],
    earliest: Mapping[KafkaPartition, int],
    latest: Mapping[KafkaPartition, int],
) -> list[PartitionLag]:
    """The lag of every partition that the group, the checkpoint or the topics have."""
    partitions = sorted({*committed, *processed, *latest})
    marks = {tp: Mark.parse(committed[tp].metadata) for tp in committed}
    return [
        PartitionLag(
            query or (mark.query_id if (mark := marks.get(tp)) else None),
            group,
            tp[0],
            tp[1],
            committed[tp].offset if tp in committed else None,
            processed.get(tp),
            earliest.get(tp),
            latest.get(tp),
        )
        for tp in partitions
    ]


def waiting(lags: list[PartitionLag]) -> dict[KafkaPartition, int]:
    """The offset of the oldest waiting record, for each partition that has one."""
    return {
        (lag.topic, lag.partition): max(lag.position, lag.earliest or 0)
        for lag in lags
        if lag.position is not None and lag.lag
    }


def seconds_behind(
    lag: PartitionLag, timestamps_ms: Mapping[KafkaPartition, int | None], now_ms: int
) -> float | None:
    """The age of the oldest waiting record; 0 if none waits, None if unknown."""
    if lag.lag is None:
        return None
    if lag.lag == 0:
        return 0.0
    tp = (lag.topic, lag.partition)
    if tp not in timestamps_ms:
        return None
    moment = timestamps_ms[tp]
    # None: only transaction markers are left, and no query ever reads these.
    return 0.0 if moment is None else max(0, now_ms - moment) / 1000


@dataclass(frozen=True, slots=True)
class LagTarget:
    """What to measure: a query by its checkpoint, a group, or both together."""

    checkpoint: Checkpoint | None
    group: str | None


def measure(client: KafkaClient, targets: Sequence[LagTarget], now_ms: int) -> list[PartitionLag]:
    """The lag of every partition of these queries and groups."""
    lags: list[PartitionLag] = []
    for target in targets:
        query_id: str | None = None
        processed: dict[KafkaPartition, int] = {}
        if target.checkpoint is not None:
            query_id = query_id_of(target.checkpoint)
            position = read_position(target.checkpoint, query_id)
            processed = {} if position is None else lowest_offsets(position.ends)
        committed = {} if target.group is None else client.committed_offsets(target.group)
        if processed:  # a group may also have offsets for topics that the query does not read
            topics = {topic for topic, _ in processed}
            committed = {tp: value for tp, value in committed.items() if tp[0] in topics}
        # Ask for all partitions of the known topics: some may be new.
        partitions = client.partitions({topic for topic, _ in (*committed, *processed)})
        lags += lag_of(
            query=query_id,
            group=target.group,
            committed=committed,
            processed=processed,
            earliest=client.earliest(partitions),
            # Read last: otherwise a running query could seem to be ahead of the end.
            latest=client.latest(partitions),
        )
    oldest = waiting(lags)
    timestamps_ms = client.timestamps_ms(oldest) if oldest else {}
    return [replace(lag, seconds=seconds_behind(lag, timestamps_ms, now_ms)) for lag in lags]
