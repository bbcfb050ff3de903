"""Asks a cluster and checkpoints for everything a lag report needs.

Ends are asked for last: the other way round a query that runs on could seem to be ahead of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from epochal.checkpoint import Checkpoint
from epochal.connectors.kafka.committer.follow_checkpoint import (
    kafka_places,
    query_id_of,
    read_position,
)
from epochal.connectors.kafka.committer.lag import PartitionLag, lag_of, seconds_behind, waiting
from epochal.connectors.kafka.kafka_client import KafkaClient
from epochal.connectors.kafka.offsets import Place


@dataclass(frozen=True, slots=True)
class Subject:
    """A query, by its checkpoint, or a group, or both together."""

    checkpoint: Checkpoint | None
    group: str | None


def measure(client: KafkaClient, subjects: Sequence[Subject], now_ms: int) -> list[PartitionLag]:
    """The lag of every partition of these queries and groups."""
    lags: list[PartitionLag] = []
    for subject in subjects:
        query_id: str | None = None
        processed: dict[Place, int] | None = None
        if subject.checkpoint is not None:
            query_id = query_id_of(subject.checkpoint)
            position = read_position(subject.checkpoint, query_id)
            processed = {} if position is None else kafka_places(position)
        held = {} if subject.group is None else client.held(subject.group)
        if processed:  # a group may hold more than this query's topics
            topics = {topic for topic, _ in processed}
            held = {place: value for place, value in held.items() if place[0] in topics}
        places = _places(client, {*held, *(processed or {})})
        lags += lag_of(
            query=query_id,
            group=subject.group,
            held=held,
            processed=processed,
            earliest=client.earliest(places),
            latest=client.latest(places),
        )
    ages = client.timestamps_ms(found) if (found := waiting(lags)) else {}
    return [replace(lag, seconds=seconds_behind(lag, ages, now_ms)) for lag in lags]


def _places(client: KafkaClient, known: Iterable[Place]) -> list[Place]:
    """The partitions there are now, of all topics that are known: some may be new."""
    return client.partitions({topic for topic, _ in known})
