"""A Kafka cluster of groups only, in memory, that can be told to fail."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from tests.waiting import SECONDS

from epochal.connectors.kafka.commit_rules import Held
from epochal.connectors.kafka.offsets import Cluster, Place, Want
from epochal.errors import GroupRefusedError, KafkaUnavailableError

CLUSTER = Cluster.of({"bootstrap.servers": "kafka:9092"})
QUERY, OTHER = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


class MemoryCluster:
    """What brokers keep of groups, and how often they were asked."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[Place, Held]] = {}
        self.missing: set[Place] = set()
        self.members: set[str] = set()
        self.failing: Exception | None = None
        self.tries = 0
        self.answers = 0
        self.opened = 0
        self.writes: list[tuple[str, dict[Place, int]]] = []
        self.gate = threading.Event()
        """While clear, calls wait: a broker that is paused."""
        self.gate.set()

    def open(self, cluster: Cluster) -> MemoryCluster:
        self.opened += 1
        return self

    def held(self, group: str, places: Iterable[Place] | None = None) -> dict[Place, Held]:
        self.tries += 1
        self.gate.wait(SECONDS)
        self.answers += 1
        if self.failing is not None:
            raise self.failing
        return dict(self.groups.get(group, {}))

    def commit(self, group: str, offsets: Mapping[Place, int], metadata: str) -> list[Place]:
        if group in self.members:
            raise GroupRefusedError("kafka:9092", group, "it has live members")
        self.writes.append((group, dict(offsets)))
        there = self.groups.setdefault(group, {})
        for place, offset in offsets.items():
            if place not in self.missing:
                there[place] = Held(offset, metadata)
        return [place for place in offsets if place in self.missing]

    def offsets(self, group: str) -> dict[Place, int]:
        return {place: held.offset for place, held in self.groups.get(group, {}).items()}

    def goes_down(self) -> None:
        self.failing = KafkaUnavailableError("kafka:9092", "connection refused")

    def comes_back(self) -> None:
        self.failing = None


def want(offset: int, *, query: str = QUERY, group: str = "g", batch: int = 0) -> Want:
    return Want(CLUSTER, group, query, batch, {("t", 0): offset})
