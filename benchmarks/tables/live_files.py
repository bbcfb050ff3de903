"""How many data files a table has after an hour of short epochs with compaction, without Spark.

Minutes pass as fast as the sink commits: an epoch's rows are written and committed, and after each
minute's worth of epochs the sink's own maintenance runs once, as it would every minute. The table's
library counts the files, as its readers find them, before and after each run.

Only a quarter of an hour is run. Four times its files are more than those of an hour, because
compaction goes on to merge them until they have their full size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.due_rows import SCHEMA, Schedule
from benchmarks.tables.watching import CATALOG, TABLE, catalog_settings

from epochal.connectors.contract import WriterContext
from epochal.connectors.registry import open_sink
from epochal.files import open_files

ROWS_PER_SECOND, TASKS, ATTEMPT = 1_000, 2, 1
MINUTES, QUICK_MINUTES, HOUR = 15, 2, 60
NEVER = "1000 days"
"""The interval of the sink's own thread. Here it is called after each minute instead."""


@dataclass(frozen=True, slots=True)
class Sped:
    """A sink whose time is counted in epochs."""

    name: str
    options: Mapping[str, str]
    epochs_per_second: int
    live: Callable[[], int]


def file_counts(*, quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each kind of table, and its files."""
    for make in (_delta, _iceberg):
        with tempfile.TemporaryDirectory() as base:
            (Path(base) / "table").mkdir()
            sped = make(base)
            yield sped.name, _run(sped, base, QUICK_MINUTES if quick else MINUTES)


def _delta(base: str) -> Sped:
    from deltalake import DeltaTable

    place = f"{base}/table"
    return Sped(
        "delta",
        {"path": place, "compactInterval": NEVER},
        4,
        lambda: len(DeltaTable(place).file_uris()),
    )


def _iceberg(base: str) -> Sped:
    from pyiceberg.catalog import load_catalog

    place = f"{base}/table"
    given = {"name": CATALOG, **catalog_settings(place)}
    options = {f"catalog.{key}": value for key, value in given.items()}
    options |= {"table": TABLE, "compactInterval": NEVER, "expireSnapshotsKeep": "20"}
    options |= {"maintenanceInterval": NEVER}

    catalog = load_catalog(CATALOG, **catalog_settings(place))
    return Sped(
        "iceberg", options, 1, lambda: len(list(catalog.load_table(TABLE).scan().plan_files()))
    )


def _run(sped: Sped, base: str, minutes: int) -> dict[str, Any]:
    (Path(base) / "checkpoint").mkdir()
    checkpoint, query_id = open_files(f"{base}/checkpoint"), str(uuid4())
    sink: Any = open_sink(sped.name, sped.options, SCHEMA, checkpoint=checkpoint, query_id=query_id)
    sink.fence(ATTEMPT)
    writers = [sink.writers.open(WriterContext(n, ATTEMPT, "", SCHEMA)) for n in range(TASKS)]
    maintenance = sink.open_maintenance()
    rows = ROWS_PER_SECOND // sped.epochs_per_second // TASKS
    schedule = Schedule(0, ROWS_PER_SECOND // TASKS, 1_000, TASKS)
    before, after = [], []
    epochs = 60 * sped.epochs_per_second
    for epoch in range(minutes * epochs):
        for task, writer in enumerate(writers):
            writer.write(schedule.rows(task, epoch * rows, (epoch + 1) * rows))
        sink.commit(epoch, [writer.cut(epoch)() for writer in writers])
        if (epoch + 1) % epochs == 0:
            before.append(sped.live())
            maintenance.run_all()
            after.append(sped.live())
    for writer in writers:
        writer.close()
    sink.close()
    return {
        "minutes": minutes,
        "epochs": minutes * epochs,
        "live_per_hour": max(after) * HOUR // minutes,
        "live_after": max(after),
        "live_before": max(before),
        "on_disk": sum(1 for _ in Path(base, "table").rglob("*.parquet")),
    }
