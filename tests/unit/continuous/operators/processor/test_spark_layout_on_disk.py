"""A processor's state in column families on disk is what it would be in memory, to the byte."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.continuous.operators.driving import in_any_order, table
from tests.unit.continuous.operators.processor.test_processor_state_model import (
    INPUT,
    OUTPUT,
    TTL_MS,
    Real,
)

from epochal.checkpoint.restart import ROCKSDB_PROVIDER_CLASS
from epochal.continuous.operators import containers
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.processor import state_rows
from epochal.continuous.operators.processor.transform_with_state import TransformWithStateSpec
from epochal.continuous.plan.compile import UNOPENED
from epochal.continuous.plan.stages import QueryPlan, StagePlan, Target
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.epoch.epoch_files.state_chain import EpochRun, StateChain, extended
from epochal.files.local import LocalFiles
from epochal.state.disk.local_database import MIN_MEMORY_BYTES
from epochal.state.store.conf import StateStoreConf

SPEC = TransformWithStateSpec.plan(
    Real(), ["id"], INPUT, OUTPUT, time_mode="ProcessingTime", spark_layout=True
)


@dataclass
class Task:
    """The operator and the stores of one task, as a worker has them."""

    root: Path
    memory_bytes: int | None
    chain: StateChain | None = None
    epoch: int = 0
    attempt: int = 0
    published: int = 0
    before: tuple[EpochRun, ...] = ()
    first_epoch: int = 0
    stores: TaskStores = field(init=False)
    operator: Any = field(init=False)

    def start(self) -> None:
        stage = StagePlan(0, SPEC, (INPUT,), (), Target(1))
        plan = QueryPlan((), (), (stage,), UNOPENED, SPEC.output_schema, 1)
        conf = StateStoreConf(
            provider_class=ROCKSDB_PROVIDER_CLASS,
            memory_bytes=self.memory_bytes,
            local_dir=str(self.root / "local"),
        )
        files = LocalFiles(self.root / "checkpoint", durable=False)
        self.attempt += 1
        self.first_epoch, self.before = self.epoch, () if self.chain is None else self.chain.runs
        self.stores = TaskStores(plan, [0], files, conf, attempt=self.attempt, run_id="run")
        self.operator = SPEC.open([0], 1)
        self.stores.load([self.operator], StateStart(self.epoch, None, chain=self.chain))

    def turn(self, batch: pa.RecordBatch, now_ms: int) -> list[str]:
        at = Moment(now_ms, -1, self.epoch, -1)
        made = [*self.operator.process(0, batch, at), *self.operator.expire(at)]
        return in_any_order(row for each in made for row in each.to_pylist())

    def cut(self, *, publish: bool) -> tuple[Any, ...]:
        """End the epoch; all entries of the version that it made."""
        changes = [(0, each) for each in self.operator.cut(self.epoch)]
        made = self.stores.prepare(self.epoch, changes)
        own = EpochRun(self.first_epoch, self.epoch, self.attempt, (made.checksum,))
        self.chain = extended(self.before, own, self.published)
        if publish:
            self.stores.publish(self.epoch, self.stores.rows_after(self.epoch), self.published)
            self.published = self.epoch + 1
        self.epoch += 1
        (store,) = self.stores._stores.values()
        assert store.rows is not None
        counts = sorted((each.store, each.rows) for _, each in changes)
        return counts, dict(store.rows.items())


@pytest.mark.parametrize("seed", range(4), ids=lambda seed: f"seed{seed}")
def test_families_on_disk_hold_the_bytes_that_they_hold_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(containers, "_MIN_VALUES", 2)
    monkeypatch.setattr(containers, "_MAX_RECENT", 3)
    # Otherwise expired rows, which are hidden, would be removed at other times than in memory.
    monkeypatch.setattr(state_rows, "_QUEUED_AT_MOST", TTL_MS)
    rng, now = random.Random(seed), 1000
    disk = Task(tmp_path / "disk", MIN_MEMORY_BYTES)
    memory = Task(tmp_path / "memory", None)
    for task in (disk, memory):
        task.start()
    for _ in range(60):
        now += rng.randrange(15)
        rows = [(rng.choice([None, *range(12)]), rng.randrange(10**6)) for _ in range(4)]
        assert disk.turn(table(INPUT, rows), now) == memory.turn(table(INPUT, rows), now)
        if rng.random() < 0.4:
            publish = rng.random() < 0.3
            assert disk.cut(publish=publish) == memory.cut(publish=publish)
            if rng.random() < 0.3:
                for task in (disk, memory):
                    task.stores.close()
                    task.start()
    for task in (disk, memory):
        task.stores.close()
