"""Child processes of the Pub/Sub benchmark with Spark: each has its own session, `local[2]`.

drain   how fast micro-batches read a full subscription to noop, and which phase takes the time
stall   how the memory of the sidecar develops while a batch does not end
relay   relays messages from one topic to another, in micro-batches or in the engine
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import epochal
from epochal.connectors.pubsub.connection import Connection
from epochal.connectors.pubsub.data_source.register import register
from epochal.connectors.pubsub.publish.encode import Encoder
from epochal.connectors.pubsub.publish.publisher import Publisher
from epochal.connectors.pubsub.pubsub_options import Access, SinkOptions

PROJECT = "bench"


def session() -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def options(address: str) -> dict[str, str]:
    return {"emulatorHost": address, "projectId": PROJECT}


def publisher(address: str, topic: str) -> Publisher:
    access = Access(emulator_host=address, project_id=PROJECT)
    sink = SinkOptions(topic_id=f"projects/{PROJECT}/topics/{topic}", linger_ms=1)
    return Publisher(Connection(access), sink)


def fill(address: str, topic: str, size: int, count: int) -> None:
    import pyarrow as pa

    writer = publisher(address, topic)
    rows = pa.RecordBatch.from_pydict({"data": [b"x" * size] * 10_000})
    encoder = Encoder(rows.schema, SinkOptions(topic_id="topic"))
    for _ in range(count // rows.num_rows):
        writer.add(encoder.encode(rows).messages)
    writer.flush()
    writer.close()


def source(spark: SparkSession, address: str, subscription: str, **more: Any) -> Any:
    reader = spark.readStream.format("pubsub").options(**options(address), **more)
    return reader.option("subscriptionId", subscription).load()


def drain(address: str, size: int, count: int) -> dict[str, Any]:
    """Rows per second from the first full batch to the last, and the phase that took the time."""
    spark = session()
    fill(address, "arrivals", size, count)
    frame = source(spark, address, "arrivals-sub", numPartitions=2, maxRecordsPerFetch=50_000)
    with tempfile.TemporaryDirectory() as folder:
        query = frame.writeStream.format("noop").option("checkpointLocation", f"{folder}/c").start()
        deadline, seen = time.monotonic() + 300, 0
        while seen < count and time.monotonic() < deadline:
            time.sleep(0.2)
            seen = sum(each["numInputRows"] for each in query.recentProgress)
        full = [each for each in query.recentProgress if each["numInputRows"]]
        query.stop()
    spark.stop()
    steady = full[1:] or full
    rows = sum(each["numInputRows"] for each in steady)
    spent = {
        name: sum(each["durationMs"].get(name, 0) for each in steady)
        for name in ("addBatch", "walCommit", "latestOffset", "queryPlanning", "commitOffsets")
    }
    total = sum(each["durationMs"]["triggerExecution"] for each in steady)
    limit = max(spent, key=lambda name: spent[name])
    return {
        "rows": rows,
        "rows_in_all": seen,
        "batches": len(steady),
        "per_second": round(1000 * rows / total),
        "limited_by": limit,
        "limit_share": spent[limit] / total,
        **{f"{name}_ms": round(ms) for name, ms in spent.items()},
    }


def stall(address: str, size: int, seconds: float) -> dict[str, Any]:
    """The resident memory of the sidecar while a batch is stalled and messages keep arriving."""
    spark = session()
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    stop = threading.Event()

    def pour() -> None:
        while not stop.is_set():
            try:
                fill(address, "arrivals", size, 50_000)
            except Exception as error:  # noqa: BLE001 - the server is full: that is the point
                print(f"the server takes no more: {error}", file=sys.stderr)
                stop.wait(2)

    threading.Thread(target=pour, daemon=True).start()
    frame = source(
        spark, address, "arrivals-sub", reservoirBytes=64 << 20, maxRecordsPerFetch=20_000
    )
    held: list[float] = []
    over = threading.Event()

    def stand_still(batch_frame: Any, _batch: int) -> None:
        if not over.is_set() and batch_frame.count():
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                held.append(sidecar_mib(jvm))
                time.sleep(min(1.0, seconds / 10))
            over.set()

    with tempfile.TemporaryDirectory() as folder:
        query = frame.writeStream.foreachBatch(stand_still)
        running = query.option("checkpointLocation", f"{folder}/c").start()
        deadline = time.monotonic() + 120 + seconds
        while not over.wait(0.2) and time.monotonic() < deadline and running.isActive:
            pass
        stop.set()
        running.stop()
    spark.stop()
    third = max(len(held) // 3, 1)
    return {
        "seconds": seconds,
        "reservoir_mib": 64,
        "rss_first_third_mib": statistics.median(held[:third]),
        "rss_last_third_mib": statistics.median(held[-third:]),
        "rss_peak_mib": max(held),
    }


def sidecar_mib(jvm: int) -> float:
    """The resident memory of the sidecar of this JVM, in MiB."""
    found, name = 0.0, b"epochal.connectors.pubsub.sidecar.sidecar"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if name in command and str(jvm).encode() in command:
                    pages = int((entry / "statm").read_text().split()[1])
                    found += pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            except OSError:
                continue
    if not found:
        raise RuntimeError(f"No sidecar runs beside the JVM {jvm}.")
    return found


def relay(address: str, engine: str) -> None:
    """Relay messages from one topic to another until the input ends."""
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        if engine == "continuous":
            stream = (
                epochal.read_stream(spark)
                .format("pubsub")
                .options(**options(address), subscriptionId="arrivals-sub", numPartitions=1)
                .load()
            )
            running: Any = (
                stream.select("data")
                .write_stream.format("pubsub")
                .options(**options(address), topicId="departures", lingerMs=0, parallelism=1)
                .option("checkpointLocation", f"{folder}/c")
                .trigger(epoch="100 milliseconds")
                .start()
            )
        else:
            running = (
                source(spark, address, "arrivals-sub", numPartitions=1)
                .select("data")
                .writeStream.format("pubsub")
                .options(**options(address), topicId="departures", lingerMs="0")
                .option("checkpointLocation", f"{folder}/c")
                .start()
            )
        sys.stdin.read()
        running.stop()
    spark.stop()


def main() -> None:
    match sys.argv[1:]:
        case ["drain", address, size, count]:
            found = drain(address, int(size), int(count))
        case ["stall", address, size, seconds]:
            found = stall(address, int(size), float(seconds))
        case ["relay", address, engine]:
            relay(address, engine)
            found = {}
        case other:
            raise SystemExit(f"not a benchmark: {other}")
    print("RESULT " + json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
