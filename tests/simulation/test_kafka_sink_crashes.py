"""The real Kafka sink, driver, recovery and logs; Kafka itself is a model of what its transactions
promise: one writer per transactional id, all of a transaction or nothing of it.

A driver dies at any change of storage or of Kafka, or is only thought dead; its last commit may
still be under way and arrive whenever it likes. The rows of an epoch are sent before the epoch is
logged, or after it. Whatever happens, every row is visible once. Faults of design are planted
below, and must be seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pytest
from tests.simulation.epoch_run import TASKS, Disk, Run, live

from epochal.clock import SystemClock
from epochal.connectors.contract import WriterContext
from epochal.connectors.kafka.sink.record_writers import staged_records
from epochal.connectors.kafka.sink.sink_rows import Record, record_plan
from epochal.connectors.kafka.sink.transaction import KAFKA_OUTPUT, Call, KafkaEpochs
from epochal.connectors.staging.deciding_sink import DecidingSink
from epochal.connectors.staging.epoch_marker import Marker
from epochal.errors import EpochalError, KafkaFencedError, KafkaUnavailableError
from epochal.testing.files import Crash, FaultyFiles, MemoryFiles, crash_after

SCHEMA = pa.schema([("value", pa.string())])
REFRESH_SECONDS = 4.0
SEEDS = 40
MAX_SEEDS = 400


@dataclass
class Transaction:
    """Of the producer that had this epoch of the transactional id."""

    owner: int
    rows: list[bytes] = field(default_factory=list)
    marker: Marker | None = None


@dataclass
class Cluster:
    """What Kafka holds for one transactional id."""

    owner: int = 0
    open: Transaction | None = None
    visible: list[bytes] = field(default_factory=list)
    marker: Marker | None = None
    under_way: Transaction | None = None
    """A request to commit that has not arrived yet."""

    def check(self, owner: int) -> None:
        if owner != self.owner:
            raise KafkaFencedError("model", "id", "fenced")

    def end(self, transaction: Transaction) -> None:
        self.check(transaction.owner)
        assert self.open is transaction
        self.open = None
        self.visible += transaction.rows
        self.marker = transaction.marker or self.marker

    def arrive(self) -> None:
        late, self.under_way = self.under_way, None
        if late is not None and late is self.open:
            with suppress(KafkaFencedError):
                self.end(late)


class Modelled:
    """Transactions on the model, for one attempt."""

    place = "the model"

    @staticmethod
    def start(rng: random.Random) -> Callable[[Call], Call]:
        """Make a call at once or when its end is awaited, as a thread might."""

        def begin(call: Call) -> Call:
            if rng.random() < 0.5:
                return call
            try:
                call()
            except EpochalError as error:
                return partial(_raise, error)
            return lambda: None

        return begin

    def __init__(
        self, cluster: Cluster, rng: random.Random, before: Callable[[str, str], None]
    ) -> None:
        self.cluster, self._rng, self._before = cluster, rng, before
        self._owner = -1
        self._transaction: Transaction | None = None

    def claim(self) -> None:
        self._before("create", "claim")
        if self._rng.random() < 0.7:
            self.cluster.arrive()
        self.cluster.owner += 1
        self._owner = self.cluster.owner
        self.cluster.open = None

    def marker(self) -> Marker | None:
        self.cluster.check(self._owner)
        return self.cluster.marker

    def begin(self) -> None:
        self._transaction = Transaction(self._owner)

    def send(self, places: Mapping[str, int], records: Iterable[Record]) -> None:
        del places
        self._before("create", "records")
        if self._rng.random() < 0.02:
            raise KafkaUnavailableError("model", "a record did not arrive")
        self._opened().rows += [record[1] for record in records]

    def mark(self, marker: Marker) -> None:
        self._before("create", "marker")
        self._opened().marker = marker

    def commit(self) -> None:
        transaction = self._opened()
        try:
            self._before("create", "commit")
        except Crash:
            if self._rng.random() < 0.8:
                self.cluster.under_way = transaction
            raise
        self.cluster.end(transaction)
        if self._rng.random() < 0.03:
            raise KafkaUnavailableError("model", "the answer to a commit was lost")

    def abandon(self) -> None:
        if self._transaction is self.cluster.open and self._owner == self.cluster.owner:
            self.cluster.open = None

    def close(self) -> None:
        pass

    def _opened(self) -> Transaction:
        self.cluster.check(self._owner)
        assert self._transaction is not None
        self.cluster.open = self._transaction
        return self._transaction


class MarkerApart(Modelled):
    """Planted: the marker is committed by itself, before the rows."""

    def mark(self, marker: Marker) -> None:
        self.cluster.check(self._owner)
        self.cluster.marker = marker
        self._before("create", "marker")


class RowsApart(Modelled):
    """Planted: the rows are committed by themselves, before the marker."""

    def mark(self, marker: Marker) -> None:
        rows = self._opened()
        self.cluster.end(rows)
        self._before("create", "marker")
        self._transaction = Transaction(self._owner, marker=marker)


class ReadFirst(Modelled):
    """Planted: the marker is read before earlier attempts are shut out."""

    def claim(self) -> None:
        self._seen = self.cluster.marker
        super().claim()

    def marker(self) -> Marker | None:
        return self._seen


class CommitsEarly(Modelled):
    """Planted: the transaction is committed when it is complete, perhaps before the log."""

    def mark(self, marker: Marker) -> None:
        super().mark(marker)
        self.cluster.end(self._opened())

    def commit(self) -> None:
        self._before("create", "commit")


class NeverFails(Modelled):
    """Planted: what fails while the epoch is logged is not noticed."""

    @staticmethod
    def start(rng: random.Random) -> Callable[[Call], Call]:
        def quietly(call: Call) -> Call:
            with suppress(EpochalError):
                call()
            return lambda: None

        return quietly


Kind: TypeAlias = type[Modelled]


def begin(disk: Disk, rng: random.Random, kind: Kind, cluster: Cluster, changes: int) -> Run:
    """One attempt with the real sink."""
    before = crash_after(changes)
    files = FaultyFiles(disk.files, before)
    plan = record_plan(SCHEMA, "out")
    writers = staged_records(plan, "memory:", 1_000, {})
    attempt = disk.attempt + 1

    def write(task: int, epoch: int, rows: range) -> bytes:
        writer = writers.open(WriterContext(task, attempt, "run", SCHEMA))
        writer.write(pa.record_batch([[f"{task}:{row}" for row in rows]], schema=SCHEMA))
        return writer.cut(epoch)()

    sink = DecidingSink(
        KafkaEpochs(cast(Any, kind(cluster, rng, before)), plan, kind.start(rng)),
        writers,
        files,
        KAFKA_OUTPUT,
        disk.clock,
        refresh_seconds=REFRESH_SECONDS,
    )
    return Run(disk, rng, files, sink, write=write, counts=(0, 0, 0, 1, 3))


def _raise(error: Exception) -> None:
    raise error


def wrong_after(rng: random.Random, kind: Kind, changes: Callable[[], int]) -> str:
    """What is wrong once attempts have committed enough, or nothing."""
    disk, cluster = Disk(), Cluster()

    def late_commit() -> None:
        if rng.random() < 0.05:
            cluster.arrive()

    if not live(disk, rng, lambda: begin(disk, rng, kind, cluster, changes()), late_commit):
        return f"{disk.attempt} attempts have committed no further than {disk.committed()}"
    last = begin(disk, rng, kind, cluster, 1_000)
    last.start()
    return wrong_in(cluster, last)


def wrong_in(cluster: Cluster, last: Run) -> str:
    """How what is visible differs from what was read, task by task."""
    for task in range(TASKS):
        rows = [int(row[2:]) for row in cluster.visible if row.startswith(b"%d:" % task)]
        if rows != list(range(last.places[task])):
            return f"task {task} read up to {last.places[task]}, visible are {rows}"
        if last.sums[task] != sum(rows):
            return f"task {task} has state {last.sums[task]}, its rows add up to {sum(rows)}"
    return ""


def found(kind: Kind, seeds: range) -> dict[int, str]:
    """What goes wrong, by seed."""
    outcomes: dict[int, str] = {}
    for seed in seeds:
        rng = random.Random(seed)
        try:
            wrong = wrong_after(rng, kind, lambda: rng.randrange(1, 90))  # noqa: B023  used at once
        except EpochalError as error:
            wrong = f"it cannot go on: {error}"
        if wrong:
            outcomes[seed] = wrong
    return outcomes


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 20))]
)
def test_every_row_is_visible_once(part: int) -> None:
    assert found(Modelled, range(part * SEEDS, (part + 1) * SEEDS)) == {}


@pytest.mark.parametrize("kind", [MarkerApart, RowsApart, ReadFirst, CommitsEarly, NeverFails])
def test_a_planted_fault_is_seen(kind: Kind) -> None:
    assert any(found(kind, range(seed, seed + 1)) for seed in range(MAX_SEEDS))


def test_any_two_crashes_at_any_change_leave_every_row_visible_once() -> None:
    """Two lives that die after so many changes each, then one that lives."""
    for first in range(44):
        for second in (0, 3, 8, 15):
            lives = iter((first, second))
            rng = random.Random(1)
            wrong = wrong_after(rng, Modelled, lambda: next(lives, 1_000))  # noqa: B023  used at once
            assert wrong == "", (first, second)


def test_rows_of_an_epoch_that_was_not_logged_are_aborted() -> None:
    """The driver lost the race for the entry; its next attempt uses the same sink."""
    cluster, rng, checkpoint = Cluster(), random.Random(1), MemoryFiles()
    plan = record_plan(SCHEMA, "out")
    writers = staged_records(plan, "memory:", 1_000, {})

    def message(epoch: int, value: str) -> bytes:
        writer = writers.open(WriterContext(0, 1, "run", SCHEMA))
        writer.write(pa.record_batch([[value]], schema=SCHEMA))
        return writer.cut(epoch)()

    modelled: Any = Modelled(cluster, rng, lambda *_: None)
    sink = DecidingSink(
        KafkaEpochs(modelled, plan), writers, checkpoint, KAFKA_OUTPUT, SystemClock()
    )
    sink.fence(1)
    sink.begin_commit(0, [message(0, "lost")])
    sink.fence(2)
    sink.commit(0, [message(0, "kept")])
    sink.begin_commit(1, [message(1, "next")])
    assert cluster.visible == [b"kept"]
    sink.commit(1, [message(1, "next")])
    assert cluster.visible == [b"kept", b"next"]
    sink.begin_commit(2, [message(2, "dropped")])
    sink.close()
    assert (cluster.open, cluster.visible) == (None, [b"kept", b"next"])
