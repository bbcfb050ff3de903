"""Follows the soak's Delta table through its log: checks each commit, and notes when rows are seen.

It reads the log itself, not through the library that writes it. Commits that only move rows, such
as those of a compaction, change no data and are skipped; the check at the end reads what they left.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.soak.model import COLUMNS, Model
from deltalake import DeltaTable

LOOK_SECONDS, VACUUM_SECONDS = 0.05, 20.0


class Follower:
    """A thread that reads each version of the table once."""

    def __init__(self, table: Path) -> None:
        self.model, self.failure = Model(), ""
        self._table, self._version, self._vacuumed = table, 0, time.monotonic()
        self._latencies: list[float] = []
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True, name="follower")

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def take_latencies(self) -> list[float]:
        """The seconds from due to seen of the rows since the last call."""
        with self._lock:
            found, self._latencies = self._latencies, []
        return found

    def _follow(self) -> None:
        try:
            while not self._ending.wait(LOOK_SECONDS):
                while self._read_next():
                    pass
                if time.monotonic() > self._vacuumed + VACUUM_SECONDS:
                    self._vacuum()
        except Exception as error:  # noqa: BLE001  the soak ends with it
            self.failure = f"version {self._version}: {error!r}"

    def _vacuum(self) -> None:
        """Delete what compaction has replaced. Every version that listed it has been read.

        It has to come before the table's log forgets the files, after which only a full vacuum
        finds them.
        """
        DeltaTable(self._table).vacuum(0, dry_run=False, enforce_retention_duration=False)
        self._vacuumed = time.monotonic()

    def _read_next(self) -> bool:
        path = self._table / "_delta_log" / f"{self._version:020d}.json"
        try:
            actions = [json.loads(line) for line in path.read_text().splitlines() if line]
        except FileNotFoundError:
            return False
        self._check(actions)
        self._version += 1
        return True

    def _check(self, actions: list[dict[str, Any]]) -> None:
        tables = [self._read(each) for each in _added(actions)]
        if not tables:
            return
        seen, rows = time.monotonic_ns(), pa.concat_tables(tables)
        columns = [rows.column(name).to_pylist() for name in COLUMNS]
        self.model.add(f"version {self._version}", columns)
        due = rows.column("due").to_numpy()
        with self._lock:
            self._latencies += ((seen - due) / 1e9).tolist()

    def _read(self, name: str) -> pa.Table:
        return _with_handled(pq.read_table(self._table / name)).select([*COLUMNS, "due"])


def _added(actions: list[dict[str, Any]]) -> Iterator[str]:
    """The files whose rows are new in a version."""
    for action in actions:
        if "add" in action and action["add"]["dataChange"]:
            yield unquote(action["add"]["path"])


def _with_handled(rows: pa.Table) -> pa.Table:
    """The first release does not have this column."""
    if "handled" in rows.column_names:
        return rows
    return rows.append_column("handled", pa.nulls(len(rows), pa.int64()))


def whole_table(table: Path) -> Model:
    """The model of all rows that a reader finds now."""
    model = Model()
    rows = _with_handled(DeltaTable(table).to_pyarrow_table())
    model.add("the table", [rows.column(name).to_pylist() for name in COLUMNS])
    return model
