"""A driver without Spark that tests kill: epochs of numbers into a Delta table.

    python -m tests.fault.delta_driver CHECKPOINT TABLE ATTEMPT MODE

It recovers, decides and commits with the engine's own functions, and plays the tasks itself. It
says `ready` before it recovers, and runs until it is killed. A line on its standard input ends it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from random import Random
from typing import Any

import pyarrow as pa

from epochal.checkpoint.entries import CommitLog, OffsetEntry, OffsetLog
from epochal.connectors.contract import Positions, WriterContext
from epochal.connectors.registry import open_sink
from epochal.epoch.contract import LoggedSource
from epochal.epoch.durable import EpochResources, decide, follow_up, recover
from epochal.epoch.effects import CommitSink, LogCommit
from epochal.epoch.epoch_files.chain_files import StateFiles
from epochal.epoch.manifest import Manifest
from epochal.files import open_files

ROWS = pa.schema([("key", pa.int64()), ("n", pa.int64())])
KEYS, TASKS = 7, 2
QUERY = "6c1f86f4-64ef-4ab6-9f5c-2f0c2b0a8d11"
OPTIONS = {"append": {}, "update": {"mergeKeys": "key"}, "complete": {}}


class Counter(LoggedSource):
    """A source of all numbers in order."""

    acknowledges_in_tasks = False

    def initial(self) -> Positions:
        return {"0": "0"}

    def resume(self, offset: str) -> Positions:
        found: dict[str, str] = json.loads(offset)
        return found

    def offset(self, positions: Positions) -> str:
        return json.dumps(dict(positions))

    def boundary(self, positions: Positions) -> Positions:
        return positions

    def acknowledge(self, epoch: int, positions: Positions) -> None:
        pass


def rows_of(first: int, end: int, mode: str) -> list[dict[str, int]]:
    """What an epoch that reads these numbers writes."""
    if mode == "complete":
        return list(expected(end, mode))
    return [{"key": n % KEYS, "n": n} for n in range(first, end)]


def expected(end: int, mode: str) -> list[dict[str, int]]:
    """What the table has after the numbers below `end`."""
    if mode == "append":
        return [{"key": n % KEYS, "n": n} for n in range(end)]
    newest = {n % KEYS: n for n in range(end)}
    return [{"key": key, "n": n} for key, n in sorted(newest.items())]


def prepare(sink: Any, epoch: int, attempt: int, rows: list[dict[str, int]]) -> tuple[bytes, ...]:
    """Write an epoch as its tasks would."""
    found = []
    for task in range(TASKS):
        writer = sink.writers.open(WriterContext(task, attempt, "run", ROWS, epoch))
        mine = [row for row in rows if row["key"] % TASKS == task]
        if mine:
            writer.write(pa.RecordBatch.from_pylist(mine, ROWS))
        if not rows:
            writer.note_idle()  # an epoch without input leaves the table as it is
        found.append(writer.cut(epoch)())
        writer.close()
    return tuple(found)


def main(checkpoint: str, table: str, attempt: int, mode: str) -> None:
    files = open_files(checkpoint)
    stopped = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stopped.set()

    threading.Thread(target=listen, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    options = {"path": table, **OPTIONS[mode]}
    sink = open_sink("delta", options, ROWS, output_mode=mode, checkpoint=files, query_id=QUERY)
    resources = EpochResources(
        url=checkpoint,
        offsets=OffsetLog(files.at("offsets")),
        commits=CommitLog(files.at("commits")),
        sources=(Counter(),),
        sink=sink,
        state=StateFiles(files),
        owned=lambda: True,
        run_id=f"run-{attempt}",
    )
    found, rng = recover(resources, attempt), Random(attempt)
    at, epoch = int(found.positions[0]["0"]), found.first_epoch
    template = found.base or OffsetEntry(1, ())
    while not stopped.is_set():
        end = at + rng.choice((0, 1, 5, 20))
        messages = prepare(sink, epoch, attempt, rows_of(at, end, mode) if end > at else [])
        positions = ({"0": str(end)},)
        manifest = Manifest(epoch, attempt, resources.run_id, positions, messages, ())
        decide(resources, manifest, template, [json.dumps(positions[0])], 0, 0)
        follow_up(resources, CommitSink(epoch, messages))
        follow_up(resources, LogCommit(epoch, 0))
        at, epoch = end, epoch + 1
    sink.close()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
