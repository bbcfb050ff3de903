"""The metadata log: the tools against a Spark session, `add` against a bare fsync, import time.

Spark makes a checkpoint of 100 batches and 200 partitions once. That takes a few minutes; it is
kept in the cache directory, and continued if it was interrupted. Then whole processes take turns.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.harness import (
    Report,
    arguments,
    cache_directory,
    epochal_command,
    percentile,
    spark_command,
    take_turns,
    time_process,
)

from epochal.checkpoint import CommitLog
from epochal.checkpoint.entries import CommitEntry

BATCHES, PARTITIONS = 100, 200
ROUNDS, IMPORTS, ADDS = 5, 9, 400


def main() -> None:
    asked = arguments("log").parse_args()
    report = Report("log", busy=asked.busy, quick=asked.quick)
    checkpoint = prepared_checkpoint()
    tools_beside_spark(report, checkpoint, 1 if asked.quick else ROUNDS)
    import_cost(report)
    add_beside_fsync(report)


def prepared_checkpoint() -> Path:
    target = cache_directory() / f"log-{BATCHES}x{PARTITIONS}"
    if not target.exists():
        print(f"  making {BATCHES} batches of {PARTITIONS} partitions with Spark …", flush=True)
        unfinished = target.with_name(f"{target.name}-unfinished")
        time_process(spark_command("batches", str(unfinished), str(BATCHES), str(PARTITIONS)))
        unfinished.rename(target)
    return target / "checkpoint"


def tools_beside_spark(report: Report, checkpoint: Path, rounds: int) -> None:
    """Whole processes: Spark, which starts and reads the metadata, and our two tools."""
    show = epochal_command("checkpoint", "show", str(checkpoint), "--json")
    verify = epochal_command("checkpoint", "verify", str(checkpoint), "--json")
    costs = take_turns(
        rounds,
        {
            "spark": partial(time_process, spark_command("metadata", str(checkpoint))),
            "show": partial(time_process, show),
            "verify": partial(time_process, verify),
        },
    )
    for tool in ("show", "verify"):
        report.beside(
            f"checkpoint {tool}, whole process, beside Spark's state-metadata",
            costs[tool],
            costs["spark"],
        )


def import_cost(report: Report) -> None:
    commands = {"bare": "pass", "ours": "import epochal"}
    costs = take_turns(
        IMPORTS,
        {name: partial(time_process, [sys.executable, "-c", c]) for name, c in commands.items()},
    )
    report.row(
        "import epochal, CPU above a bare interpreter",
        cpu_milliseconds=(costs["ours"].cpu_seconds - costs["bare"].cpu_seconds) * 1000,
        whole_process_cpu_milliseconds=costs["ours"].cpu_seconds * 1000,
    )


def add_beside_fsync(report: Report) -> None:
    """Alternate, on one file system, between a log entry and the smallest durable write."""
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
    """Create a file and sync it and its directory, the minimum that survives a power cut."""
    descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, payload)
    os.fsync(descriptor)
    os.close(descriptor)
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


if __name__ == "__main__":
    main()
