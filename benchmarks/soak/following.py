"""Follows the soak's Delta table through its log: checks each commit, and notes when rows are seen.

It reads the log itself, not through the library that writes it. Commits that only move rows, such
as those of a compaction, change no data; the check at the end reads what they left. What they have
replaced is deleted a while later, as a vacuum would. A vacuum itself could delete files of versions
that are still unread.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.soak.model import COLUMNS, Model
from deltalake import DeltaTable

LOG = "_delta_log"
LOOK_SECONDS, REPLACED_SECONDS = 0.05, 20.0


class Follower:
    """A thread that reads each version of the table once."""

    def __init__(self, table: Path) -> None:
        self.model, self.failure = Model(), ""
        self._table, self._version = table, 0
        self._replaced: deque[tuple[float, str]] = deque()
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
                self._delete_replaced(time.monotonic() - REPLACED_SECONDS)
        except Exception as error:  # noqa: BLE001  the soak ends with it
            self.failure = f"version {self._version}: {error!r}"

    def _delete_replaced(self, before: float) -> None:
        while self._replaced and self._replaced[0][0] < before:
            (self._table / self._replaced.popleft()[1]).unlink(missing_ok=True)

    def _read_next(self) -> bool:
        path = self._table / LOG / f"{self._version:020d}.json"
        try:
            actions = [json.loads(line) for line in path.read_text().splitlines() if line]
        except FileNotFoundError:
            if self._is_past() and not path.exists():
                raise RuntimeError("it was removed from the log before it was read") from None
            return False
        self._check(actions)
        now = time.monotonic()
        self._replaced += [(now, name) for name in _paths(actions, "remove")]
        self._version += 1
        return True

    def _is_past(self) -> bool:
        """Whether the log has a checkpoint of a later version."""
        try:
            found = json.loads((self._table / LOG / "_last_checkpoint").read_text())
        except (FileNotFoundError, ValueError):  # there is none, or it is being written
            return False
        return bool(found["version"] > self._version)

    def _check(self, actions: list[dict[str, Any]]) -> None:
        new = [each for each in actions if "add" in each and each["add"]["dataChange"]]
        tables = [self._read(name) for name in _paths(new, "add")]
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


def _paths(actions: list[dict[str, Any]], kind: str) -> Iterator[str]:
    """The files that a version adds or removes."""
    for action in actions:
        if kind in action:
            yield unquote(action[kind]["path"])


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
