"""Asks Kafka how far a plain Spark query is behind.

A checkpoint has the offsets that a query has read, but neither the brokers nor the end of the
topics. The user names the brokers; without them the page says what to do.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epochal.checkpoint.directory import Checkpoint
from epochal.clock import Clock
from epochal.dashboard.batch_history import KAFKA, NO_BROKER, EndOffset, with_lag
from epochal.errors import EpochalError
from epochal.files import Files

if TYPE_CHECKING:
    from epochal.connectors.kafka.kafka_client import KafkaClient

REQUEST_SECONDS = 4.0


class LagMeter:
    """Measures the lag of queries on one Kafka cluster. Any number of threads may use it."""

    def __init__(self, settings: Mapping[str, str] | None, clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._client: KafkaClient | None = None
        self._lock = threading.Lock()

    def add_lag(self, files: Files, sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the sources of a query with their lag, or with the reason why it is unknown."""
        ends: dict[tuple[str, int], EndOffset] = {}
        why = None
        if any(each["kind"] == KAFKA for each in sources):
            try:
                ends, why = self._ends(files)
            except (EpochalError, OSError) as error:
                why = str(error)
        return [with_lag(each, ends, why) for each in sources]

    def _ends(self, files: Files) -> tuple[dict[tuple[str, int], EndOffset], str | None]:
        if self._settings is None:
            return {}, NO_BROKER
        from epochal.connectors.kafka.committer.measure_lag import LagTarget, measure

        with self._lock:
            found = measure(
                self._connected(self._settings),
                [LagTarget(Checkpoint(files), None)],
                self._clock.now_ms(),
            )
        ends = {
            (each.topic, each.partition): EndOffset(each.latest, each.seconds)
            for each in found
            if each.latest is not None
        }
        return ends, None

    def _connected(self, settings: Mapping[str, str]) -> KafkaClient:
        from epochal.connectors.kafka.kafka_client import KafkaClient
        from epochal.connectors.kafka.offsets import Cluster

        if self._client is None:
            self._client = KafkaClient(Cluster.of(settings), request_seconds=REQUEST_SECONDS)
        return self._client
