"""Produces and consumes the records of `benchmarks.kafka`, and measures them.

A record's value starts with the time at which it was due, in nanoseconds; every engine keeps it.

Note: that is the time when the record was due, not when the client received it. A producer that
cannot keep up therefore shows as delay, not as fewer records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.harness import cpu_seconds
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

SECOND = 1_000_000_000
STAMP_DIGITS = 19
FILLER = b"x" * 81
KEYS = tuple(b"key-%04d" % number for number in range(1_000))
PARTITIONS = 2
START_SECONDS = 120.0
WARM, WARM_RATE = ("warm", "warm-transactions"), 4_000
PATIENCE_SECONDS = 10.0


def create_topics(servers: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(name, PARTITIONS) for name in names]).values():
        made.result(30)


@dataclass
class Load:
    """Feeds a topic: occasional records until `runs` is set, then `rate` per second."""

    servers: str
    topic: str
    rate: int
    payloads: Sequence[bytes] = (FILLER,)
    keys: Sequence[bytes] = KEYS
    compression: str = "none"

    def __post_init__(self) -> None:
        self.runs, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _feed(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.servers,
                "linger.ms": 0,
                "compression.type": self.compression,
            }
        )
        number = 0
        while not self.runs.wait(0.2) and not self._stop.is_set():
            # Every partition gets records: some engines start only when all have some.
            for partition in range(PARTITIONS):
                self._send(producer, time.time_ns(), number, partition)
            producer.poll(0)
        start, sent = time.time_ns(), 0
        while not self._stop.wait(0.001):
            due = (time.time_ns() - start) * self.rate // SECOND
            for number in range(sent, due):
                self._send(producer, start + number * SECOND // self.rate, number)
            sent = due
            producer.poll(0)
        producer.flush(10)

    def _send(self, producer: Any, stamp: int, number: int, partition: int = -1) -> None:
        key = self.keys[number * 7919 % len(self.keys)]
        payload = self.payloads[number * 7919 % len(self.payloads)]
        producer.produce(self.topic, b"%d%s" % (stamp, payload), key, partition)


def delays(
    load: Load,
    target: str,
    *,
    warm_up_seconds: float,
    measured_seconds: float,
    alive: Callable[[], None],
) -> dict[str, Any]:
    """Percentiles of the time from when records were due to their receipt. It ends the load."""
    consumer = Consumer(
        {
            "bootstrap.servers": load.servers,
            "group.id": "witness",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.assign([TopicPartition(target, number, OFFSET_END) for number in range(PARTITIONS)])
    try:
        _wait_for_first(consumer, alive)
        load.runs.set()
        begin = time.time_ns() + int(warm_up_seconds * SECOND)
        end = begin + int(measured_seconds * SECOND)
        wanted, found = load.rate * measured_seconds, 0
        parts: list[Any] = []
        while time.time_ns() < end or found < wanted:
            if time.time_ns() > end + PATIENCE_SECONDS * SECOND:
                break
            taken = _taken(consumer)
            now = time.time_ns()
            stamps = np.array([int(each.value()[:STAMP_DIGITS]) for each in taken], np.int64)
            stamps = stamps[(stamps >= begin) & (stamps < end)]
            parts.append((now - stamps) / 1e6)
            found += len(stamps)
    finally:
        load.stop()
        consumer.close()
    alive()
    return _percentiles(np.concatenate(parts), int(wanted))


def _wait_for_first(consumer: Any, alive: Callable[[], None]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _taken(consumer):
        alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no record came out within {START_SECONDS:g} s")


def _taken(consumer: Any) -> list[Any]:
    """Wait until there is at least one record, then return all that are there."""
    first = consumer.poll(0.1)
    if first is None:
        return []
    return [each for each in (first, *consumer.consume(2_000, 0)) if each.error() is None]


def _percentiles(delays_ms: Any, wanted: int) -> dict[str, Any]:
    if not len(delays_ms):
        return {"rows": 0, "missing": wanted}
    percents = [50, 90, 95, 99, 99.9]
    missing = max(0, wanted - len(delays_ms))
    return {
        "rows": len(delays_ms),
        "missing": missing,
        **{
            f"p{percent:g}_ms": float(found)
            for percent, found in zip(percents, np.percentile(delays_ms, percents), strict=True)
        },
    }


def warm(servers: str, seconds: float) -> None:
    """Keep a broker busy with small requests of every kind that engines send."""
    create_topics(servers, "warm", "warm-transactions")
    load = Load(servers, "warm", WARM_RATE)
    load.runs.set()
    settings = {"bootstrap.servers": servers, "transactional.id": "warm"}
    producer = Producer(settings)
    producer.init_transactions(30)
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "warm", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(name, n, 0) for name in WARM for n in range(PARTITIONS)])
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            producer.begin_transaction()
            for number in range(20):
                producer.produce("warm-transactions", FILLER, KEYS[number])
            producer.commit_transaction(30)
            consumer.consume(5_000, 0.02)
    finally:
        load.stop()
        consumer.close()


def fill(servers: str, topic: str, count: int) -> None:
    """Put `count` records into a topic."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
    value, stamp = FILLER, time.time_ns()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, b"%d%s" % (stamp, value), KEYS[number % len(KEYS)])
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush(60)


def throughput(
    servers: str,
    target: str,
    count: int,
    pid: int,
    *,
    warm_up_seconds: float,
    measured_seconds: float,
    alive: Callable[[], None],
) -> dict[str, Any]:
    """Records that arrive in a topic, per second and per CPU-second of the engine."""
    admin = AdminClient({"bootstrap.servers": servers})
    deadline = time.monotonic() + START_SECONDS
    while _arrived(admin, target) == 0:
        alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no record came out within {START_SECONDS:g} s")
        time.sleep(0.05)
    time.sleep(warm_up_seconds)
    samples = [(time.monotonic(), _arrived(admin, target), cpu_seconds(pid))]
    while samples[-1][0] < samples[0][0] + measured_seconds:
        time.sleep(0.5)
        now = (time.monotonic(), _arrived(admin, target), cpu_seconds(pid))
        if now[1] >= count:
            break  # it has processed all records and is idle
        samples.append(now)
    alive()
    (start, first, cpu), (end, last, cpu_end) = samples[0], samples[-1]
    if len(samples) < 3:
        return {"rows": last, "failed": f"{count} records were too few to measure"}
    return {
        "rows": last - first,
        "rows_per_second": (last - first) / (end - start),
        "cores_used": (cpu_end - cpu) / (end - start),
        "rows_per_cpu_second": (last - first) / (cpu_end - cpu),
    }


def _arrived(admin: Any, topic: str) -> int:
    asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(PARTITIONS)}
    return sum(each.result(30).offset for each in admin.list_offsets(asked).values())
