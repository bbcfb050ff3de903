"""Runs the soak: Kafka to keyed state to Delta, with incidents, for as long as asked.

    python -m benchmarks.soak --minutes 120 [--seed N] [--rows-per-second N] [--out FOLDER] [--busy]
                             [--gap SECONDS] [--keep]

The same seed gives the same incidents at the same times. It ends with status 1 if a row is lost or
there twice, if a figure is not flat, or if the query does not recover. Everything runs below one
temporary directory on loopback, and ends with this process.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from benchmarks.harness import Report, adopt_orphans, arguments
from benchmarks.soak.feeding import Feeder
from benchmarks.soak.following import Follower
from benchmarks.soak.incidents import Clock, SoakProgram
from benchmarks.soak.running import Soak
from benchmarks.soak.schedule import LEAST_GAP_SECONDS, plan
from benchmarks.soak.summing_up import summary_rows
from benchmarks.soak.written_report import write_report
from deltalake import DeltaTable
from tests.kafka_topics import create_topic

from epochal.testing.kafka import running_kafka

TOPIC, PARTITIONS, ROWS_PER_SECOND = "rows", 3, 400
RETAINED_EPOCHS = 20
"""Few, so that the checkpoint has its final size long before the first quarter ends. With the usual
100, a short run or a slow machine would spend most of its time filling it."""

FILE_BYTES_PER_SECOND = 500
"""The table's files grow to this many bytes per second of the run, a small part of a quarter's
rows. With larger ones, the driver would need more memory for each compaction until the run ends."""

PUBLISHED_MINUTES = 60
"""A shorter run is a trial, and the benchmark page does not show it."""

ROWS = pa.schema(
    [(name, pa.int64()) for name in ("n", "k", "due", "total")] + [("release", pa.int32())]
)


def create_table(place: Path, quarter_seconds: float) -> None:
    """Create the table; what is no longer needed may go after a twelfth of a quarter.

    When the clock steps forward, the table's log is cleaned up to the present. It is as long as
    before after this time, which must be a small part of the quarter for medians not to show it.
    """
    keep = f"interval {max(20, round(quarter_seconds / 12))} seconds"
    settings = {"delta.logRetentionDuration": keep, "delta.deletedFileRetentionDuration": keep}
    DeltaTable.create(str(place), ROWS, configuration=settings)


def run(asked: argparse.Namespace, folder: Path) -> Soak:
    seconds = asked.minutes * 60
    with ExitStack() as stack:
        broker = stack.enter_context(running_kafka())
        servers = broker.bootstrap_servers
        create_topic(servers, TOPIC, partitions=PARTITIONS)
        create_table(folder / "out", seconds / 4)
        clock = Clock(folder)
        program = SoakProgram(
            folder,
            clock,
            f"servers={servers}",
            f"topic={TOPIC}",
            "stateMemory=64m",
            f"stateLocalDir={folder / 'local'}",
            f"minBatchesToRetain={RETAINED_EPOCHS}",
            f"targetFileBytes={round(seconds * FILE_BYTES_PER_SECOND)}",
            f"compactInterval={max(5, round(seconds / 240))} seconds",
            f"logCleanupInterval={max(5, round(seconds / 240))} seconds",
        )
        stack.callback(program.end)
        feeder = Feeder(servers, TOPIC, asked.rows_per_second, PARTITIONS)
        follower = Follower(folder / "out")
        soak = Soak(program, broker, feeder, follower, clock, folder, seconds, asked.seed)
        soak.run(plan(seconds, asked.seed, asked.gap))
        return soak


def main() -> int:
    parser = arguments("soak")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows-per-second", type=int, default=ROWS_PER_SECOND)
    parser.add_argument(
        "--gap",
        type=float,
        default=LEAST_GAP_SECONDS,
        help="at least so many seconds between two incidents; more for a slow machine",
    )
    parser.add_argument("--out", type=Path, default=Path("artifacts/soak"))
    parser.add_argument("--keep", action="store_true", help="keep the table, checkpoint and logs")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leave nothing running
    adopt_orphans()
    trial = asked.quick or asked.minutes < PUBLISHED_MINUTES
    report = Report("soak", busy=asked.busy, quick=trial)
    folder = Path(tempfile.mkdtemp(prefix="epochal-soak-"))
    try:
        soak = run(asked, folder)
    finally:
        if asked.keep:
            print(f"table, checkpoint and logs are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    for name, lines in (("samples", soak.samples), ("incidents", soak.history)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (asked.out / f"{name}.jsonl").write_text(text)
    for row in summary_rows(soak, asked):
        report.row(**row)
    write_report(asked.out, "soak-trial" if trial else "soak")
    for fault in soak.faults:
        print(f"not right: {fault}")
    print(f"{soak.rows} rows, {len(soak.history)} incidents; report in {asked.out}/report.md")
    return 0 if not soak.faults else 1


if __name__ == "__main__":
    sys.exit(main())
