"""How far a query is behind: what its group holds, what it has processed, where the log ends. Pure.

`lag` counts from what was *processed* where a checkpoint tells it, else from what is committed;
`committed_lag` is what Kafka's own tools print. The two differ while a commit is under way, and
where nobody commits for the query at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from epochal.connectors.kafka.commit_rules import Held
from epochal.connectors.kafka.offsets import Mark, Place


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition of one query or group; None where nobody knows."""

    query: str | None
    group: str | None
    topic: str
    partition: int
    committed: int | None
    processed: int | None
    earliest: int | None
    latest: int | None
    seconds: float | None = None
    """How long the oldest record that waits has been there; 0 if none waits."""

    @property
    def position(self) -> int | None:
        return self.committed if self.processed is None else self.processed

    @property
    def lag(self) -> int | None:
        """Records that wait, from the best known position on."""
        return _behind(self.latest, self.position)

    @property
    def committed_lag(self) -> int | None:
        return _behind(self.latest, self.committed)

    @property
    def processed_lag(self) -> int | None:
        return _behind(self.latest, self.processed)

    def as_json(self) -> dict[str, object]:
        """The form that `epochal kafka lag --json` promises."""
        return {
            "query": self.query,
            "group": self.group,
            "topic": self.topic,
            "partition": self.partition,
            "committed": self.committed,
            "processed": self.processed,
            "earliest": self.earliest,
            "latest": self.latest,
            "lag": self.lag,
            "committed_lag": self.committed_lag,
            "lag_seconds": self.seconds,
        }


def _behind(latest: int | None, position: int | None) -> int | None:
    # A recreated topic ends before the position it had: nothing of it can be waiting.
    return None if latest is None or position is None else max(0, latest - position)


def lag_of(
    *,
    query: str | None,
    group: str | None,
    held: Mapping[Place, Held],
    processed: Mapping[Place, int] | None,
    earliest: Mapping[Place, int],
    latest: Mapping[Place, int],
) -> list[PartitionLag]:
    """One line per partition that the group, the checkpoint or the topics know."""
    places = sorted({*held, *(processed or {}), *latest})
    marks = {place: Mark.parse(held[place].metadata) for place in held}
    return [
        PartitionLag(
            query or (mark.query_id if (mark := marks.get(place)) else None),
            group,
            place[0],
            place[1],
            held[place].offset if place in held else None,
            None if processed is None else processed.get(place),
            earliest.get(place),
            latest.get(place),
        )
        for place in places
    ]


def waiting(lags: list[PartitionLag]) -> dict[Place, int]:
    """Where the oldest waiting record of each partition is, for those that have one."""
    return {
        (lag.topic, lag.partition): max(lag.position, lag.earliest or 0)
        for lag in lags
        if lag.position is not None and lag.lag
    }


def seconds_behind(
    lag: PartitionLag, timestamps_ms: Mapping[Place, int | None], now_ms: int
) -> float | None:
    """The age of the oldest waiting record; 0 if none waits, None if it cannot be told."""
    if lag.lag is None:
        return None
    if lag.lag == 0:
        return 0.0
    place = (lag.topic, lag.partition)
    if place not in timestamps_ms:
        return None
    moment = timestamps_ms[place]
    # None: only markers of transactions were left, which no query will ever read.
    return 0.0 if moment is None else max(0, now_ms - moment) / 1000
