"""A transformWithState query moves from Spark to our operator and back to Spark.

As `test_rocksdb_takeover`, but our own operator processes the batches in between, with the times
and watermarks that Spark logged. So its output, and every byte of its state, must be Spark's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from tests.frames.rocksdb_runs import (
    CHANGELOGS,
    CHECKSUMS,
    STATE,
    Output,
    configure,
    cut_back,
    log_as,
    rocksdb_session,
    run,
    write_events,
)

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.pinned import ROCKSDB_PROVIDER_CLASS
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.processor.transform_with_state import TransformWithStateSpec
from epochal.continuous.plan.compile import UNOPENED
from epochal.continuous.plan.pinned_plan import settle_shape
from epochal.continuous.plan.stages import QueryPlan, StagePlan, Target
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.files import open_files
from epochal.state.rows.murmur3 import partition_ids
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.rocksdb_versions import open_rocksdb
from epochal.tools.read_state.read_target import StateSettings

OUTPUT = "name string, n long, total double, listed long, mapped long"
FIELDS: list[tuple[str, pa.DataType]] = [
    ("at", pa.timestamp("us", "UTC")),
    ("name", pa.string()),
    ("kind", pa.int32()),
    ("value", pa.float64()),
]
INPUT = pa.schema(FIELDS)
PARTITIONS = range(2)
FILES = 4
DAY_MS = 24 * 3600 * 1000


def processor(mode: str, ttl_ms: int | None) -> StatefulProcessor:
    """A processor with every kind of state; lists and maps shrink, timers fire and are deleted."""

    class Everything(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n long, total double", ttl_ms)
            self.recent = handle.getListState("recent", "value double", ttl_ms)
            self.seen = handle.getMapState("seen", "kind int", "n long", ttl_ms)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            found = sorted(rows, key=lambda row: (row.kind, row.value))
            n, total = self.total.get() or (0, 0.0)
            self.total.update((n + len(found), total + sum(row.value for row in found)))
            self.recent.appendList([(row.value,) for row in found])
            kept = list(self.recent.get())[-5:]
            if len(found) % 2:
                self.recent.put(kept)
            for row in found:
                before = self.seen.getValue((row.kind,))
                self.seen.updateValue((row.kind,), ((before[0] if before else 0) + 1,))
            for kind in sorted(self.seen.keys())[:-12]:
                self.seen.removeKey(kind)
            if mode != "None":
                for timer in list(self.handle.listTimers()):
                    self.handle.deleteTimer(timer)
                now = timerValues.getCurrentWatermarkInMs()
                later = timerValues.getCurrentProcessingTimeInMs() + DAY_MS
                self.handle.registerTimer(now + 10_000 if mode == "EventTime" else later)
            yield self.row(key)

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Row]:
            yield self.row(key)
            self.recent.clear()
            self.seen.clear()
            self.total.clear()

        def row(self, key: Any) -> Row:
            n, total = self.total.get() or (0, 0.0)
            listed = sum(1 for _ in self.recent.get())
            mapped = sum(value[0] for value in self.seen.values())
            return Row(name=key[0], n=n, total=total, listed=listed, mapped=mapped)

        def close(self) -> None:
            pass

    return Everything()


class Stateless(StatefulProcessor):  # type: ignore[misc]
    """A processor that declares no state."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        found = list(rows)
        total = sum(row.value for row in found)
        yield Row(name=key[0], n=len(found), total=total, listed=0, mapped=0)

    def close(self) -> None:
        pass


pytestmark = pytest.mark.timeout(900)  # Spark starts Python workers for every batch


@dataclass(frozen=True)
class Case:
    mode: str
    ttl_ms: int | None
    conf: dict[str, str]
    kept: int
    """How many batches Spark runs before us; 0 makes us create the checkpoint."""
    stateful: bool = True

    @property
    def processor(self) -> StatefulProcessor:
        return processor(self.mode, self.ttl_ms) if self.stateful else Stateless()

    def query(self, events: DataFrame) -> DataFrame:
        late = events.withWatermark("at", "20 seconds")
        return late.groupBy("name").transformWithState(self.processor, OUTPUT, "Update", self.mode)

    def spec(self) -> TransformWithStateSpec:
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import _parse_datatype_string

        return TransformWithStateSpec.plan(
            self.processor,
            ["name"],
            INPUT,
            to_arrow_schema(_parse_datatype_string(OUTPUT)),
            time_mode=self.mode,
            event_time="at",
            spark_layout=True,
        )

    def __str__(self) -> str:
        kind = "changelogs" if CHANGELOGS.items() <= self.conf.items() else "zips"
        ttl = "-ttl" if self.ttl_ms else "" if self.stateful else "-stateless"
        checked = "-checksums" if CHECKSUMS.items() <= self.conf.items() else ""
        return f"{self.mode}{ttl}-{kind}{checked}-{'taken-over' if self.kept else 'new'}"


CASES = [
    Case("EventTime", None, {}, kept=1),
    Case("EventTime", None, CHANGELOGS, kept=0),
    Case("None", None, {**CHANGELOGS, **CHECKSUMS}, kept=1),
    Case("ProcessingTime", DAY_MS, CHANGELOGS, kept=1),
    Case("ProcessingTime", DAY_MS, {}, kept=0),
    Case("None", None, {}, kept=1, stateful=False),
    Case("None", None, CHANGELOGS, kept=0, stateful=False),
    Case("EventTime", None, {}, kept=0, stateful=False),
]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return rocksdb_session()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_events(tmp_path_factory.mktemp("events"), FILES)


def batch_of(path: Path) -> pa.RecordBatch:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["at"] = datetime.fromisoformat(row["at"])
    return pa.RecordBatch.from_pylist(rows, INPUT)


def process(case: Case, undisturbed: Path, ours: Path, source: Path, batches: range) -> Output:
    """Process batches with our operator, and write its state by the engine's protocol."""
    spec, logged = case.spec(), Checkpoint(str(undisturbed))
    stage = StagePlan(0, spec, (INPUT,), (), Target(1))
    plan = QueryPlan((), (), (stage,), UNOPENED, spec.output_schema, 2)
    checkpoint = open_files(str(ours))
    settle_shape(checkpoint, plan)
    given = {f"{STATE}providerClass": ROCKSDB_PROVIDER_CLASS, **case.conf}
    conf = StateStoreConf.from_spark(given)
    stores = TaskStores(plan, PARTITIONS, checkpoint, conf, attempt=1, run_id="run")
    operator = spec.open(PARTITIONS, 2)
    stores.load([operator], StateStart(batches.start, None))
    output: Output = {}
    for batch in batches:
        entry, before = logged.offsets.get(batch), logged.offsets.get(batch - 1)
        assert entry is not None
        late = before.watermark_ms if before else 0
        at = Moment(entry.timestamp_ms, entry.watermark_ms, batch, late)
        rows = batch_of(source / f"{batch}.json")
        owners = partition_ids([rows.column("name")], spec.key_schema, 2)
        made: list[pa.RecordBatch] = []
        for partition in PARTITIONS:
            mine = rows.filter(pa.array(owners == partition))
            made += operator.process(partition, mine, at)
        made += operator.expire(at)
        stores.prepare(batch, [(0, change) for change in operator.cut(batch)])
        stores.publish(batch, stores.rows_after(batch), 0)
        found = [tuple(row.values()) for each in made for row in each.to_pylist()]
        output[batch] = sorted(found, key=str)
    stores.close()
    return output


def entries(checkpoint: Path, version: int) -> list[dict[tuple[str, bytes], bytes]]:
    """Everything in a version, by family and key."""
    first = Checkpoint(str(checkpoint)).offsets.get(0)
    assert first is not None
    settings = StateSettings.from_conf(first.conf, "test")
    found = []
    for partition in PARTITIONS:
        files = open_files(str(checkpoint / f"state/0/{partition}"))
        content = open_rocksdb(files, settings).load(version)
        names = {number.to_bytes(2, "little"): name for name, number in content.families.items()}
        found.append({(names[k[:2]], k[2:]): v for k, v in content.entries.items()})
    return found


def read(spark: SparkSession, checkpoint: Path, variable: str, batch: int) -> list[Any]:
    """What Spark's own state reader finds."""
    reader = spark.read.format("statestore").option("batchId", batch)
    rows = reader.option("stateVarName", variable).load(str(checkpoint)).collect()
    assert rows
    return sorted(rows, key=str)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_spark_continues_from_state_of_processors_that_we_wrote(
    spark: SparkSession, source: Path, tmp_path: Path, case: Case
) -> None:
    configure(spark, case.conf)
    undisturbed, ours = tmp_path / "undisturbed", tmp_path / "ours"
    query: Callable[[DataFrame], DataFrame] = case.query
    expected = run(spark, query, "update", source, undisturbed)
    assert sorted(expected) == list(range(FILES))
    shutil.copytree(undisturbed, ours)
    cut_back(ours, case.kept)
    if not case.kept:
        shutil.rmtree(ours / "state")
    batches = range(case.kept, case.kept + 2)
    assert process(case, undisturbed, ours, source, batches) == {
        batch: expected[batch] for batch in batches
    }
    log_as(undisturbed, ours, batches)
    if not CHECKSUMS.items() <= case.conf.items():  # checksums cover the numbers of families
        assert entries(ours, batches.stop) == entries(undisturbed, batches.stop)
    for name in ("total", "recent", "seen") if case.stateful else ():
        assert read(spark, ours, name, batches[-1]) == read(spark, undisturbed, name, batches[-1])
    found = run(spark, query, "update", source, ours)
    assert found == {batch: expected[batch] for batch in range(batches.stop, FILES)}
    assert sum(map(len, found.values())) > 10
