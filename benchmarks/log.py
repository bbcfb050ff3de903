"""The metadata log: the tools beside a Spark session, `add` beside a bare fsync, import time.

Makes a checkpoint of 100 batches and 200 partitions with Spark once (a few minutes; kept in the
cache directory), then measures whole processes, interleaved.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import (
    Cost,
    Report,
    cache_directory,
    epochal_command,
    median,
    percentile,
    time_process,
)

from epochal.checkpoint import CommitLog
from epochal.checkpoint.entries import CommitEntry

BATCHES, PARTITIONS = 100, 200
ROUNDS, SPARK_ROUNDS, ADDS = 7, 3, 400

MAKE_CHECKPOINT = """
import sys, json, os
from pyspark.sql import SparkSession, functions as F
target, batches, partitions = sys.argv[1], int(sys.argv[2]), sys.argv[3]
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
         .config("spark.sql.shuffle.partitions", partitions).getOrCreate())
spark.sparkContext.setLogLevel("ERROR")
os.makedirs(target + "/in")
for n in range(batches):
    with open(f"{target}/in/{n:04}.json", "w") as out:
        for k in range(400):
            out.write(json.dumps({"k": f"key-{(n * 37 + k) % 1000}", "v": k}) + "\\n")
query = (spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", "1")
         .json(target + "/in")
         .groupBy("k").agg(F.count("*"), F.sum("v")).writeStream.outputMode("update").format("noop")
         .option("checkpointLocation", target + "/checkpoint").trigger(availableNow=True).start())
query.awaitTermination()
"""

SPARK_READS = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
rows = spark.read.format("state-metadata").load(sys.argv[1]).collect()
assert rows, "state-metadata is empty"
"""


def main() -> None:
    report = Report("log")
    checkpoint = prepared_checkpoint()
    tools_beside_spark(report, checkpoint)
    import_cost(report)
    add_beside_fsync(report)


def prepared_checkpoint() -> Path:
    target = cache_directory() / f"log-{BATCHES}x{PARTITIONS}"
    if not target.exists():
        print(
            f"  making a checkpoint of {BATCHES} batches and {PARTITIONS} partitions with Spark …"
        )
        partial = Path(tempfile.mkdtemp(dir=cache_directory()))
        made = partial / "made"
        made.mkdir()
        time_process(
            [sys.executable, "-c", MAKE_CHECKPOINT, str(made), str(BATCHES), str(PARTITIONS)]
        )
        made.rename(target)
        shutil.rmtree(partial)
    return target / "checkpoint"


def tools_beside_spark(report: Report, checkpoint: Path) -> None:
    show = epochal_command("checkpoint", "show", str(checkpoint), "--json")
    verify = epochal_command("checkpoint", "verify", str(checkpoint), "--json")
    spark = [sys.executable, "-c", SPARK_READS, str(checkpoint)]
    time_process(show)
    time_process(spark)
    costs: dict[str, list[Cost]] = {"show": [], "verify": [], "spark": []}
    for n in range(ROUNDS):
        costs["show"].append(time_process(show))
        costs["verify"].append(time_process(verify))
        if n < SPARK_ROUNDS:
            costs["spark"].append(time_process(spark))
    peer = median(costs["spark"])
    for tool in ("show", "verify"):
        ours = median(costs[tool])
        report.row(
            f"checkpoint {tool}, whole process, beside Spark's state-metadata",
            wall_seconds=ours.wall_seconds,
            cpu_seconds=ours.cpu_seconds,
            spark_wall_seconds=peer.wall_seconds,
            spark_cpu_seconds=peer.cpu_seconds,
            wall_ratio=peer.wall_seconds / ours.wall_seconds,
            cpu_ratio=peer.cpu_seconds / ours.cpu_seconds,
        )


def import_cost(report: Report) -> None:
    bare, ours = [], []
    for _ in range(ROUNDS):
        bare.append(time_process([sys.executable, "-c", "pass"]))
        ours.append(time_process([sys.executable, "-c", "import epochal"]))
    report.row(
        "import epochal, CPU above a bare interpreter",
        cpu_milliseconds=(median(ours).cpu_seconds - median(bare).cpu_seconds) * 1000,
        whole_process_cpu_milliseconds=median(ours).cpu_seconds * 1000,
    )


def add_beside_fsync(report: Report) -> None:
    """Interleaved, on the same file system: a log entry, and the least that could be durable."""
    with tempfile.TemporaryDirectory(dir=cache_directory()) as folder:
        log = CommitLog(f"{folder}/commits")
        entry = CommitEntry(version=1, next_watermark_ms=1_700_000_000_000)
        payload = b'v1\n{"nextBatchWatermarkMs":1700000000000}'
        bare_folder = Path(folder) / "bare"
        bare_folder.mkdir()
        adds, bares = [], []
        for n in range(ADDS):
            start = time.perf_counter()
            log.add(n, entry)
            adds.append(time.perf_counter() - start)
            start = time.perf_counter()
            durable_write(bare_folder, str(n), payload)
            bares.append(time.perf_counter() - start)
    for percent in (50, 99):
        ours, peer = percentile(adds, percent), percentile(bares, percent)
        report.row(
            f"durable add p{percent} beside a bare write with fsync of file and directory",
            add_milliseconds=ours * 1000,
            bare_milliseconds=peer * 1000,
            ratio=ours / peer,
        )


def durable_write(folder: Path, name: str, payload: bytes) -> None:
    """Create a file and sync it and its directory: nothing less survives a power cut."""
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, payload)
    os.fsync(descriptor)
    os.close(descriptor)
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


if __name__ == "__main__":
    main()
