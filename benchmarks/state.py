"""State compared with Spark 4.3 in one run: reading, changing, memory, and cost by number of keys.

Spark makes the state: string keys to (long, long), two partitions, a batch with every key, one that
changes a tenth, and a snapshot, as in a query that has run for a while. Then both sides take turns
in reading it, loading it, and changing a tenth of its keys, Spark in one warm session on two cores.
Times that Spark measures itself are taken from its progress and its log of the same run.

    python -m benchmarks.state [--keys 1000000] [--largest 10000000]
"""

from __future__ import annotations

import math
import re
import resource
import shutil
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from benchmarks.harness import (
    Cost,
    Report,
    SparkPeer,
    arguments,
    cache_directory,
    median,
    spark_command,
    take_turns,
    time_call,
    time_process,
)

from epochal.state.files.merge import Rows
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.rows.types import AtomicType, StringType, StructField, StructType
from epochal.state.store.hdfs_versions import HdfsVersions
from epochal.tools.read_state.read import open_batch, read_state

ROUNDS, COLD_ROUNDS, CHANGES = 5, 3, 3
LOADED = re.compile(r"Loading state for \d+ takes (\d+) ms")

OUR_READ = """
import sys
from epochal.tools.read_state.read import read_state
print(read_state(sys.argv[1]).num_rows)
"""

KEY = StructType((StructField("k", StringType()),))
VALUE = StructType(
    (StructField("count", AtomicType("long")), StructField("sum", AtomicType("long")))
)


def main() -> None:
    parser = arguments("state")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--largest", type=int, default=10_000_000)
    asked = parser.parse_args()
    if asked.quick:
        asked.keys, asked.largest = 10_000, 100_000
    report = Report("state", busy=asked.busy, quick=asked.quick)
    with tempfile.TemporaryDirectory(dir=cache_directory()) as scratch:
        made, checkpoint = Path(scratch, "made"), Path(scratch, "checkpoint")
        print(f"  making a state of {asked.keys} keys with Spark …", flush=True)
        time_process(spark_command("state", str(made), str(asked.keys)))
        # Spark continues the original: its source log has absolute paths and cannot be copied.
        shutil.copytree(made / "checkpoint", checkpoint)
        with SparkPeer() as spark:
            reading(report, spark, checkpoint, asked.keys)
            loading(report, spark, checkpoint, asked.keys)
            changing(report, spark, made, checkpoint, asked.keys)
        whole_processes(report, checkpoint, asked.keys)
    growing(report, [n for n in (10_000, 100_000, 1_000_000, 3_000_000) if n <= asked.largest])
    largest(report, asked.largest)


def reading(report: Report, spark: SparkPeer, checkpoint: Path, keys: int) -> None:
    """State to Arrow, in warm processes."""
    assert read_state(str(checkpoint)).num_rows == keys
    costs = take_turns(
        ROUNDS,
        {
            "ours": lambda: time_call(lambda: read_state(str(checkpoint))),
            "spark": lambda: Cost(spark.ask("arrow", str(checkpoint)), math.nan),
        },
        warm_up=2,
    )
    report.beside(
        f"state of {keys} keys to Arrow, beside a warm Spark session", costs["ours"], costs["spark"]
    )


def whole_processes(report: Report, checkpoint: Path, keys: int) -> None:
    """State to Arrow, including the start and the end of the process."""
    costs = take_turns(
        COLD_ROUNDS,
        {
            "spark": partial(time_process, spark_command("arrow", str(checkpoint))),
            "ours": partial(time_process, [sys.executable, "-c", OUR_READ, str(checkpoint)]),
        },
    )
    report.beside(f"state of {keys} keys to Arrow, whole processes", costs["ours"], costs["spark"])


def loading(report: Report, spark: SparkPeer, checkpoint: Path, keys: int) -> None:
    """Load all providers, against a count; and one, if Spark's log has the time of its own load.

    Spark loads its two partitions in parallel, on two cores, and the count also visits each row.
    Ours are loaded one after the other in one process; real tasks are separate processes.
    """
    own: list[float] = []

    def spark_count() -> Cost:
        spark.logged()
        wall = spark.ask("count", str(checkpoint))
        own.extend(int(ms) / 1000 for ms in LOADED.findall(spark.logged()))
        return Cost(wall, math.nan)

    def our_load() -> Cost:
        opened = providers(checkpoint)
        return time_call(lambda: [provider.get_read_store(v) for provider, v in opened])

    costs = take_turns(ROUNDS, {"ours": our_load, "spark": spark_count}, warm_up=2)
    ours = costs["ours"]
    report.beside(
        f"load of both providers of {keys} keys one by one, beside a warm Spark count on two cores",
        ours,
        costs["spark"],
    )
    if len(own) != 2 * (ROUNDS + 2):
        print(f"  Spark's log tells of {len(own)} loads, so a single one is not compared")
        return
    report.beside(
        f"load of one provider of {keys // 2} keys, beside Spark's as it logs it",
        Cost(ours.wall_seconds / 2, ours.cpu_seconds / 2),
        Cost(statistics.median(own[4:]), math.nan),
    )


def providers(checkpoint: Path) -> list[tuple[Any, int]]:
    """A fresh provider for each partition, and the newest version."""
    from epochal.state.store.conf import StateStoreConf, StateStoreId
    from epochal.state.store.open_provider import HDFSBackedStateStoreProvider

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


def changing(report: Report, spark: SparkPeer, made: Path, checkpoint: Path, keys: int) -> None:
    """Update and commit a tenth of the keys, summed over partitions as in Spark's progress.

    Each of Spark's rounds continues its query; each of ours starts from a new copy.
    """
    progress: list[dict[str, Any]] = []
    memory: list[int] = []

    def spark_change() -> Cost:
        progress.append(spark.ask("change", str(made), keys // 10))
        assert progress[-1]["numRowsUpdated"] == keys // 10
        milliseconds = progress[-1]["allUpdatesTimeMs"] + progress[-1]["commitTimeMs"]
        return Cost(milliseconds / 1000, math.nan)

    def our_change() -> Cost:
        cost, used = put_and_commit(checkpoint, keys // 10)
        memory.append(used)
        return cost

    costs = take_turns(CHANGES, {"ours": our_change, "spark": spark_change})
    report.beside(
        f"put and commit of {keys // 10} keys on {keys}, beside Spark's update and commit",
        costs["ours"],
        costs["spark"],
        spark_update_milliseconds=[p["allUpdatesTimeMs"] for p in progress],
        spark_commit_milliseconds=[p["commitTimeMs"] for p in progress],
    )
    report.row(
        f"memory per key of {keys}, two versions, as each side counts it",
        bytes_per_key=memory[-1] / keys,
        spark_bytes_per_key=progress[-1]["memoryUsedBytes"] / keys,
    )


def put_and_commit(checkpoint: Path, count: int) -> tuple[Cost, int]:
    """Change this many keys of a copy; return the time, and the memory of both stores."""
    with tempfile.TemporaryDirectory(dir=cache_directory()) as folder:
        copy = shutil.copytree(checkpoint, Path(folder) / "checkpoint")
        stores = [provider.get_store(version) for provider, version in providers(copy)]
        parts = [changed_rows(copy, n, count) for n in range(len(stores))]

        def commit() -> None:
            for store, (key, value) in zip(stores, parts, strict=True):
                store.put_batch(key, value)
                store.commit()

        return time_call(commit), sum(store.metrics.memory_used_bytes for store in stores)


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
    """Read states with more and more keys: the cost per key must not grow."""
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
    """The peak memory of a process that reads a large state."""
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
    from epochal.state.files.schema_file import FamilySchema, encode_schema_file
    from epochal.tools.read_state.read_target import StateSettings

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
        written = HdfsVersions().first_files([Rows(key, value, "")], 1, settings)
        files |= {f"state/0/{partition}/{name}": data for name, data in written.items()}
    for path, data in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


if __name__ == "__main__":
    main()
