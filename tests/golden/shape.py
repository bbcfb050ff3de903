"""The shape of a golden case: a query, its input in steps, and how its state may be read.

A case is run step by step: the files of a step appear, the query starts, reads everything there is
and ends. What is archived is the checkpoint after the last step but one; the files of the last step
travel beside it as `rest/`, so that a test can edit the checkpoint, let Spark finish the query and
compare with the output of the run that nobody disturbed.

Whether a case is comparable in that way depends on its query, not on luck: its final output must
not depend on how the input falls into batches. `resumable` says so.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from tests.golden.place import Place

EPOCH_SECONDS = 1_704_067_200
"""2024-01-01T00:00:00Z: the first event, and the modification time of the first input file."""

ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
CHANGELOG = {
    **ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
UNIQUE_IDS = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}


Query: TypeAlias = Callable[[SparkSession, Place], DataFrame]


@dataclass(frozen=True, slots=True)
class InputFile:
    """One JSON-lines file of one source; it appears when its step begins."""

    source: str
    number: int
    step: int
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.source}/{self.number:03}.json"

    @property
    def modified(self) -> int:
        return EPOCH_SECONDS + 60 * self.number

    def write(self, directory: Path) -> None:
        path = directory / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        os.utime(path, (self.modified, self.modified))


@dataclass(frozen=True, slots=True)
class Read:
    """One way to ask Spark's `statestore` source for an operator's state."""

    options: Mapping[str, str] = field(default_factory=dict)
    changes: bool = False
    """Also read the change feed over all batches. Needs deltas or changelogs for each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    about: str
    query: Query
    files: tuple[InputFile, ...] = ()
    mode: Literal["append", "update", "complete"] = "append"
    sink: Literal["rows", "parquet", "noop"] = "rows"
    key: tuple[str, ...] = ()
    """Output columns that identify a row of an `update` query; later rows replace earlier ones."""
    conf: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    reads: tuple[Read, ...] = ()
    since: str = "3.5"
    until: str | None = None
    """The last release that can start the query afresh."""
    steps: int = 0
    """Number of runs when there are no files to count them by."""
    trigger: Mapping[str, Any] = field(default_factory=lambda: {"availableNow": True})
    run_seconds: float | None = None
    """For triggers that never end: stop the query after so long."""
    fails_in: int | None = None
    """The batch whose output fails in the last archived step, so that it stays uncommitted."""
    fails: Literal["before the rows are computed", "after the state is written"] | None = None
    resumable: bool = True
    sink_name: str | None = None
    session_keys: int = 0
    """Grouping columns of session windows, which the reader must know and 3.5 did not keep."""

    @property
    def last_step(self) -> int:
        return max((file.step for file in self.files), default=self.steps - 1)

    def session_conf(self) -> dict[str, str]:
        return {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
            **self.conf,
        }

    def runs_on(self, release: str) -> bool:
        if self.until is not None and version(release) > version(self.until):
            return False
        return version(release) >= version(self.since)


def version(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))[:2]


def json_files(
    source: str, batches: list[list[dict[str, Any]]], step_of: Callable[[int], int]
) -> Iterator[InputFile]:
    for number, rows in enumerate(batches):
        lines = tuple(json.dumps(row, ensure_ascii=False) for row in rows)
        yield InputFile(source, number, step_of(number), lines)
