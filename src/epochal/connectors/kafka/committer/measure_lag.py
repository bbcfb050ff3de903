"""Collects everything a lag report needs from a cluster and from checkpoints.

Note: the end offsets must be read last. Otherwise a running query could seem to be ahead of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from epochal.checkpoint import Checkpoint
from epochal.connectors.kafka.committer.follow_checkpoint import (
    kafka_offsets,
    query_id_of,
    read_position,
)
from epochal.connectors.kafka.committer.lag import PartitionLag, lag_of, seconds_behind, waiting
from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.connectors.kafka.offsets import KafkaPartition


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
        processed: dict[KafkaPartition, int] | None = None
        if target.checkpoint is not None:
            query_id = query_id_of(target.checkpoint)
            position = read_position(target.checkpoint, query_id)
            processed = {} if position is None else kafka_offsets(position)
        committed = {} if target.group is None else client.committed_offsets(target.group)
        if processed:  # a group may also have offsets for topics that the query does not read
            topics = {topic for topic, _ in processed}
            committed = {tp: value for tp, value in committed.items() if tp[0] in topics}
        # Ask for all partitions of the known topics: some may be new.
        topics = {topic for topic, _ in (*committed, *(processed or {}))}
        partitions = client.partitions(topics)
        lags += lag_of(
            query=query_id,
            group=target.group,
            committed=committed,
            processed=processed,
            earliest=client.earliest(partitions),
            latest=client.latest(partitions),
        )
    oldest = waiting(lags)
    timestamps_ms = client.timestamps_ms(oldest) if oldest else {}
    return [replace(lag, seconds=seconds_behind(lag, timestamps_ms, now_ms)) for lag in lags]
