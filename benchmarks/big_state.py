"""A task whose state does not fit into memory: load, lookups at a steady rate, memory, restart.

One process holds the state of one task: counts and sums by a string key, in eight partitions, as an
aggregation keeps them. It loads the state from snapshots, which is what a restart does. Then it
updates random keys at a steady rate, in turns of ten rows. Once a second an epoch ends, and another
thread writes its changes, as in a task. At the end the state is published. No Spark, no source and
no sink take part, and neither JVM nor driver are counted. The same with state in dictionaries, as
far as that fits.

    python -m benchmarks.big_state [--quick] [--keys 1000000 10000000 50000000] [--memory 1g]
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from benchmarks.harness import Report, arguments, cache_directory, child_environment, percentile

from epochal.continuous.operators.aggregation.aggregate import AggregateSpec
from epochal.continuous.operators.aggregation.functions import AggregateCall
from epochal.continuous.operators.contract import Moment
from epochal.continuous.plan.compile import UNOPENED
from epochal.continuous.plan.stages import QueryPlan, StagePlan, Target
from epochal.continuous.tasks.task_stores import StateStart, TaskStores
from epochal.files.local import LocalFiles
from epochal.options import parse_size
from epochal.state.files.codecs import compress_pieces
from epochal.state.files.delta_snapshot import END_MARK, encode_spans
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.store.conf import StateStoreConf

PARTITIONS = 8
ROWS_PER_TURN = 10
WARM_UP_SECONDS = 2.0
FITS_IN_DICTIONARIES = 3_000_000
WRITTEN_AT_ONCE = 500_000
FIELDS: list[tuple[str, pa.DataType]] = [("k", pa.string()), ("v", pa.int64())]
INPUT = pa.schema(FIELDS)
SPEC = AggregateSpec(
    ("k",),
    (
        AggregateCall("Count", (), "n", pa.int64()),
        AggregateCall("Sum", ("v",), "total", pa.int64()),
    ),
    INPUT,
    "update",
)


def main() -> None:
    parser = arguments("big_state")
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000, 50_000_000])
    parser.add_argument("--memory", default="1g", help="stateMemory of the task")
    parser.add_argument("--rate", type=int, default=5_000, help="rows per second")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--measure", nargs=2, metavar=("DIRECTORY", "MEMORY"), help="internal")
    asked = parser.parse_args()
    if asked.measure is not None:
        directory, memory = asked.measure
        print(
            json.dumps(measure(Path(directory), asked.keys[0], memory, asked.rate, asked.seconds))
        )
        return
    report = Report("big_state", busy=asked.busy, quick=asked.quick)
    for keys in asked.keys[:1] if asked.quick else asked.keys:
        for memory in (asked.memory, "all"):
            if memory == "all" and keys > FITS_IN_DICTIONARIES:
                continue
            with tempfile.TemporaryDirectory(dir=cache_directory()) as folder:
                write_snapshots(Path(folder), keys)
                found = in_a_process(folder, memory, keys, asked.rate, asked.seconds)
            where = "dictionaries" if memory == "all" else f"disk, stateMemory {memory}"
            report.row("state of a task by number of keys", keys=keys, state_in=where, **found)


def in_a_process(folder: str, memory: str, keys: int, rate: int, seconds: float) -> dict[str, Any]:
    words = ["--measure", folder, memory, "--keys", str(keys)]
    words += ["--rate", str(rate), "--seconds", str(seconds)]
    command = [sys.executable, "-m", "benchmarks.big_state", *words]
    env = {**child_environment(), "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=env)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {run.returncode}")
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def measure(directory: Path, keys: int, memory: str, rate: int, seconds: float) -> dict[str, Any]:
    """Load the state, then update it; the figures of this process."""
    local = directory / "local"
    conf = StateStoreConf(
        memory_bytes=None if memory == "all" else parse_size(memory, "--memory"),
        local_dir=str(local),
    )
    stage = StagePlan(0, SPEC, (INPUT,), (), Target(1))
    plan = QueryPlan((), (), (stage,), UNOPENED, SPEC.output_schema, PARTITIONS)
    empty = peak_mebibytes()
    began, cpu = time.perf_counter(), time.process_time()
    files = LocalFiles(directory)
    stores = TaskStores(plan, range(PARTITIONS), files, conf, attempt=1, run_id="benchmark")
    operator = SPEC.open(range(PARTITIONS), PARTITIONS)
    stores.load([operator], StateStart(1, None))
    loaded, loading_cpu = time.perf_counter() - began, time.process_time() - cpu
    after_load = peak_mebibytes()
    turns, used, late, last = update(operator, stores, keys, rate, seconds)
    after_updates, began = peak_mebibytes(), time.perf_counter()
    stores.publish(last, stores.rows_after(last), 0)
    found = {
        "restart_seconds": loaded,
        "restart_cpu_seconds": loading_cpu,
        "load_keys_per_second": round(keys / loaded),
        "turn_p50_microseconds": percentile(turns, 50) * 1e6,
        "turn_p99_microseconds": percentile(turns, 99) * 1e6,
        "turn_max_milliseconds": max(turns) * 1e3,
        "rows_per_turn": ROWS_PER_TURN,
        "rows_per_second": rate,
        "turns_behind_schedule": late,
        "cpu_microseconds_per_row": used * 1e6,
        "peak_mebibytes_without_state": empty,
        "peak_mebibytes_after_load": after_load,
        "peak_mebibytes_after_updates": after_updates,
        "peak_mebibytes": peak_mebibytes(),
        "publish_seconds": time.perf_counter() - began,
        "disk_mebibytes": size_of(local) >> 20,
    }
    stores.close()
    return found


def update(
    operator: Any, stores: TaskStores, keys: int, rate: int, seconds: float
) -> tuple[list[float], float, int, int]:
    """Update random keys.

    Seconds of each turn, CPU seconds per row, turns that were late, and the last epoch.
    """
    random = np.random.default_rng(1)
    cuts: queue.Queue[tuple[int, Any] | None] = queue.Queue()

    def write() -> None:
        while (cut := cuts.get()) is not None:
            stores.prepare(cut[0], [(0, change) for change in cut[1]])

    writer = threading.Thread(target=write)
    writer.start()
    epoch, turns, late = 1, [], 0
    began, cpu = time.perf_counter(), time.process_time()
    count = int((WARM_UP_SECONDS + seconds) * rate / ROWS_PER_TURN)
    per_epoch = max(1, rate // ROWS_PER_TURN)
    for turn in range(count):
        wait = began + turn * ROWS_PER_TURN / rate - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        elif turn * ROWS_PER_TURN / rate > WARM_UP_SECONDS:
            late += 1
        numbers = random.integers(0, keys, ROWS_PER_TURN)
        at = Moment(0, -1, epoch, -1)
        batches = [
            (partition, batch_of(numbers[numbers % PARTITIONS == partition]))
            for partition in set((numbers % PARTITIONS).tolist())
        ]
        start = time.perf_counter()
        for partition, batch in batches:
            for _ in operator.process(partition, batch, at):
                pass
        if turn * ROWS_PER_TURN / rate > WARM_UP_SECONDS:
            turns.append(time.perf_counter() - start)
        if turn % per_epoch == per_epoch - 1:
            cuts.put((epoch, operator.cut(epoch)))
            epoch += 1
    cuts.put(None)
    writer.join()
    return turns, (time.process_time() - cpu) / count / ROWS_PER_TURN, late, epoch - 1


def names_of(numbers: Any) -> Any:
    digits: Any = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 12, padding="0")
    return pc.binary_join_element_wise(pa.scalar("key-"), digits, pa.scalar(""))


def batch_of(numbers: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([names_of(numbers), pa.array(numbers)], schema=INPUT)


def write_snapshots(root: Path, keys: int) -> None:
    """The snapshot of version 1 of each partition. Key `n` is in partition `n % PARTITIONS`."""
    store = SPEC.stores[0]
    for partition in range(PARTITIONS):
        # Keys that stand together in a snapshot are not neighbours, as in a real one.
        numbers = np.arange(partition, keys, PARTITIONS, dtype=np.int64)
        np.random.default_rng(partition).shuffle(numbers)

        def pieces(numbers: Any = numbers) -> Iterator[bytes]:
            for start in range(0, len(numbers), WRITTEN_AT_ONCE):
                part = numbers[start : start + WRITTEN_AT_ONCE]
                key = pa.StructArray.from_arrays([names_of(part)], names=["k"])
                value = pa.StructArray.from_arrays(
                    [pa.array(part), pa.array(part)], names=list(store.value.names)
                )
                encoded = encode_spans(encode_rows(key, store.key), encode_rows(value, store.value))
                yield encoded[: -len(END_MARK)]
            yield END_MARK

        folder = root / "state" / "0" / str(partition)
        folder.mkdir(parents=True)
        with (folder / "1.snapshot").open("wb") as out:
            for piece in compress_pieces(pieces(), "lz4"):
                out.write(piece)


def peak_mebibytes() -> int:
    """The peak of this process. That of `getrusage` would include its parent's before `exec`."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def size_of(path: Path) -> int:
    return sum(os.path.getsize(Path(at, name)) for at, _, names in os.walk(path) for name in names)


if __name__ == "__main__":
    main()
