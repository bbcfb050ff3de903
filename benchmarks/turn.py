"""The CPU time of a turn in the worker's real loop, by the number of rows that the turn has.

Tasks are processes of their own; the driver, which ends an epoch every 100 ms, is in this one.
There is no Spark and no JVM, and the driver is not counted. `hot` turns follow each other at once,
`cold` ones sleep in between, as they do at a low rate: for 2 ms, or as long as an idle task does.
Then come runs at fixed rates, with the delay of rows from the time they were due to the sink.

    python -m benchmarks.turn [--quick] [--busy] [--profile] [map|state|count|rates ...]

Maps go from Kafka to Kafka, with a real broker; state and counts from rows in memory to nowhere.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from benchmarks.continuous import KEYS, RunningCount
from benchmarks.due_rows import SECOND, DueSource, NotingSink, Schedule, read_notes
from benchmarks.harness import Report, arguments
from benchmarks.kafka_load import Load, create_topics, fill
from benchmarks.turn_task import Watch, run_watched

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.clock import SystemClock
from epochal.connectors.at_least_once import NoopSink
from epochal.connectors.registry import open_sink, open_source
from epochal.continuous.operators.aggregation.named import Aggregate, planned
from epochal.continuous.operators.processor.transform_with_state import TransformWithStateSpec
from epochal.continuous.operators.stateless.row_operators import MapInArrowSpec
from epochal.continuous.plan.compile import compile_plan
from epochal.continuous.plan.logical import Node, Stateful, Step, StreamSource
from epochal.continuous.plan.stages import QueryPlan, readers_of, readers_of_task
from epochal.continuous.tasks.task_stores import StateStart
from epochal.continuous.tasks.worker import TaskAssignment
from epochal.epoch.committed import CommittedEpoch
from epochal.epoch.driver import EpochDriver, Listeners
from epochal.epoch.durable import EpochResources
from epochal.epoch.epoch_files.chain_files import StateFiles
from epochal.epoch.messages import EpochReply, EpochRequest, TaskReady
from epochal.epoch.open_epoch import Pace
from epochal.files import open_files
from epochal.rpc.envelope import EndpointType, PeerId
from epochal.rpc.server import RpcServer
from epochal.testing.kafka import running_kafka

ENDPOINT = EndpointType("EpochCoordinator-turn", EpochRequest, EpochReply)
SPAWN = multiprocessing.get_context("spawn")
RECORDS = pa.schema([("key", pa.binary()), ("value", pa.binary())])
STATE = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("due", pa.int64())])
START_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Size:
    warm_up_seconds: float = 2.0
    measured_seconds: float = 4.0
    records: int = 400_000
    rows: tuple[int, ...] = (0, 1, 20)
    """Of a turn."""
    rates: tuple[int, ...] = (1_000, 50_000)


QUICK = Size(0.5, 1.0, 100_000, (0, 1), (50_000,))


def marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        values = [cast(bytes, value) + b"!" for value in batch.column("value").to_pylist()]
        yield pa.RecordBatch.from_arrays(
            [batch.column("key"), pa.array(values, pa.binary())], names=["key", "value"]
        )


@dataclass(frozen=True, slots=True)
class Query:
    """A plan, and what the driver needs to run it."""

    plan: QueryPlan
    source: Any
    sink: Any
    has_rows: bool = True


def state_tree(source: StreamSource) -> Node:
    spec = TransformWithStateSpec.plan(RunningCount(), ["key"], source.schema, STATE)
    return Stateful((source,), 0, spec)


def count_tree(source: StreamSource) -> Node:
    before, spec = planned(
        keys=("key",),
        window=None,
        aggregates=[Aggregate("count", None, "n"), Aggregate("max", "due", "due")],
        input_schema=source.schema,
        event_time=None,
        output_mode="update",
    )
    child = source if before is None else Step(source, before, spec.input_schema)
    return Stateful((child,), 0, spec)


TREES: dict[str, Callable[[StreamSource], Node]] = {"state": state_tree, "count": count_tree}


def memory_query(work: str, schedule: Schedule, tasks: int, sink: Any) -> Query:
    source = DueSource(schedule)
    plan = compile_plan(TREES[work](StreamSource(0, source, {}, None, source.schema)), [source])
    plan = replace(plan, writers=sink.writers, state_partitions=tasks)
    return Query(plan, source, sink, schedule.start_ns < time.time_ns())


def kafka_query(servers: str, topic: str, target: str, home: str) -> Query:
    files = open_files(home)
    files.make_dirs()
    options = {
        "kafka.bootstrap.servers": servers,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    source = open_source("kafka", options, None, files, 0, parallelism=1)
    to = {"kafka.bootstrap.servers": servers, "topic": target, "delivery": "at-least-once"}
    sink = open_sink("kafka", to, RECORDS, checkpoint=files, query_id="turn")
    leaf = StreamSource(0, "kafka", options, None, source.schema)
    plan = compile_plan(Step(leaf, MapInArrowSpec(marked, RECORDS), RECORDS), [source])
    return Query(replace(plan, writers=sink.writers, state_partitions=1), source, sink)


@contextmanager
def running(query: Query, tasks: int, home: str, watch: Watch) -> Iterator[None]:
    """Tasks that run a query until the end of the block, with their driver."""
    files, failed, any_epoch = open_files(home), threading.Event(), threading.Event()
    server = RpcServer(advertised_host="127.0.0.1", bind_host="127.0.0.1")

    def push(peers: Sequence[PeerId], message: EpochReply) -> None:
        server.push(ENDPOINT, peers, message)

    def committed(epoch: CommittedEpoch, positions: Any) -> None:
        del epoch, positions
        any_epoch.set()

    def fail(error: Exception) -> None:
        print(error, file=sys.stderr)
        failed.set()

    resources = EpochResources(
        url=home,
        offsets=OffsetLog(files.at("offsets")),
        commits=CommitLog(files.at("commits")),
        sources=(query.source,),
        sink=query.sink,
        state=StateFiles(files),
        owned=lambda: True,
        run_id="turn",
    )
    driver = EpochDriver(
        resources,
        Listeners(push=push, committed=committed, failed=fail),
        attempt=1,
        clock=SystemClock(),
        pace=Pace(epoch_seconds=0.1),
    )
    ready: set[int] = set()

    def handle(message: Any, peer: PeerId) -> Any:
        if isinstance(message, TaskReady):
            ready.add(message.task)
        return driver.handle(message, peer)

    server.register(ENDPOINT, handle)
    readers = readers_of(driver.recover().positions)
    driver.start([(each.source, each.partition) for each in readers], tasks)
    server.start()
    processes = []
    for task in range(tasks):
        assignment = TaskAssignment(
            rpc=server.address,
            endpoint=ENDPOINT.name,
            run_id="turn",
            attempt=1,
            task=task,
            tasks=tasks,
            plan=query.plan,
            readers=readers_of_task(readers, task, tasks),
            first_epoch=0,
            state=StateStart(0, None),
            checkpoint=home,
        )
        own = replace(watch, file=f"{watch.file}-{task}.npy")
        process = SPAWN.Process(target=run_watched, args=(assignment, own), daemon=True)
        process.start()
        processes.append(process)
    try:
        deadline = time.monotonic() + START_SECONDS
        while len(ready) < tasks:
            if failed.is_set() or time.monotonic() > deadline:
                raise RuntimeError(f"{len(ready)} of {tasks} tasks are ready")
            time.sleep(0.05)
        if query.has_rows and not any_epoch.wait(START_SECONDS):
            raise RuntimeError("no epoch was committed")
        yield
        driver.stop()
        for process in processes:
            process.join(START_SECONDS)
    finally:
        for process in processes:
            process.kill()
        driver.close()
        server.stop()
    if failed.is_set() or any(process.exitcode != 0 for process in processes):
        raise RuntimeError("a task failed; see above")


def turns(file: str, tasks: int, begin_ns: int) -> Any:
    """The turns of all tasks that ended after `begin_ns`, except the last tenth of a second."""
    found = [np.load(f"{file}-{task}.npy") for task in range(tasks)]
    whole = np.concatenate([each[each[:, 0] < each[-1, 0] - SECOND // 10] for each in found])
    return whole[whole[:, 0] >= begin_ns]


def cost(kept: Any) -> dict[str, Any]:
    """The CPU time of some turns."""
    if not len(kept):
        return {"turns": 0}
    micros = kept[:, 1] / 1e3
    p10, p50, p99 = np.percentile(micros, [10, 50, 99])
    return {"turns": len(kept), "p10_us": p10, "p50_us": p50, "p99_us": p99}


def per_row(all_turns: Any) -> dict[str, float]:
    """CPU time of the data threads for each row that was read, idle turns included.

    Without rows it is the CPU time per second.
    """
    rows, cpu_ns = int(all_turns[:, 2].sum()), int(all_turns[:, 1].sum())
    if rows:
        return {"cpu_us_per_row": cpu_ns / 1e3 / rows}
    seconds = (all_turns[:, 0].max() - all_turns[:, 0].min()) / SECOND
    return {"cpu_ms_per_second": cpu_ns / 1e6 / seconds}


def show_profile(watch: Watch, name: str) -> None:
    if watch.profile:
        print(f"--- {name}")
        print(Path(f"{watch.file}-0.txt").read_text())


def fixed_turns(
    report: Report, name: str, tasks: int, size: Size, profile: bool, make: Callable[..., Query]
) -> None:
    """Turns of 0, 1 and 20 rows, hot and cold."""
    for rows, heat in product(size.rows, ("hot", "cold")):
        with tempfile.TemporaryDirectory() as home:
            sleep = heat == "cold" and rows > 0
            watch = Watch(f"{home}/turns", rows or None, sleep, heat == "hot", profile)
            with running(make(home, rows), tasks, f"{home}/checkpoint", watch):
                time.sleep(size.warm_up_seconds)
                begin = time.time_ns()
                time.sleep(size.measured_seconds)
            seen = turns(watch.file, tasks, begin)
            figure = f"{name}, {rows} rows, {heat}"
            report.row(figure, tasks=tasks, **cost(seen[seen[:, 2] == rows]), **per_row(seen))
            show_profile(watch, figure)


def maps(report: Report, size: Size, profile: bool) -> None:
    with running_kafka() as broker, ExitStack() as stack:
        servers = broker.bootstrap_servers
        create_topics(servers, "full", "empty", "out", "live")
        fill(servers, "full", size.records)

        def make(home: str, rows: int) -> Query:
            topic = "full" if rows else "empty"
            query = kafka_query(servers, topic, "out", f"{home}/checkpoint")
            return replace(query, has_rows=rows > 0)

        fixed_turns(report, "map", 1, size, profile, make)
        load = Load(servers, "live", 1_000)
        stack.callback(load.stop)
        load.runs.set()
        home = stack.enter_context(tempfile.TemporaryDirectory())
        watch = Watch(f"{home}/turns", profile=profile)
        query = kafka_query(servers, "live", "out", f"{home}/checkpoint")
        with running(query, 1, f"{home}/checkpoint", watch):
            time.sleep(size.warm_up_seconds)
            begin = time.time_ns()
            time.sleep(2 * size.measured_seconds)
        seen = turns(watch.file, 1, begin)
        for label, low, high in (("0", 0, 0), ("1", 1, 1), ("2 to 5", 2, 5)):
            kept = seen[(seen[:, 2] >= low) & (seen[:, 2] <= high)]
            report.row(f"map at 1000 rows/s, {label} rows", tasks=1, **cost(kept), **per_row(seen))
        show_profile(watch, "map at 1000 rows/s")


def operators(work: str) -> Callable[[Report, Size, bool], None]:
    def measure(report: Report, size: Size, profile: bool) -> None:
        for tasks in (1, 2):

            def make(home: str, rows: int, tasks: int = tasks) -> Query:
                # Without rows, the first one is due in an hour.
                start = time.time_ns() + (0 if rows else 3600 * SECOND)
                schedule = Schedule(start, 0 if rows else 1, KEYS, tasks)
                return memory_query(work, schedule, tasks, NoopSink())

            fixed_turns(report, work, tasks, size, profile, make)

    return measure


def rates(report: Report, size: Size, profile: bool) -> None:
    """Delays and CPU at fixed rates, on two tasks."""
    for rate, work in product(size.rates, TREES):
        memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory(dir=memory) as at:
            watch = Watch(f"{home}/turns", profile=profile)
            schedule = Schedule(time.time_ns() + 2 * SECOND, rate // 2, KEYS, 2)
            query = memory_query(work, schedule, 2, NotingSink(at))
            with running(query, 2, f"{home}/checkpoint", watch):
                time.sleep(2 + size.warm_up_seconds)
                begin = time.time_ns()
                time.sleep(2 * size.measured_seconds)
                end = time.time_ns() - SECOND // 2
            notes = read_notes(at)
            delays = notes[(notes[:, 0] >= begin) & (notes[:, 0] < end)][:, 1] / 1e6
            p50, p99, p999 = np.percentile(delays, [50, 99, 99.9])
            seen = turns(watch.file, 2, begin)
            report.row(
                f"{work} at {rate} rows/s",
                tasks=2,
                rows=len(delays),
                p50_ms=p50,
                p99_ms=p99,
                p999_ms=p999,
                **per_row(seen),
            )
            show_profile(watch, f"{work} at {rate} rows/s")


PARTS: dict[str, Callable[[Report, Size, bool], None]] = {
    "map": maps,
    "state": operators("state"),
    "count": operators("count"),
    "rates": rates,
}


def main(words: list[str]) -> None:
    parser = arguments("turn")
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("parts", nargs="*", help=f"some of {', '.join(PARTS)}; by default all")
    asked = parser.parse_args(words)
    unknown = [part for part in asked.parts if part not in PARTS]
    if unknown:
        raise SystemExit(f"There is no part {unknown[0]}. Parts: {', '.join(PARTS)}.")
    report = Report("turn", busy=asked.busy, quick=asked.quick or asked.profile)
    for part in asked.parts or PARTS:
        PARTS[part](report, QUICK if asked.quick else Size(), asked.profile)


if __name__ == "__main__":
    main(sys.argv[1:])
