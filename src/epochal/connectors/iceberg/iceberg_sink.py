"""The Iceberg sink: `TableSink` over one branch of an Iceberg table. One snapshot per epoch.

Files and marker are one commit to the catalog, valid only if the branch has not moved since the
look at it. Rows by key are merged here: files that hold such rows are written again without them.

Note: the table as of our last commit is good enough to look at. If anything was committed since,
the branch has moved and our commit is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from epochal.clock import SystemClock
from epochal.connectors.contract import Sink
from epochal.connectors.file.part_files import mark_of
from epochal.connectors.formats import SinkRequest
from epochal.connectors.iceberg.iceberg_catalog import (
    catalog_errors,
    check_table,
    create_table,
    find_table,
    fit_columns,
    open_catalog,
    settle_branch,
)
from epochal.connectors.iceberg.iceberg_commits import (
    AnswerLostError,
    TableChange,
    branch_history,
    commit_change,
    commit_properties,
    delete_files,
    last_sequence,
    live_files,
    merged,
)
from epochal.connectors.iceberg.iceberg_files import (
    ICEBERG,
    IcebergFilePlan,
    IcebergFiles,
    WrittenFile,
    plan_of,
    required_columns,
)
from epochal.connectors.iceberg.iceberg_maintenance import IcebergMaintained
from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions
from epochal.connectors.iceberg.iceberg_schema import partitioning_of
from epochal.connectors.iceberg.iceberg_snapshots import (
    MarkProperty,
    encode_property,
    newest_mark,
    property_name,
    summary_of,
)
from epochal.connectors.staging.deciding_sink import read_history
from epochal.connectors.staging.epoch_marker import NO_EPOCH, Marker, Refuse
from epochal.connectors.tables.table_epochs import EpochNote, WriteMode, choose_write_mode
from epochal.connectors.tables.table_maintenance import DRIVER_TASK, CommitRefusedError
from epochal.connectors.tables.table_sink import TableSink, TargetTable
from epochal.errors import MarkerError, TableError
from epochal.record_batches import joined_tables

logger = logging.getLogger(__name__)


def open_iceberg_sink(request: SinkRequest) -> Sink:
    """Open the sink; create the table if it is absent and the query has never written to it."""
    options = request.read_options(IcebergSinkOptions)
    mode = choose_write_mode("iceberg", request.output_mode, options.merge_keys)
    by = request.partition_by or options.partition_by
    table = _opened(options, request, by)
    target = IcebergTarget(table, options, request.schema, request.query_id)
    return TableSink(target, ICEBERG, mode, request, options)


def _opened(
    options: IcebergSinkOptions, request: SinkRequest, partition_by: tuple[str, ...]
) -> Table:
    catalog = open_catalog(options)
    table = find_table(catalog, options)
    if table is None:
        history = read_history(request.checkpoint, NO_EPOCH, ICEBERG.output.magic)
        if history.epochs and options.reset_marker is None:
            raise MarkerError(
                f"table {options.table}",
                f"the table does not exist in catalog {options.catalog_name}, but the log has "
                f"epoch {history.epochs[0].epoch} of this sink",
                f"Restore the table. To go on with a new, empty table, start with option "
                f"resetMarker={history.committed}.",
            )
        first = MarkProperty(history.committed, "", 0, None)
        name = property_name(request.query_id, options.branch)
        properties = {name: encode_property(first)}
        table = create_table(catalog, options, request.schema, partition_by, properties)
    check_table(options, table, partition_by)
    return table


class IcebergTarget(TargetTable[WrittenFile]):
    """A branch of a table as epochs are committed to it."""

    def __init__(
        self, table: Table, options: IcebergSinkOptions, schema: pa.Schema, query_id: str
    ) -> None:
        self._table, self._options, self._query_id = table, options, query_id
        self.name = options.table
        self._property = property_name(query_id, options.branch)
        self.place = f"property {self._property} of table {options.table}"
        self._columns = fit_columns(options, table, schema)
        self.required = required_columns(table, self._columns)
        partitioning_of(options.table, table.schema(), table.spec())
        settle_branch(options, table)
        self._attempt = -1

    @property
    def file_plan(self) -> IcebergFilePlan:
        return plan_of(self._table, self.name, mark_of(self._query_id), self._columns)

    def load(self) -> Marker | Refuse | None:
        self._refresh()
        return self._marker()

    def settle(self, begin: Marker | None, attempt: int) -> None:
        self._attempt = attempt
        if begin is not None:
            mark = MarkProperty(begin.epoch, begin.token, last_sequence(self._table), None)
            with catalog_errors(self._options):
                commit_properties(self._table, {self._property: encode_property(mark)})

    def look(self, epoch: int, *, again: bool) -> Marker | Refuse | None:
        del epoch  # every marker has its token
        if again:
            self._refresh()
        return self._marker()

    def commit(self, mode: WriteMode, files: Sequence[WrittenFile], note: EpochNote) -> None:
        table = self._table
        temporary: Sequence[WrittenFile] = ()
        if any(file.spec != table.metadata.default_spec_id for file in files):
            logger.warning(
                "the partitioning of table %s has changed: files of epoch %d are written again. "
                "Restart the query, so that its tasks use the new partitioning",
                *(self.name, note.epoch),
            )
            files = temporary = self._written_again(files)
        head = table.metadata.snapshot_by_name(self._options.branch)
        removed = list(live_files(table, head)) if mode is WriteMode.OVERWRITE else []
        self._commit(TableChange(files, removed, temporary), note)

    def merge(self, rows: pa.Table, keys: Sequence[str], note: EpochNote) -> None:
        files = self._files()
        rows = files.fitted(rows)
        change = merged(self._table, self._options.branch, rows, keys, files.write_fitted)
        self._commit(change, note)

    def discard(self, files: Sequence[WrittenFile]) -> None:
        delete_files(self._table, [file.path for file in files])

    def maintained(self, attempt: int) -> IcebergMaintained:
        clock = SystemClock()
        return IcebergMaintained(self._options, self._query_id, attempt, self._columns, clock)

    def close(self) -> None:
        self._table.catalog.close()

    def _marker(self) -> Marker | Refuse | None:
        metadata = self._table.metadata
        return newest_mark(
            self._query_id,
            metadata.properties.get(self._property),
            branch_history(self._table, self._options.branch),
            {snapshot.snapshot_id for snapshot in metadata.snapshots},
        )

    def _refresh(self) -> None:
        """Read the table's newest metadata."""
        with catalog_errors(self._options):
            try:
                self._table.refresh()
            except ValueError as error:  # another table has the name now
                raise TableError(
                    f"table {self.name}",
                    f"another table has this name now ({error}). Its rows are not those that the "
                    f"query has written. Restore the table, or start with a new checkpointLocation",
                ) from None

    def _commit(self, change: TableChange, note: EpochNote) -> None:
        marker = Marker(note.epoch, note.token)

        def mark(sequence: int, snapshot: int) -> dict[str, str]:
            value = MarkProperty(note.epoch, note.token, sequence, snapshot)
            return {self._property: encode_property(value)}

        summary = summary_of(self._query_id, marker, note.attempt)
        try:
            with catalog_errors(self._options):
                commit_change(self._table, self._options.branch, change, summary, mark)
        except CommitRefusedError as error:
            if not isinstance(error, AnswerLostError):
                self.discard(change.temporary)
            raise

    def _files(self) -> IcebergFiles:
        """Writes files for the table as it is now."""
        return IcebergFiles(self.file_plan, self._attempt, DRIVER_TASK)

    def _written_again(self, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        """Write the rows of files for the table's present partitioning."""
        tables = []
        for file in files:
            with self._table.io.new_input(file.path).open() as stream:
                tables.append(pq.read_table(stream))  # type: ignore[arg-type]
        return self._files().write(joined_tables(tables, tables[0].schema))
