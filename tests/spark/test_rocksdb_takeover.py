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
from tests.spark.sessions import local_session

from epochal.checkpoint.layout import state_store_path
from epochal.checkpoint.operator_metadata import StoreMetadata, read_operator
from epochal.checkpoint.pinned import ROCKSDB_PROVIDER_CLASS
from epochal.epoch.messages import PreparedState
from epochal.epoch.publish_state import StateFiles
from epochal.files import Files, open_files
from epochal.state.files.schema_file import parse_schema_file
from epochal.state.store.conf import StateStoreConf
from epochal.state.store.ids import StateStoreId
from epochal.state.store.provider import StateStoreProvider
from epochal.state.store.rocksdb_provider import open_provider

Output = dict[int, list[tuple[Any, ...]]]

STATE = "spark.sql.streaming.stateStore."
CHANGELOGS = {f"{STATE}rocksdb.changelogCheckpointing.enabled": "true"}
CHECKSUMS = {f"{STATE}rowChecksum.enabled": "true", f"{STATE}compression.codec": "zstd"}
FILES, KEPT, OURS = 6, 2, 2


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
    session = local_session().newSession()
    session.conf.set(f"{STATE}providerClass", ROCKSDB_PROVIDER_CLASS)
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    session.conf.set(f"{STATE}autoSnapshotRepair.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six files of events, whose times advance by half a minute per file."""
    directory = tmp_path_factory.mktemp("events")
    for number in range(FILES):
        rows = [
            {
                "at": f"2024-01-01T00:{number // 2:02}:{30 * (number % 2) + n % 17:02}Z",
                "name": None if n == 7 else f"name-{n * (number + 3) % 11}",
                "kind": n % 20 + 10 * number,
                "value": n * 1.5 + number,
            }
            for n in range(40)
        ]
        path = directory / f"{number}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def run(spark: SparkSession, case: Case, source: Path, checkpoint: Path) -> Output:
    """Let Spark process all files that its checkpoint has not seen; its output by batch."""
    found: Output = {}

    def collect(rows: DataFrame, batch: int) -> None:
        found[batch] = sorted((tuple(row) for row in rows.collect()), key=str)

    events = spark.readStream.schema("at timestamp, name string, kind int, value double")
    stream = events.option("maxFilesPerTrigger", 1).json(str(source))
    writer = case.query(stream).writeStream.outputMode(case.mode).foreachBatch(collect)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return found


def cut_back(checkpoint: Path, batches: int) -> None:
    """Make a checkpoint what it was after its first `batches` batches."""
    for log in ("offsets", "commits", "sources/0"):
        for path in (checkpoint / log).iterdir():
            number = path.name.lstrip(".").partition(".")[0]
            if number.isdigit() and int(number) >= batches:
                path.unlink()
    for path in checkpoint.glob("state/*/*/*"):
        number = path.name.lstrip(".").partition(".")[0]
        if number.isdigit() and int(number) > batches:
            path.unlink()


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
    for key in (*CHANGELOGS, *CHECKSUMS):
        spark.conf.unset(key)
    for key, value in case.conf.items():
        spark.conf.set(key, value)
    undisturbed, ours = tmp_path / "undisturbed", tmp_path / "ours"
    expected = run(spark, case, source, undisturbed)
    assert sorted(expected) == list(range(FILES))
    shutil.copytree(undisturbed, ours)
    cut_back(ours, KEPT)
    assert take_over(undisturbed, ours, case) > 20
    for batch in range(KEPT, KEPT + OURS):
        for log in ("offsets", "commits", "sources/0"):
            shutil.copy(undisturbed / log / str(batch), ours / log / str(batch))
    found = run(spark, case, source, ours)
    assert found == {batch: expected[batch] for batch in range(KEPT + OURS, FILES)}
    assert sum(map(len, found.values())) > 10
