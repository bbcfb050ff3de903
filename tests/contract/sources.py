"""Worlds for the contract of sources: how to open one, feed it, and know its end."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from tests.kafka_topics import create_topics
from tests.spark.sessions import local_session
from tests.waiting import SECONDS

from epochal.connectors.contract import Positions, Source, SourceReader
from epochal.connectors.file.file_source import FileSource, FileSourceOptions
from epochal.connectors.generator import GeneratorSource
from epochal.connectors.kafka.source.kafka_source import KafkaSource
from epochal.connectors.kafka.source.source_options import read_source_options
from epochal.connectors.memory import MemoryStream
from epochal.connectors.rate import RateOptions, RateSource
from epochal.connectors.registry import FILE_FORMATS
from epochal.files.local import LocalFiles
from epochal.testing.clock import ManualClock
from epochal.testing.files import MemoryFiles
from epochal.testing.kafka import Kafka

NUMBERS = pa.schema([pa.field("n", pa.int64())])


class World(Protocol):
    """A source that a test can feed."""

    def open(self) -> Source:
        """The driver's side, over what the world has kept."""
        ...

    def feed(self, source: Source) -> None:
        """Let more rows be there."""
        ...

    def end(self, source: Source) -> Positions:
        """Where everything fed so far has been read."""
        ...


@dataclass
class RateWorld:
    tmp: Path
    clock: ManualClock = field(default_factory=ManualClock)
    files: MemoryFiles = field(default_factory=MemoryFiles)

    def open(self) -> Source:
        options = RateOptions(rows_per_second=7, num_partitions=3)
        return RateSource(options, self.files, 0, clock=self.clock)

    def feed(self, source: Source) -> None:
        self.clock.advance(3.3)

    def end(self, source: Source) -> Positions:
        latest = source.latest()
        assert latest is not None
        return latest


class MemoryWorld:
    def __init__(self, tmp: Path) -> None:
        self._stream = MemoryStream(NUMBERS, partitions=2, directory=str(tmp / "rows"))
        self._next = 0

    def open(self) -> Source:
        return self._stream

    def feed(self, source: Source) -> None:
        for _ in range(3):
            self._stream.add([{"n": n} for n in range(self._next, self._next + 5)])
            self._next += 5

    def end(self, source: Source) -> Positions:
        return self._stream.latest()


def up_to(limits: dict[str, int], partition: int, start: int) -> Iterator[pa.RecordBatch | None]:
    """Numbers of a partition, as far as the dictionary allows, in batches of four."""
    while True:
        end = min(start + 4, limits["rows"])
        if start < end:
            numbers = [10 * n + partition for n in range(start, end)]
            yield pa.record_batch([pa.array(numbers, pa.int64())], schema=NUMBERS)
            start = end
        else:
            yield None


class GeneratorWorld:
    def __init__(self, tmp: Path) -> None:
        self._limits = {"rows": 0}

    def open(self) -> Source:
        return GeneratorSource(NUMBERS, partial(up_to, self._limits), partitions=2)

    def feed(self, source: Source) -> None:
        self._limits["rows"] += 9

    def end(self, source: Source) -> Positions:
        return {"0": str(self._limits["rows"]), "1": str(self._limits["rows"])}


class FilesWorld:
    """Files of rows, with empty ones among them; one log batch per feed."""

    def __init__(self, tmp: Path, form: str) -> None:
        self._tmp, self._form, self._next = tmp, form, 0
        (tmp / "in").mkdir()

    def open(self) -> Source:
        schema = None if self._form == "text" else NUMBERS
        options = FileSourceOptions(path=str(self._tmp / "in"), num_partitions=2)
        checkpoint = LocalFiles(self._tmp / "checkpoint", durable=False)
        spark = local_session()
        return FileSource(self._form, options, schema, checkpoint, 0, spark=spark, watch=False)

    def feed(self, source: Source) -> None:
        assert isinstance(source, FileSource)
        for count in (4, 0, 7, 1):
            numbers = range(self._next, self._next + count)
            path = self._tmp / "in" / f"f{self._next}-{count}"
            path.write_bytes(file_of(self._form, numbers))
            self._next += count
        assert source.discover_files()

    def end(self, source: Source) -> Positions:
        latest = source.latest()
        assert latest is not None
        return latest


def file_of(form: str, numbers: range) -> bytes:
    match form:
        case "json":
            return "".join(json.dumps({"n": n}) + "\n" for n in numbers).encode()
        case "parquet":
            out = pa.BufferOutputStream()
            pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), out)
            return out.getvalue().to_pybytes()
        case _:
            return "".join(f"{n}\n" for n in numbers).encode()


WORLDS: dict[str, Callable[[Path], World]] = {
    "rate": RateWorld,
    "memory": MemoryWorld,
    "generator": GeneratorWorld,
    **{f"files-{form}": partial(FilesWorld, form=form) for form in FILE_FORMATS},
}


def rows_of(batch: pa.RecordBatch) -> list[Any]:
    return [tuple(row.values()) for row in batch.to_pylist()]


def read_to(reader: SourceReader, end: Positions, *, max_rows: int = 1000) -> list[Any]:
    """All rows up to these positions; a reader with a thread of its own is waited for."""
    rows: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while dict(reader.positions()) != {p: at for p, at in end.items() if p in reader.positions()}:
        batch = reader.read(max_rows)
        if batch is None:
            assert time.monotonic() < deadline, f"{reader.positions()} never became {end}"
            os.sched_yield()
            time.sleep(0.001)  # the reader's thread has nothing yet
        else:
            assert 0 < batch.num_rows <= max_rows
            rows.extend(rows_of(batch))
    return rows


def read_some(reader: SourceReader, count: int, *, max_rows: int) -> list[Any]:
    """At least `count` rows, a few at a time."""
    rows: list[Any] = []
    deadline = time.monotonic() + SECONDS
    while len(rows) < count:
        batch = reader.read(max_rows)
        if batch is None:
            assert time.monotonic() < deadline, f"{len(rows)} rows of {count}"
            time.sleep(0.001)  # the reader's thread has nothing yet
        else:
            assert 0 < batch.num_rows <= max_rows
            rows.extend(rows_of(batch))
    return rows


PARTITIONS = 3


def client_settings(servers: str) -> dict[str, Any]:
    return {"bootstrap.servers": servers, "log_level": "0"}


@cache
def transactional_producer(servers: str) -> Producer:
    """One for all tests: a coordinator takes half a second to let the next one in."""
    own = {"transactional.id": uuid.uuid4().hex, "retry.backoff.ms": "10"}
    producer = Producer(client_settings(servers) | own)
    producer.init_transactions(60)
    return producer


class KafkaWorld:
    """Two topics, one of them with several partitions."""

    def __init__(self, tmp: Path, broker: Kafka) -> None:
        self._tmp, self._broker, self._next = tmp, broker, 0
        name = uuid.uuid4().hex[:8]
        self._places = [(f"many-{name}", n) for n in range(PARTITIONS)] + [(f"one-{name}", 0)]
        sizes = {f"many-{name}": PARTITIONS, f"one-{name}": 1}
        create_topics(broker.bootstrap_servers, sizes)
        self._producer = self._new_producer()

    def open(self) -> Source:
        checkpoint = LocalFiles(self._tmp / "checkpoint", durable=False)
        return KafkaSource(read_source_options(self._options()), checkpoint, 0)

    def feed(self, source: Source) -> None:
        self._produce(7)

    def end(self, source: Source) -> Positions:
        latest = source.latest()
        assert latest is not None
        return latest

    def _options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._broker.bootstrap_servers,
            "subscribe": ",".join(sorted({topic for topic, _ in self._places})),
            "startingOffsets": "earliest",
        }

    def _new_producer(self) -> Producer:
        return Producer(client_settings(self._broker.bootstrap_servers))

    def _produce(self, count: int) -> None:
        """So many records into each partition but the last, which gets a third."""
        for topic, partition in self._places:
            for _ in range(count // 3 if (topic, partition) == self._places[-1] else count):
                number = str(self._next).encode()
                self._producer.produce(topic, number, key=b"k", partition=partition)
                self._next += 1
        assert self._producer.flush(60) == 0


class TransactionsWorld(KafkaWorld):
    """Most records are of transactions, some of them aborted: offsets have holes."""

    def __init__(self, tmp: Path, broker: Kafka) -> None:
        super().__init__(tmp, broker)
        self._admin = AdminClient(client_settings(broker.bootstrap_servers))

    def _new_producer(self) -> Producer:
        return transactional_producer(self._broker.bootstrap_servers)

    def feed(self, source: Source) -> None:
        for commit in (True, False):
            self._producer.begin_transaction()
            self._produce(4)
            if commit:
                self._producer.commit_transaction(60)
            else:
                self._producer.abort_transaction(60)
        self._until_marked()

    def _until_marked(self) -> None:
        """Wait for the markers: the coordinator answers before it has written them everywhere."""
        deadline = time.monotonic() + 30
        while self._ends(IsolationLevel.READ_COMMITTED) != self._ends(
            IsolationLevel.READ_UNCOMMITTED
        ):
            assert time.monotonic() < deadline, "a transaction is still open"
            time.sleep(0.01)  # between two looks

    def _ends(self, isolation: IsolationLevel) -> dict[tuple[str, int], int]:
        asked = {TopicPartition(*place): OffsetSpec.latest() for place in self._places}
        found = self._admin.list_offsets(asked, isolation_level=isolation)
        return {(each.topic, each.partition): found[each].result(30).offset for each in asked}

    def _options(self) -> dict[str, str]:
        return super()._options() | {"kafka.isolation.level": "read_committed"}


KAFKA_WORLDS: dict[str, Callable[[Path, Kafka], World]] = {
    "kafka": KafkaWorld,
    "kafka-transactions": TransactionsWorld,
}
