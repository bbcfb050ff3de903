"""State next to its partition, on two real executors of one core each."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark import RDD, SparkConf, SparkContext
from pyspark.sql import SparkSession
from tests.spark.sessions import end_jvm
from tests.unit.state.stores import KEY, VALUE, content_at

from epochal.checkpoint import Checkpoint, CommitLog, OffsetLog
from epochal.checkpoint.entries import CommitEntry, OffsetEntry
from epochal.checkpoint.restart import SHUFFLE_PARTITIONS, conf_of_new_query
from epochal.continuous.spark_job.placement import executors, this_executor
from epochal.continuous.spark_job.state_rdd import StateCoordinator, map_partitions_with_state_store
from epochal.errors import StateSchemaMismatchError, StateUsageError
from epochal.state import read_state
from epochal.state.rows.unsafe_row import encode_row
from epochal.state.store.conf import StateStoreConf, StateStoreId, StateStoreProviderId
from epochal.state.store.open_provider import HDFSBackedStateStoreProvider
from epochal.state.store.store import CACHE_HITS, CACHE_MISSES, StateStore
from epochal.tools.verify.check_content import partition_of_key
from epochal.tools.verify.verify import verify

pytestmark = pytest.mark.timeout(900)  # the cluster's start counts, and others may use the machine

SOURCE = Path(__file__).resolve().parents[2]
CONF = StateStoreConf(maintenance_interval_ms=200, min_deltas_for_snapshot=3)


def start(master: str) -> SparkContext:
    end_jvm()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    path = os.pathsep.join((str(SOURCE / "src"), str(SOURCE)))
    conf = (
        SparkConf()
        .setMaster(master)
        .setAppName("state placement")
        .set("spark.ui.enabled", "false")
        .set("spark.driver.host", "127.0.0.1")
        .set("spark.driver.bindAddress", "127.0.0.1")
        .set("spark.executorEnv.PYTHONPATH", path)
        .set("spark.locality.wait", "60s")
    )
    return SparkContext(conf=conf)


@pytest.fixture(scope="module")
def sc() -> Iterator[SparkContext]:
    context = start("local-cluster[2,1,1024]")
    try:
        wait_for_executors(context)
        yield context
    finally:
        context.stop()


@pytest.fixture
def coordinator(sc: SparkContext) -> Iterator[StateCoordinator]:
    coordinator = StateCoordinator(sc, CONF)
    yield coordinator
    coordinator.stop()


def wait_for_executors(sc: SparkContext) -> None:
    while len(executors(sc)) < 2:
        sc.parallelize(range(2), 2).count()


def count_words(store: StateStore, words: Iterator[str]) -> Iterable[tuple[str, int]]:
    """Add 1 per word; give the new counts, as Spark's own suite does."""
    touched: dict[str, int] = {}
    for word in words:
        found = store.get((word, 0))
        store.put((word, 0), (1 if found is None else found[0] + 1,))
        touched[word] = 1
    counts = [(word, store.get((word, 0))) for word in touched]
    store.commit()
    return [(word, found[0]) for word, found in counts if found is not None]


def say_where(store: StateStore, words: Iterator[str]) -> Iterable[tuple[int, str, int, int, int]]:
    """Count, and tell the partition, executor, worker, cache hits and misses."""
    count_words(store, words)
    custom = store.metrics.custom
    executor = this_executor()
    yield (
        store.id.partition_id,
        executor.executor_id,
        os.getpid(),
        custom[CACHE_HITS],
        custom[CACHE_MISSES],
    )


class Query:
    """One run of a query with word counts in `partitions` partitions."""

    def __init__(
        self, where: Path, coordinator: StateCoordinator, conf: StateStoreConf = CONF
    ) -> None:
        self.where, self.coordinator, self.conf = where, coordinator, conf
        self.run_id = str(uuid4())

    def run(self, rdd: RDD[Any], version: int, fn: Any = count_words) -> list[Any]:
        results: list[Any] = map_partitions_with_state_store(
            rdd,
            fn,
            checkpoint=str(self.where),
            version=version,
            query_run_id=self.run_id,
            key_schema=KEY,
            value_schema=VALUE,
            conf=self.conf,
            coordinator=self.coordinator,
        ).collect()
        return results

    def provider_id(self, partition: int) -> StateStoreProviderId:
        return StateStoreProviderId(StateStoreId(f"{self.where}/state", 0, partition), self.run_id)

    def content(self, version: int, partitions: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for partition in range(partitions):
            store_id = self.provider_id(partition).store_id
            states = HDFSBackedStateStoreProvider(store_id, KEY, VALUE)
            found |= {key[0]: value for key, value in content_at(states, version).items()}
        return found


def test_partitions_return_to_the_executor_and_the_cache_that_hold_their_state(
    sc: SparkContext, coordinator: StateCoordinator, tmp_path: Path
) -> None:
    query = Query(tmp_path, coordinator)
    words = sc.parallelize([f"w{n}" for n in range(40)], 4)
    runs = [sorted(query.run(words, version, say_where)) for version in range(5)]
    places = [[row[:3] for row in run] for run in runs]
    assert {row[1] for row in runs[0]} == {"0", "1"}
    assert all(place == places[0] for place in places)
    assert [row[3:] for row in runs[4]] == [(4, 0)] * 4
    for partition, executor, *_ in runs[0]:
        location = coordinator.ref.get_location(query.provider_id(partition))
        assert location is not None
        assert location.endswith(f"_{executor}")
    assert query.content(5, 4) == {f"w{n}": 5 for n in range(40)}


def test_the_preference_follows_whoever_reported_last(
    sc: SparkContext, coordinator: StateCoordinator, tmp_path: Path
) -> None:
    query = Query(tmp_path, coordinator)
    words = sc.parallelize(["a"], 1)
    ((_, first, *_),) = query.run(words, 0, say_where)
    (other,) = [each for each in executors(sc) if each.executor_id != first]
    coordinator.ref.report_active_instance(
        query.provider_id(0), other.host, other.executor_id, "elsewhere", ()
    )
    ((_, second, _, hits, misses),) = query.run(words, 1, say_where)
    assert second == other.executor_id
    assert (hits, misses) == (0, 1)
    # The first executor still has a provider in memory, with a cache from before: asked again,
    # it must read what the other one has written.
    (mine,) = [each for each in executors(sc) if each.executor_id == first]
    coordinator.ref.report_active_instance(
        query.provider_id(0), mine.host, mine.executor_id, "elsewhere", ()
    )
    assert query.run(words, 2, count_words) == [("a", 3)]
    assert query.content(3, 1) == {"a": 3}


def test_what_a_job_wrote_is_read_by_our_tools_and_by_spark(
    sc: SparkContext, coordinator: StateCoordinator, tmp_path: Path
) -> None:
    query = Query(tmp_path, coordinator)
    homes = {word: partition_of_key(encode_row((word, 0), KEY), KEY, 2, 2) for word in "abcdef"}
    assert set(homes.values()) == {0, 1}
    words = sc.parallelize([(homes[word], word) for word in "abcdefaa"], 1)
    query.run(words.partitionBy(2, lambda home: int(home or 0)).values(), 0)
    checkpoint = Checkpoint(str(tmp_path))
    conf = conf_of_new_query({SHUFFLE_PARTITIONS: "2"})
    (tmp_path / "metadata").write_text(f'{{"id":"{query.run_id}"}}')
    OffsetLog(str(tmp_path / "offsets")).add(0, OffsetEntry(1, ("0",), conf=conf))
    CommitLog(str(tmp_path / "commits")).add(0, CommitEntry(1))
    ours = {
        (row["partition_id"], row["key"]["key1"], row["value"]["value"])
        for row in read_state(str(tmp_path)).to_pylist()
    }
    assert ours == {(homes[word], word, 3 if word == "a" else 1) for word in homes}
    assert verify(checkpoint.files).healthy
    spark = SparkSession(sc)
    _ = spark.streams  # the reader of 4.3 finds its coordinator through it
    rows = spark.read.format("statestore").load(str(tmp_path)).collect()
    assert {(row.partition_id, row.key.key1, row.value.value) for row in rows} == ours
    (operator,) = spark.read.format("state-metadata").load(str(tmp_path)).collect()
    assert (operator.operatorName, operator.numPartitions) == ("mapPartitionsWithStateStore", 2)


def test_a_job_with_other_rows_or_partitions_is_refused_before_it_runs(
    sc: SparkContext, coordinator: StateCoordinator, tmp_path: Path
) -> None:
    query = Query(tmp_path, coordinator)
    query.run(sc.parallelize(["a", "b"], 2), 0)
    with pytest.raises(StateUsageError, match="has 2 partitions, the job has 3"):
        query.run(sc.parallelize(["a", "b"], 3), 1)
    with pytest.raises(StateSchemaMismatchError, match="VALUE_SCHEMA_NOT_COMPATIBLE"):
        map_partitions_with_state_store(
            sc.parallelize(["a"], 2),
            count_words,
            checkpoint=str(tmp_path),
            version=1,
            query_run_id=query.run_id,
            key_schema=KEY,
            value_schema=KEY,
            coordinator=coordinator,
        )


def test_a_new_context_continues_from_the_files(tmp_path: Path, sc: SparkContext) -> None:
    """Runs last in this module: a second context needs the first one stopped."""
    first = StateCoordinator(sc, CONF)
    query = Query(tmp_path, first)
    words = sc.parallelize(["a"], 1)
    for version in range(20):
        query.run(words, version)
    first.stop()
    sc.stop()
    context = start("local[1]")
    try:
        second = StateCoordinator(context, CONF)
        again = Query(tmp_path, second)
        assert again.run(context.parallelize(["a", "b"], 1), 20) == [("a", 21), ("b", 1)]
        second.stop()
    finally:
        context.stop()
