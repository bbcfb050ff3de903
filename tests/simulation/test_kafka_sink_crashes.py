"""The real Kafka sink, driver, recovery and logs; Kafka itself is a model of what its transactions
promise: one writer per transactional id, all of a transaction or nothing of it.

A driver dies at any change of storage or of Kafka, or is only thought dead; its last commit may
still be under way and arrive whenever it likes. Whatever happens, every row is visible once.
Two faults of design are planted below, and must be seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import google_crc32c
import pyarrow as pa
import pytest
from tests.simulation.test_epoch_crashes import EPOCHS, TASKS, Disk, Rows, Run

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.connectors.contract import WriterContext
from epochal.connectors.kafka.sink_exact import ExactKafkaSink
from epochal.connectors.kafka.sink_marker import Marker
from epochal.connectors.kafka.sink_rows import Record, record_plan
from epochal.connectors.kafka.sink_staged import StagedWriters
from epochal.epoch.coordinator import Pace
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.ground import Ground
from epochal.epoch.messages import CommitPartitionEpoch, PreparedState, ReportPartitionOffset
from epochal.epoch.state_files import StateFiles
from epochal.errors import EpochalError, KafkaFencedError, KafkaUnavailableError
from epochal.testing.clock import ManualClock
from epochal.testing.files import Crash, FaultyFiles, crash_after

SCHEMA = pa.schema([("value", pa.string())])
REFRESH_SECONDS = 4.0
SEEDS = 40
MAX_SEEDS = 400
MAX_ATTEMPTS = 300


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


class KafkaRun(Run):
    """One attempt with the real sink."""

    def __init__(
        self, disk: Disk, rng: random.Random, transactions: Kind, cluster: Cluster, changes: int
    ) -> None:
        disk.attempt += 1
        self.disk, self.rng = disk, rng
        before = crash_after(changes)
        self.files = FaultyFiles(disk.files, before)
        self.failures: list[Exception] = []
        self.writers = StagedWriters(record_plan(SCHEMA, "out"), "memory:", 1_000)
        self.sink = ExactKafkaSink(
            transactions(cluster, rng, before),
            self.writers,
            self.files,
            "group",
            disk.clock,
            refresh_seconds=REFRESH_SECONDS,
        )
        ground = Ground(
            url="memory:",
            offsets=OffsetLog(self.files.at("offsets")),
            commits=CommitLog(self.files.at("commits")),
            sources=[Rows()],
            sink=self.sink,
            state=StateFiles(self.files, publishers=1),
            owned=lambda: True,
            run_id="run",
            min_batches_to_retain=3,
        )
        listeners = Listeners(
            push=lambda peers, message: None,
            committed=lambda epoch, positions: None,
            failed=self.failures.append,
        )
        self.driver = EpochDriver(
            ground,
            listeners,
            attempt=disk.attempt,
            clock=disk.clock,
            pace=Pace(epoch_seconds=1, max_epochs_in_flight=3),
        )
        self.cut: list[int] = []
        self.places: list[int] = []
        self.sums: list[int] = []

    def _end_epoch(self, task: int) -> None:
        epoch, attempt = self.cut[task], self.driver.attempt
        rows = range(self.places[task], self.places[task] + self.rng.choice((0, 0, 0, 1, 3)))
        self.places[task] = rows.stop
        self.sums[task] += sum(rows)
        name, data = f"{epoch + 1}.delta.prepared-a{attempt}", str(self.sums[task]).encode()
        self.files.replace(f"state/0/{task}/{name}", data)
        state = PreparedState(0, task, "default", epoch + 1, name, google_crc32c.value(data))
        writer = self.writers.open(WriterContext(task, attempt, "run", SCHEMA))
        writer.write(pa.record_batch([[f"{task}:{row}" for row in rows]], schema=SCHEMA))
        message = writer.cut(epoch)()
        self.driver.handle(ReportPartitionOffset(attempt, task, epoch, str(rows.stop)))
        self.driver.handle(CommitPartitionEpoch(attempt, task, epoch, message, (state,)))
        self.cut[task] += 1


Kind: TypeAlias = Callable[[Cluster, random.Random, Callable[[str, str], None]], Modelled]


def live(rng: random.Random, kind: Kind, changes: Callable[[], int]) -> str:
    """Attempts follow each other until enough is committed; what is wrong then, or nothing."""
    disk, cluster = Disk(ManualClock()), Cluster()
    commits = CommitLog(disk.files.at("commits"))
    sleeper: KafkaRun | None = None
    for _ in range(MAX_ATTEMPTS):
        if max(commits.batch_ids(), default=0) >= EPOCHS:
            break
        run = KafkaRun(disk, rng, kind, cluster, changes())
        with suppress(Crash, EpochalError):
            run.start()
            while max(commits.batch_ids(), default=0) < EPOCHS:
                run.turn()
                if sleeper is not None and rng.random() < 0.1:
                    waking, sleeper = sleeper, None
                    with suppress(Crash, EpochalError):
                        while waking.driver.perform_next() is not None:
                            pass
                if rng.random() < 0.02:
                    sleeper = run
                    break
                if rng.random() < 0.05:
                    cluster.arrive()
    else:
        return f"{MAX_ATTEMPTS} attempts have committed {commits.batch_ids()}"
    last = KafkaRun(disk, rng, kind, cluster, 1_000)
    last.start()
    return wrong_in(cluster, last)


def wrong_in(cluster: Cluster, last: KafkaRun) -> str:
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
            wrong = live(rng, kind, lambda: rng.randrange(1, 90))  # noqa: B023  used at once
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


@pytest.mark.parametrize("kind", [MarkerApart, RowsApart, ReadFirst])
def test_a_planted_fault_is_seen(kind: Kind) -> None:
    assert any(found(kind, range(seed, seed + 1)) for seed in range(MAX_SEEDS))


def test_any_two_crashes_at_any_change_leave_every_row_visible_once() -> None:
    """Two lives that die after so many changes each, then one that lives."""
    for first in range(44):
        for second in (0, 3, 8, 15):
            lives = iter((first, second))
            rng = random.Random(1)
            wrong = live(rng, Modelled, lambda: next(lives, 1_000))  # noqa: B023  used at once
            assert wrong == "", (first, second)
