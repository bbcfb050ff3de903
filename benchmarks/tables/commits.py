"""What a commit costs when the table has had many, with the sinks alone, without Spark.

Delta: a table keeps its versions, so its log grows; files are compacted beside the commits.
Iceberg: snapshots are expired beside them, or each commit would copy all of them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from benchmarks.due_rows import SCHEMA, Schedule
from benchmarks.harness import percentile
from benchmarks.tables.watching import CATALOG, TABLE, catalog_settings

from epochal.connectors.contract import WriterContext
from epochal.connectors.registry import open_sink
from epochal.files import open_files

ROWS = 100
SAMPLE = 50
"""So many commits before each number of versions are measured."""


def delta_commits(*, quick: bool) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as base:
        options = {"path": f"{base}/table", "compactInterval": "10 seconds"}
        yield from _commits("delta", options, base, (100, 300) if quick else (100, 1_000, 10_000))


def iceberg_commits(*, quick: bool) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as base:
        (Path(base) / "table").mkdir()
        catalog = {"name": CATALOG, **catalog_settings(f"{base}/table")}
        options = {f"catalog.{key}": value for key, value in catalog.items()}
        options |= {"table": TABLE, "expireSnapshotsKeep": "20", "maintenanceInterval": "1 second"}
        yield from _commits("iceberg", options, base, (100,) if quick else (100, 1_000))


def _commits(
    name: str, options: Mapping[str, str], base: str, sizes: Sequence[int]
) -> Iterator[dict[str, Any]]:
    (Path(base) / "checkpoint").mkdir()
    checkpoint = open_files(f"{base}/checkpoint")
    sink = open_sink(name, options, SCHEMA, checkpoint=checkpoint, query_id=str(uuid4()))
    sink.fence(1)
    writer = sink.writers.open(WriterContext(0, 1, "bench", SCHEMA))
    rows: pa.RecordBatch = Schedule(0, 1, 10, 1).rows(0, 0, ROWS)
    taken: list[float] = []
    for epoch in range(max(sizes)):
        writer.write(rows)
        message = writer.cut(epoch)()
        started = time.perf_counter()
        sink.commit(epoch, [message])
        taken.append((time.perf_counter() - started) * 1000)
        if epoch + 1 in sizes:
            last = taken[-SAMPLE:]
            p50, p99 = percentile(last, 50), percentile(last, 99)
            yield {"versions": epoch + 1, "p50_ms": p50, "p99_ms": p99}
    writer.close()
    sink.close()
