"""Writes numbered rows to the soak's topic at a steady rate, whatever happens to the broker."""

from __future__ import annotations

import threading
import time
from typing import Any

from benchmarks.soak.releases import KEYS
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

FLUSH_SECONDS = 300.0
TURN_SECONDS = 0.02


class Feeder:
    """A thread that writes 0, 1, 2, … with the time at which each row was due."""

    def __init__(self, servers: str, topic: str, rows_per_second: int, partitions: int) -> None:
        self.count, self.partitions, self.failure = 0, partitions, ""
        self._servers, self._topic, self._rate = servers, topic, rows_per_second
        self._ending = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "log_level": "0",
                "message.timeout.ms": "600000",
                "topic.metadata.refresh.interval.ms": "2000",
            }
        )
        self._thread = threading.Thread(target=self._keep_feeding, daemon=True, name="feeder")

    def start(self) -> None:
        self._thread.start()

    def end(self) -> int:
        """Stop; return the number of rows that the broker has."""
        self._ending.set()
        self._thread.join()
        left = self._producer.flush(FLUSH_SECONDS)
        if left or self.failure:
            raise SystemExit(f"the broker did not take {left} rows: {self.failure}")
        return self.count

    def add_partition(self) -> int:
        """Add a partition to the topic; return how many there are then."""
        client = AdminClient({"bootstrap.servers": self._servers, "log_level": "0"})
        self.partitions += 1
        for made in client.create_partitions(
            [NewPartitions(self._topic, self.partitions)]
        ).values():
            made.result(FLUSH_SECONDS)
        return self.partitions

    def _keep_feeding(self) -> None:
        try:
            self._feed()
        except Exception as error:  # noqa: BLE001  the soak ends with it
            self.failure = repr(error)

    def _feed(self) -> None:
        began = time.monotonic_ns()
        while not self._ending.wait(TURN_SECONDS):
            due = began + self.count * 10**9 // self._rate
            while due <= time.monotonic_ns():
                self._write(due)
                due = began + self.count * 10**9 // self._rate
            self._producer.poll(0)

    def _write(self, due: int) -> None:
        row, key = f"{self.count},{due}".encode(), str(self.count % KEYS).encode()
        while True:
            try:
                self._producer.produce(self._topic, row, key, on_delivery=self._delivered)
                break
            except BufferError:  # the broker has been away for long; wait for it
                self._producer.poll(0.1)
        self.count += 1

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failure = str(error)
