"""State beside Spark 4.3, from one run: reading, changing, memory, and how cost grows with keys.

Spark makes the state once (kept in the cache directory): string keys to (long, long), two
partitions, a batch with every key and a batch that changes a tenth of them. Then both sides read
it, and both sides' update and commit of that tenth are compared: Spark's from its own progress.

    python -m benchmarks.state [--keys 1000000] [--largest 10000000]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from benchmarks.harness import Cost, Report, cache_directory, median, time_call, time_process

from epochal.state.columns import encode_rows
from epochal.state.edit import snapshot_bytes
from epochal.state.merge import Rows
from epochal.state.read import open_batch, read_state
from epochal.state.types import AtomicType, StringType, StructField, StructType

ROUNDS, SPARK_ROUNDS, COLD_ROUNDS = 7, 5, 2

MAKE = """
import sys, json
from pyspark.sql import SparkSession, functions as F
target, keys = sys.argv[1], int(sys.argv[2])
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.driver.memory", "6g").config("spark.sql.shuffle.partitions", "2")
         .config("spark.sql.streaming.stateStore.minDeltasForSnapshot", "1")
         .getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
def rows(n):
    key = F.format_string("key-%08d", "id")
    return spark.range(n).select(key.alias("k"), F.col("id").alias("v"))
rows(keys).coalesce(1).write.mode("append").parquet(target + "/in")
def run():
    q = (spark.readStream.schema("k string, v long").parquet(target + "/in")
         .groupBy("k").agg(F.count("*"), F.sum("v")).writeStream.outputMode("update").format("noop")
         .option("checkpointLocation", target + "/checkpoint").trigger(availableNow=True).start())
    q.awaitTermination()
    return [json.loads(p.json) for p in q.recentProgress if p.numInputRows][-1]["stateOperators"][0]
run()
changed = []
for _ in range(3):
    rows(keys // 10).coalesce(1).write.mode("append").parquet(target + "/in")
    changed.append(run())
json.dump(changed, open(target + "/progress.json", "w"))
"""

SPARK_READ = """
import sys, json, time
from pyspark.sql import SparkSession
path, rounds = sys.argv[1], int(sys.argv[2])
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.driver.memory", "6g").config("spark.driver.maxResultSize", "4g")
         .getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
def timed(action):
    start = time.perf_counter()
    action(spark.read.format("statestore").load(path))
    return time.perf_counter() - start
found = {"arrow": [], "count": []}
for n in range(rounds):
    found["arrow"].append(timed(lambda frame: frame.toArrow()))
    if rounds > 1:
        found["count"].append(timed(lambda frame: frame.count()))
print(json.dumps(found))
"""

OUR_READ = """
import sys
from epochal.state.read import read_state
print(read_state(sys.argv[1]).num_rows)
"""

KEY = StructType((StructField("k", StringType()),))
VALUE = StructType(
    (StructField("count", AtomicType("long")), StructField("sum", AtomicType("long")))
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--largest", type=int, default=10_000_000)
    asked = parser.parse_args()
    report = Report("state")
    made = prepared(asked.keys)
    reading(report, made / "checkpoint", asked.keys)
    changing(report, made, asked.keys)
    growing(report, [n for n in (10_000, 100_000, 1_000_000, 3_000_000) if n <= asked.largest])
    largest(report, asked.largest)


def prepared(keys: int) -> Path:
    """The checkpoint that Spark made, and its progress."""
    target = cache_directory() / f"state-{keys}"
    if not target.exists():
        print(f"  making a state of {keys} keys with Spark …")
        scratch = Path(tempfile.mkdtemp(dir=cache_directory()))
        time_process([sys.executable, "-c", MAKE, str(scratch / "made"), str(keys)])
        (scratch / "made").rename(target)
        shutil.rmtree(scratch)
    return target


def reading(report: Report, checkpoint: Path, keys: int) -> None:
    """State to Arrow: ours, a warm Spark session's, and whole processes of both."""
    assert read_state(str(checkpoint)).num_rows == keys
    ours = median([time_call(lambda: read_state(str(checkpoint))) for _ in range(ROUNDS)])
    warm = spark_times(checkpoint, SPARK_ROUNDS + 2)
    spark = sorted(warm["arrow"][2:])[SPARK_ROUNDS // 2]
    report.row(
        f"state of {keys} keys to Arrow, beside a warm Spark session",
        wall_seconds=ours.wall_seconds,
        cpu_seconds=ours.cpu_seconds,
        spark_wall_seconds=spark,
        wall_ratio=spark / ours.wall_seconds,
    )
    command = [sys.executable, "-c", OUR_READ, str(checkpoint)]
    cold = median([time_process(command) for _ in range(ROUNDS)])
    peer = median(
        [
            time_process([sys.executable, "-c", SPARK_READ, str(checkpoint), "1"])
            for _ in range(COLD_ROUNDS)
        ]
    )
    report.row(
        f"state of {keys} keys to Arrow, whole processes",
        wall_seconds=cold.wall_seconds,
        cpu_seconds=cold.cpu_seconds,
        spark_wall_seconds=peer.wall_seconds,
        spark_cpu_seconds=peer.cpu_seconds,
        wall_ratio=peer.wall_seconds / cold.wall_seconds,
        cpu_ratio=peer.cpu_seconds / cold.cpu_seconds,
    )
    loading(report, checkpoint, keys, sorted(warm["count"][2:])[SPARK_ROUNDS // 2])


def spark_times(checkpoint: Path, rounds: int) -> dict[str, list[float]]:
    run = subprocess.run(
        [sys.executable, "-c", SPARK_READ, str(checkpoint), str(rounds)],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[float]] = json.loads(run.stdout.splitlines()[-1])
    return found


def loading(report: Report, checkpoint: Path, keys: int, spark_count: float) -> None:
    """Loading both partitions into providers; Spark's is a warm count, which loads and iterates."""
    costs = [
        time_call(lambda: [p.get_read_store(v) for p, v in providers(checkpoint)]) for _ in range(3)
    ]
    report.row(
        f"provider load of {keys} keys, beside a warm Spark count of the same state",
        wall_seconds=median(costs).wall_seconds,
        cpu_seconds=median(costs).cpu_seconds,
        spark_wall_seconds=spark_count,
        wall_ratio=spark_count / median(costs).wall_seconds,
    )


def providers(checkpoint: Path) -> list[tuple[Any, int]]:
    """A fresh provider for each partition, and the newest version."""
    from epochal.state.conf import StateStoreConf
    from epochal.state.ids import StateStoreId
    from epochal.state.provider import HDFSBackedStateStoreProvider

    batch = open_batch(str(checkpoint))
    schema = batch.store(0).schema
    conf = StateStoreConf.from_spark(batch.offsets.conf)
    return [
        (
            HDFSBackedStateStoreProvider(
                StateStoreId(f"{checkpoint}/state", 0, partition), schema.key, schema.value, conf
            ),
            batch.version,
        )
        for partition in batch.partitions(0)
    ]


def changing(report: Report, made: Path, keys: int) -> None:
    """`put_batch` and `commit` of a tenth of the keys, summed over partitions as Spark sums it.

    Spark's side was measured when the state was made, which may be an earlier run at another load:
    remove the made state from the cache to measure both in one run.
    """
    progress = json.loads((made / "progress.json").read_text())
    spark = sorted(p["allUpdatesTimeMs"] + p["commitTimeMs"] for p in progress)[len(progress) // 2]
    costs: list[Cost] = []
    memory = 0
    for _ in range(3):
        with tempfile.TemporaryDirectory(dir=cache_directory()) as folder:
            copy = Path(folder) / "checkpoint"
            shutil.copytree(made / "checkpoint", copy)
            stores = [p.get_store(v) for p, v in providers(copy)]
            parts = [changed_rows(copy, n, keys // 10) for n in range(len(stores))]

            def commit(stores: list[Any] = stores, parts: list[Any] = parts) -> None:
                for store, (key, value) in zip(stores, parts, strict=True):
                    store.put_batch(key, value)
                    store.commit()

            costs.append(time_call(commit))
            memory = sum(store.metrics.memory_used_bytes for store in stores)
    ours = median(costs)
    report.row(
        f"put and commit of {keys // 10} keys on {keys}, beside Spark's as it made this state",
        wall_seconds=ours.wall_seconds,
        cpu_seconds=ours.cpu_seconds,
        spark_wall_seconds=spark / 1000,
        wall_ratio=spark / 1000 / ours.wall_seconds,
    )
    report.row(
        f"memory per key of {keys}, as each side counts it",
        bytes_per_key=memory / keys,
        spark_bytes_per_key=progress[-1]["memoryUsedBytes"] / keys,
    )


def changed_rows(checkpoint: Path, partition: int, count: int) -> tuple[Any, Any]:
    """The rows of one partition whose key is among the first `count`, with other values."""
    table = read_state(str(checkpoint), partition=partition)
    names = pc.struct_field(table["key"], "k").combine_chunks()
    below: Any = pc.less(names, pa.scalar(f"key-{count:08d}"))
    names = names.filter(below)
    numbers = pa.array(np.arange(len(names), dtype=np.int64))
    return (
        pa.record_batch([names], names=["k"]),
        pa.record_batch([numbers, numbers], names=["count", "sum"]),
    )


def growing(report: Report, sizes: list[int]) -> None:
    """The same reading for more and more keys: the cost of one must not grow."""
    for keys in sizes:
        with tempfile.TemporaryDirectory(dir=cache_directory()) as folder:
            write_checkpoint(Path(folder), keys)
            cost = median([time_call(partial(read_state, folder)) for _ in range(3)])
        report.row(
            "state to Arrow, by number of keys",
            keys=keys,
            wall_seconds=cost.wall_seconds,
            cpu_microseconds_per_key=cost.cpu_seconds / keys * 1e6,
        )


def largest(report: Report, keys: int) -> None:
    """The whole memory of a process that reads a large state."""
    with tempfile.TemporaryDirectory(dir=cache_directory()) as folder:
        write_checkpoint(Path(folder), keys)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        cost = time_process([sys.executable, "-c", OUR_READ, folder])
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    report.row(
        f"state of {keys} keys to Arrow, whole process",
        wall_seconds=cost.wall_seconds,
        cpu_seconds=cost.cpu_seconds,
        peak_gibibytes=peak / 2**20 if peak > before else "below an earlier child's",
    )


def write_checkpoint(root: Path, keys: int) -> None:
    """A checkpoint of one batch with a snapshot in each of two partitions."""
    from epochal.checkpoint.entries import COMMIT_FORMAT, OFFSET_FORMAT, CommitEntry, OffsetEntry
    from epochal.state.schema_file import FamilySchema, encode_schema_file
    from epochal.state.target import StateSettings

    conf = {"spark.sql.shuffle.partitions": "2"}
    files = {
        "metadata": b'{"id":"53b62e34-0476-452d-8313-c1786e091891"}',
        "offsets/0": OFFSET_FORMAT.serialize(OffsetEntry(1, ("0",), conf=conf)),
        "commits/0": COMMIT_FORMAT.serialize(CommitEntry()),
        "state/0/0/_metadata/schema": encode_schema_file([FamilySchema("default", KEY, VALUE)]),
    }
    settings = StateSettings.from_conf(conf, "benchmark")
    for partition in range(2):
        numbers = np.arange(partition, keys, 2, dtype=np.int64)
        digits: Any = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, padding="0")
        names: Any = pc.binary_join_element_wise(pa.scalar("key-"), digits, pa.scalar(""))
        key = encode_rows(pa.StructArray.from_arrays([names], names=["k"]), KEY)
        values = pa.array(numbers)
        value = encode_rows(
            pa.StructArray.from_arrays([values, values], names=["count", "sum"]), VALUE
        )
        files[f"state/0/{partition}/1.snapshot"] = snapshot_bytes([Rows(key, value, "")], settings)
    for path, data in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    main()
