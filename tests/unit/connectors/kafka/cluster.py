"""An in-memory Kafka cluster with consumer groups only; tests can make it fail."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from tests.waiting import SECONDS

from epochal.connectors.kafka.offsets import Cluster, CommitRequest, CommittedOffset, KafkaPartition
from epochal.errors import GroupRefusedError, KafkaUnavailableError

CLUSTER = Cluster.of({"bootstrap.servers": "kafka:9092"})
QUERY, OTHER = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"


class MemoryCluster:
    """The groups' offsets, and how often they were requested."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[KafkaPartition, CommittedOffset]] = {}
        self.missing: set[KafkaPartition] = set()
        self.members: set[str] = set()
        self.failing: Exception | None = None
        self.tries = 0
        self.answers = 0
        self.opened = 0
        self.writes: list[tuple[str, dict[KafkaPartition, int]]] = []
        self.gate = threading.Event()
        """While clear, calls wait, as with a paused broker."""
        self.gate.set()

    def open(self, cluster: Cluster) -> Any:
        self.opened += 1
        return self

    def committed_offsets(
        self, group: str, partitions: Iterable[KafkaPartition] | None = None
    ) -> dict[KafkaPartition, CommittedOffset]:
        self.tries += 1
        self.gate.wait(SECONDS)
        self.answers += 1
        if self.failing is not None:
            raise self.failing
        return dict(self.groups.get(group, {}))

    def commit(
        self, group: str, offsets: Mapping[KafkaPartition, int], metadata: str
    ) -> list[KafkaPartition]:
        if group in self.members:
            raise GroupRefusedError("kafka:9092", group, "it has live members")
        self.writes.append((group, dict(offsets)))
        there = self.groups.setdefault(group, {})
        for tp, offset in offsets.items():
            if tp not in self.missing:
                there[tp] = CommittedOffset(offset, metadata)
        return [tp for tp in offsets if tp in self.missing]

    def offsets(self, group: str) -> dict[KafkaPartition, int]:
        return {tp: found.offset for tp, found in self.groups.get(group, {}).items()}

    def goes_down(self) -> None:
        self.failing = KafkaUnavailableError("kafka:9092", "connection refused")

    def comes_back(self) -> None:
        self.failing = None


def commit_request(
    offset: int, *, query: str = QUERY, group: str = "g", batch: int = 0
) -> CommitRequest:
    return CommitRequest(CLUSTER, group, query, batch, {("t", 0): offset})


class Query:
    """The events of a query, in the shape that PySpark gives them."""

    def __init__(self, name: str | None = None) -> None:
        self.id, self.name = uuid.uuid4(), name
        self.runId = uuid.uuid4()

    def started(self) -> SimpleNamespace:
        return SimpleNamespace(id=self.id, runId=self.runId, name=self.name, timestamp="")

    def progress(self, *offsets: int, batch: int = 0, topic: str = "t") -> SimpleNamespace:
        ends = [json.dumps({topic: {"0": offset}}) for offset in offsets]
        progress = SimpleNamespace(
            id=self.id,
            runId=self.runId,
            name=self.name,
            batchId=batch,
            sources=[SimpleNamespace(endOffset=end) for end in ends],
        )
        return SimpleNamespace(progress=progress)

    def ended(self) -> SimpleNamespace:
        return SimpleNamespace(id=self.id, runId=self.runId, exception=None)
