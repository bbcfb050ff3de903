"""A driver program that the recovery benchmark kills and starts: counts by key, kept in state.

    python -m benchmarks.recovery_query MASTER CHECKPOINT OUT [OPTION=VALUE...]

`keys` rows with different keys are read as fast as possible, then a few rows per second. `daemon`
is the module of the daemon that forks Python workers. With `starts`, the query is started and
stopped that many times, and the seconds from each `start()` to its first commit are written to OUT,
one per line. Otherwise it runs until SIGTERM.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.fault.keyed_sums import run_until_told
from tests.fault.sums import ENDURING
from tests.spark.sessions import session

from epochal import read_stream
from epochal.checkpoint import CommitLog
from epochal.connectors.generator import GeneratorSource

SCHEMA = pa.schema([("key", pa.int64())])
PARTITIONS, BATCH_ROWS, ROWS_PER_SECOND = 2, 10_000, 200
MEMORY = "3g"


def rows(keys: int) -> Callable[[int, int], Iterator[pa.RecordBatch | None]]:
    """Return a generator of all keys, then of a few keys again, at a steady rate."""
    each = keys // PARTITIONS

    def generate(partition: int, start: int) -> Iterator[pa.RecordBatch | None]:
        at = start
        while at < each:
            end = min(each, at + BATCH_ROWS)
            yield batch(range(at, end), partition)
            at = end
        due = time.monotonic()
        while True:
            if time.monotonic() < due:
                yield None
                continue
            yield batch([at % each], partition)
            at, due = at + 1, due + 1 / ROWS_PER_SECOND

    def batch(numbers: Any, partition: int) -> pa.RecordBatch:
        found = [number * PARTITIONS + partition for number in numbers]
        return pa.record_batch([pa.array(found, pa.int64())], schema=SCHEMA)

    return generate


def main(master: str, checkpoint: str, out: str, *options: str) -> None:
    given = dict(option.split("=", 1) for option in options)
    keys, starts = int(given.pop("keys", "1000")), int(given.pop("starts", "0"))
    conf = {"spark__deploy__maxExecutorRetries": "-1", "spark__locality__wait": "0s"}
    if "daemon" in given:
        conf["spark__python__daemon__module"] = given.pop("daemon")
    spark = session(master, spark__driver__memory=MEMORY, **conf)
    source = GeneratorSource(SCHEMA, rows(keys), partitions=PARTITIONS)
    counts = read_stream(spark).format(source).load().group_by("key").count()
    usual = {**ENDURING, "checkpointLocation": checkpoint, "publishInterval": "5 seconds"}
    writer = counts.write_stream.format("noop").output_mode("update")
    writer = writer.options(**{**usual, **given})
    if not starts:
        run_until_told(writer.start)
    with open(out, "a") as written:
        for _ in range(starts):
            written.write(f"{seconds_to_commit(writer, Path(checkpoint))}\n")
    spark.stop()


def seconds_to_commit(writer: Any, checkpoint: Path) -> float:
    """Start the query, stop it after its first commit, and return how long the commit took."""
    before = newest(checkpoint)
    began = time.monotonic()
    query = writer.start()
    while newest(checkpoint) <= before and query.is_active:
        time.sleep(0.002)
    seconds = time.monotonic() - began
    query.stop()
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))
    return seconds


def newest(checkpoint: Path) -> int:
    """Return the newest committed epoch; -1 if there is none."""
    if not (checkpoint / "commits").is_dir():
        return -1
    found = CommitLog(str(checkpoint / "commits"), read_only=True).latest_batch_id()
    return -1 if found is None else found


if __name__ == "__main__":
    main(*sys.argv[1:])
