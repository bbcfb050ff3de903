"""An Iceberg table: the summary of a snapshot names the query and the epoch that made it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from epochal.connectors.iceberg.iceberg_catalog import catalog_errors, find_table, open_catalog
from epochal.connectors.iceberg.iceberg_commits import read_file
from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions
from epochal.connectors.iceberg.iceberg_snapshots import EPOCH_KEY, QUERY_KEY
from epochal.errors import OptionError
from epochal.tools.switch.compare_rows import Row


class IcebergOutput:
    """A table at the snapshots in which a query's epochs ended. Its parts are data files."""

    by_epoch = True

    def __init__(self, options: IcebergSinkOptions, query_id: str) -> None:
        table = find_table(open_catalog(options), options)
        if table is None:
            raise OptionError(
                f"iceberg: table {options.table} does not exist in catalog {options.catalog_name}."
            )
        self._options, self._table, self._query_id = options, table, query_id
        head = table.metadata.snapshot_by_name(options.branch)
        self._epochs: list[tuple[int, Snapshot]] = []
        for snapshot in ancestors_of(head, table.metadata):
            summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
            if summary.get(QUERY_KEY) == query_id and summary.get(EPOCH_KEY, "").isdigit():
                self._epochs.append((int(summary[EPOCH_KEY]), snapshot))
        self._tasks: dict[str, Any] = {}
        self._read: dict[int, frozenset[str]] = {}

    @property
    def name(self) -> str:
        return f"Iceberg table {self._options.table}"

    @property
    def doubt(self) -> str:
        return "" if self._epochs else f"it has no snapshot of query {self._query_id}"

    def parts_at(self, epoch: int) -> frozenset[str] | None:
        if not self._epochs:
            return frozenset()
        up_to = [snapshot.snapshot_id for each, snapshot in self._epochs if each <= epoch]
        found = up_to[0] if up_to else self._epochs[-1][1].parent_snapshot_id
        if found is None:
            return frozenset()
        if self._table.snapshot_by_id(found) is None:
            return None  # it was expired
        if found not in self._read:
            self._read[found] = self._load(found)
        return self._read[found]

    def replaces(self, epochs: range) -> bool:
        found = (snapshot.summary for epoch, snapshot in self._epochs if epoch in epochs)
        return any(each is not None and each.operation is not Operation.APPEND for each in found)

    def rows(self, parts: Iterable[str]) -> Iterator[Row]:
        with catalog_errors(self._options):
            for part in sorted(parts):
                yield from read_file(self._table, self._tasks[part]).to_pylist()

    def _load(self, snapshot_id: int) -> frozenset[str]:
        with catalog_errors(self._options):
            tasks = {}
            for task in self._table.scan(snapshot_id=snapshot_id).plan_files():
                deletes = sorted(each.file_path for each in task.delete_files)
                tasks[" ".join((task.file.file_path, *deletes))] = task
        self._tasks |= tasks
        return frozenset(tasks)
