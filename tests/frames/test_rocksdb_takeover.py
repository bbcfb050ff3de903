"""A query with RocksDB state moves from Spark to our provider and back to Spark.

Spark runs a query over six files, undisturbed. A copy of its checkpoint is cut back to the first
two batches. Our provider loads that state and writes the versions of the next two batches by the
engine's protocol: prepare, then publish. Spark continues with the last two batches, and must output
what it output undisturbed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.frames.rocksdb_runs import (
    CHANGELOGS,
    CHECKSUMS,
    FILES,
    SCHEMA,
    STATE,
    configure,
    cut_back,
    log_as,
    rocksdb_session,
    run,
    write_events,
)
from tests.spark.continuous import PATIENCE_SECONDS

from epochal import read_stream, write_stream
from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.layout import state_store_path
from epochal.checkpoint.operator_metadata import StoreMetadata, read_operator
from epochal.checkpoint.pinned import ROCKSDB_PROVIDER_CLASS, STATE_FORMAT
from epochal.cli.main import main
from epochal.connectors.memory import MemoryOutput
from epochal.epoch.messages import PreparedState
from epochal.epoch.publish_state import StateFiles
from epochal.files import Files, open_files
from epochal.state import read_state
from epochal.state.files.schema_file import parse_schema_file
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.ids import StateStoreId
from epochal.state.store.open_provider import open_provider
from epochal.state.store.provider import StateStoreProvider

KEPT, OURS = 2, 2


def counts(events: DataFrame) -> DataFrame:
    return events.groupBy("name").agg(F.count("*").alias("n"), F.sum("value").alias("total"))


def windows(events: DataFrame) -> DataFrame:
    late = events.withWatermark("at", "20 seconds")
    return late.groupBy(F.window("at", "10 seconds"), "name").agg(F.max("value").alias("most"))


def distinct(events: DataFrame) -> DataFrame:
    return events.withWatermark("at", "20 seconds").dropDuplicatesWithinWatermark(["name", "kind"])


def sessions(events: DataFrame) -> DataFrame:
    late = events.withWatermark("at", "20 seconds")
    return late.groupBy(F.session_window("at", "5 seconds"), "name").count()


@dataclass(frozen=True)
class Case:
    query: Callable[[DataFrame], DataFrame]
    mode: str
    conf: dict[str, str]
    snapshot: bool = False
    """Whether our maintenance writes a snapshot, so that Spark has to load it."""

    def __str__(self) -> str:
        kind = "changelogs" if CHANGELOGS.items() <= self.conf.items() else "zips"
        checked = "-checksums" if CHECKSUMS.items() <= self.conf.items() else ""
        return f"{self.query.__name__}-{kind}{checked}{'-snapshot' if self.snapshot else ''}"


CASES = [
    Case(counts, "update", {}),
    Case(counts, "update", CHANGELOGS, snapshot=True),
    Case(counts, "update", {**CHANGELOGS, **CHECKSUMS}, snapshot=True),
    Case(windows, "append", CHANGELOGS),
    Case(windows, "append", {}, snapshot=True),
    Case(distinct, "append", {}, snapshot=True),
    Case(distinct, "append", CHANGELOGS),
    Case(sessions, "append", CHANGELOGS),
    Case(sessions, "append", CHECKSUMS, snapshot=True),
]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return rocksdb_session()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_events(tmp_path_factory.mktemp("events"))


def stores(
    checkpoint: Files, conf: StateStoreConf
) -> Iterator[tuple[int, str, StateStoreProvider]]:
    operator = read_operator(checkpoint, 0)
    assert operator is not None
    for store in operator.stores:
        path = f"{state_store_path(0, 0, store.name)}/_metadata/schema"
        [schema] = parse_schema_file(checkpoint.read(path))
        for partition in range(store.num_partitions):
            yield partition, store.name, _provider(checkpoint, store, partition, schema, conf)


def _provider(
    checkpoint: Files, store: StoreMetadata, partition: int, schema: Any, conf: StateStoreConf
) -> StateStoreProvider:
    return open_provider(
        StateStoreId(f"{checkpoint.url}/state", 0, partition, store.name),
        schema.key,
        schema.value,
        conf,
        num_cols_prefix_key=store.num_cols_prefix_key,
    )


def take_over(undisturbed: Path, ours: Path, case: Case) -> int:
    """Write the next versions of every store by the engine's protocol; how many rows changed."""
    given = {f"{STATE}providerClass": ROCKSDB_PROVIDER_CLASS, **case.conf}
    conf = StateStoreConf.from_spark(given | {f"{STATE}minDeltasForSnapshot": "1"})
    checkpoint = open_files(str(ours))
    models = {(p, name): found for p, name, found in stores(open_files(str(undisturbed)), conf)}
    changed = 0
    for partition, name, provider in stores(checkpoint, conf):
        model = models[partition, name]
        rows = provider.get_store(KEPT).loaded_rows
        assert dict(rows.items()) == dict(model.get_store(KEPT).items_raw())
        prepared = []
        for version in range(KEPT + 1, KEPT + OURS + 1):
            wanted, draft = dict(model.get_store(version).items_raw()), rows.draft()
            for key in [key for key, _ in rows.items() if key not in wanted]:
                draft.remove(key)
            draft.put_many(list(wanted), list(wanted.values()))
            changed += len(draft.changes)
            prepared.append(provider.prepare(version, draft, "a1"))
            rows = provider.get_store(version, from_prepared=prepared[-1]).loaded_rows
        states = [
            PreparedState(0, partition, name, each.version, each.name, each.checksum)
            for each in prepared
        ]
        StateFiles(checkpoint).publish(states)
        if case.snapshot:
            provider.publish(prepared[-1])
            provider.do_maintenance()
        there = [info.name for info in checkpoint.list(state_store_path(0, partition, name))]
        assert not [each for each in there if "prepared" in each]
        assert (f"{KEPT + OURS}.zip" in there) == case.snapshot
    return changed


@pytest.mark.parametrize("case", CASES, ids=str)
def test_spark_continues_from_rocksdb_state_that_we_wrote(
    spark: SparkSession, source: Path, tmp_path: Path, case: Case
) -> None:
    configure(spark, case.conf)
    undisturbed, ours = tmp_path / "undisturbed", tmp_path / "ours"
    expected = run(spark, case.query, case.mode, source, undisturbed)
    assert sorted(expected) == list(range(FILES))
    shutil.copytree(undisturbed, ours)
    cut_back(ours, KEPT)
    assert take_over(undisturbed, ours, case) > 20
    log_as(undisturbed, ours, range(KEPT, KEPT + OURS))
    found = run(spark, case.query, case.mode, source, ours)
    assert found == {batch: expected[batch] for batch in range(KEPT + OURS, FILES)}
    assert sum(map(len, found.values())) > 10


@pytest.mark.parametrize("first", ["spark", "epochal"])
def test_counts_on_rocksdb_move_between_spark_and_a_continuous_query(
    spark: SparkSession, tmp_path: Path, first: str
) -> None:
    configure(spark, {})
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    seen: list[dict[str, int]] = []

    def run_spark() -> None:
        output = run(spark, lambda rows: rows.groupBy("name").count(), "update", source, checkpoint)
        seen.append({name: count for rows in output.values() for name, count in rows})

    def run_epochal() -> None:
        rows = read_stream(spark).format("json").schema(SCHEMA).load(str(source))
        output = MemoryOutput()
        counts = rows.group_by("name").count().write_stream.format(output)
        query = counts.options(checkpointLocation=str(checkpoint), epoch="50 ms").start()
        query.process_all_available(PATIENCE_SECONDS)
        query.stop()
        newest = {row["name"]: row["count"] for row in output.table().to_pylist()}
        seen.append(newest)

    turns = [run_spark, run_epochal] if first == "spark" else [run_epochal, run_spark]
    for turn, go in enumerate(turns * 2):
        rows = "".join(json.dumps({"name": f"n{n}"}) + "\n" for n in range(turn + 3))
        (source / f"{turn}.json").write_text(rows)
        go()
    expected = [
        {f"n{n}": sum(n < earlier + 3 for earlier in range(turn + 1)) for n in range(turn + 3)}
        for turn in range(4)
    ]
    assert seen == expected
    provider = Checkpoint(str(checkpoint)).offsets.get(0)
    assert provider is not None
    assert provider.conf[f"{STATE}providerClass"] == ROCKSDB_PROVIDER_CLASS
    assert list(checkpoint.glob("state/0/*/*.zip"))
    assert not list(checkpoint.glob("state/0/*/*.delta"))


class Counted:
    """Counts of names in files, at which Spark and Epochal take turns; state has unique ids."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark, self.source, self.checkpoint = spark, home / "in", home / "checkpoint"
        self.source.mkdir()
        self.files = 0
        self.expected: dict[str, int] = {}
        self.found: dict[str, int] = {}

    def add_file(self) -> None:
        names = [f"n{n}" for n in range(self.files % 5 + 2)]
        rows = "".join(json.dumps({"name": name}) + "\n" for name in names)
        (self.source / f"{self.files:03}.json").write_text(rows)
        self.files += 1
        for name in names:
            self.expected[name] = self.expected.get(name, 0) + 1

    def take(self, rows: DataFrame, _: int) -> None:
        self.found.update({row["name"]: row["count"] for row in rows.collect()})

    def frame(self) -> DataFrame:
        events = self.spark.readStream.schema(SCHEMA).json(str(self.source))
        return events.groupBy("name").count()

    def play(self, engine: str, files: int) -> None:
        frame = self.frame()
        writer: Any = frame.writeStream
        if engine == "ours":
            brisk = {"minBatchesToRetain": 3, "publishInterval": "10 ms", "epoch": "10 ms"}
            writer = write_stream(frame).options(**brisk)
        writer = writer.outputMode("update").option("checkpointLocation", str(self.checkpoint))
        query = writer.foreachBatch(self.take).start()
        try:
            for _ in range(files):
                self.add_file()
                query.processAllAvailable()
        finally:
            query.stop()
        assert self.found == self.expected

    def state(self) -> dict[str, int]:
        rows = read_state(str(self.checkpoint)).to_pylist()
        return {row["key"]["name"]: row["value"]["count"] for row in rows}

    def versions(self) -> dict[str, int]:
        """The oldest version of each partition."""
        found: dict[str, int] = {}
        for path in self.checkpoint.glob("state/0/*/[0-9]*_*"):
            if path.is_file():
                version = int(path.name.partition("_")[0])
                found[path.parent.name] = min(version, found.get(path.parent.name, version))
        return found


@pytest.mark.parametrize("conf", [{}, CHANGELOGS], ids=["ids-zips", "ids"])
def test_state_with_unique_ids_moves_between_spark_and_a_dataframe(
    tmp_path: Path, conf: dict[str, str]
) -> None:
    spark = rocksdb_session()
    for key, value in {**conf, STATE_FORMAT: "2"}.items():
        spark.conf.set(key, value)
    counted = Counted(spark, tmp_path)
    for engine, files in (("spark", 2), ("ours", 9), ("spark", 1), ("ours", 2)):
        counted.play(engine, files)
        assert counted.state() == counted.expected
    checkpoint = str(counted.checkpoint)
    newest = max(Checkpoint(checkpoint).commits.batch_ids())
    commit = Checkpoint(checkpoint).commits.get(newest)
    assert commit is not None
    assert (commit.version, [len(ids) for ids in (commit.state_unique_ids or {})[0]]) == (2, [1, 1])
    assert min(counted.versions().values()) > 3  # maintenance has deleted old versions
    assert main(("checkpoint", "verify", checkpoint)) == 0
    stored = spark.read.format("statestore").load(checkpoint).collect()
    assert {row["key"]["name"]: row["value"]["count"] for row in stored} == counted.expected
    back = ("rewind", checkpoint, "--to-batch", str(newest - 1), "--no-file-sink", "--execute")
    assert main(("checkpoint", *back, "--settle-seconds", "0")) == 0
    for engine in ("ours", "spark"):
        counted.play(engine, 1)
        assert counted.state() == counted.expected
