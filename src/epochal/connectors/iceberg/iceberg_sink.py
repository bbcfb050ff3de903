"""Exactly-once output to an Iceberg table: one commit per epoch, named in the offset log.

    tasks     prepare: write data files                        nothing of them is in the table
    driver    offsets/N, which names the files                 N is decided
              one commit of the files and the marker N         N is visible
              commits/N, sources

After a crash, recovery commits the files that `offsets/N` names. The commit looks at the marker
first, so that it may be repeated.

| output mode | an epoch |
|---|---|
| append | adds its files |
| complete | replaces all files of the table by its own |
| with `mergeKeys` | replaces rows by key: the driver writes files with such rows again |

An epoch without rows changes nothing, and no snapshot is made for it. In output mode complete it
empties the table, unless it had no input.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table

from epochal.checkpoint.layout import EPOCHAL
from epochal.clock import Clock, SystemClock
from epochal.connectors.file.file_sink import mark_of
from epochal.connectors.iceberg.iceberg_catalog import (
    check_table,
    create_table,
    find_table,
    fit_columns,
    open_catalog,
    settle_branch,
)
from epochal.connectors.iceberg.iceberg_commits import (
    EpochTable,
    TableChange,
    commit_epoch,
    delete_files,
    live_files,
    merged,
)
from epochal.connectors.iceberg.iceberg_files import (
    FILES,
    FileSet,
    IcebergWriters,
    TableShape,
    WrittenFile,
    unpack_files,
    without_history,
)
from epochal.connectors.iceberg.iceberg_marks import (
    ICEBERG_OUTPUT,
    MAGIC,
    MarkProperty,
    encode_property,
    property_name,
)
from epochal.connectors.iceberg.iceberg_options import IcebergSinkOptions
from epochal.connectors.iceberg.iceberg_partitions import partitioning_of
from epochal.connectors.iceberg.iceberg_upkeep import TableUpkeep, UpkeepThread
from epochal.connectors.staging.deciding_sink import read_history
from epochal.connectors.staging.epoch_marker import (
    NO_EPOCH,
    Begin,
    Continue,
    Done,
    Marker,
    Refuse,
    Staged,
    Write,
    check_marker,
    has_output,
    plan_commit,
    unpack,
)
from epochal.connectors.staging.merged_rows import last_per_key
from epochal.connectors.staging.staged_rows import (
    ArrowRows,
    StagedWriters,
    delete_stale,
    staged_table,
)
from epochal.errors import MarkerError, OptionError, SinkConflictError
from epochal.files import Files
from epochal.record_batches import joined_tables

logger = logging.getLogger(__name__)

STAGING = f"{EPOCHAL}/iceberg"
DRIVER_TASK = 99_999
"""The number of a task in the names of files that the driver has written."""
APPEND, UPDATE, COMPLETE = "append", "update", "complete"


class IcebergSink:
    """The driver's side of the sink."""

    exactly_once = True
    decides = False

    def __init__(
        self,
        options: IcebergSinkOptions,
        schema: pa.Schema,
        checkpoint: Files,
        query_id: str,
        *,
        output_mode: str = APPEND,
        partition_by: Sequence[str] = (),
        clock: Clock | None = None,
    ) -> None:
        _check_mode(output_mode, options.merge_keys)
        self._options, self._schema, self._checkpoint = options, schema, checkpoint
        self._query_id, self._mode, self._mark = query_id, output_mode, mark_of(query_id)
        self._staging = checkpoint.at(STAGING)
        table = self._opened(tuple(partition_by) or options.partition_by)
        self._target = EpochTable(table, options, query_id)
        self._columns = fit_columns(options, table, schema)
        partitioning_of(options.table, table.schema(), table.spec())
        settle_branch(options, table)
        self._marker: Marker | None = None
        self._attempt = -1
        self._swept = False
        upkeep = TableUpkeep(options, query_id, clock or SystemClock())
        seconds = options.maintenance_interval.total_seconds()
        again = options.expires or options.compact
        self._upkeep = UpkeepThread(upkeep, interval_seconds=seconds if again else None)

    @property
    def writers(self) -> IcebergWriters | StagedWriters:
        if self._options.merge_keys:
            url = self._checkpoint.url
            rows = ArrowRows(self._schema, self._shape().required)
            return StagedWriters(rows, url, STAGING, MAGIC, durable=True)
        replaces = self._mode == COMPLETE
        return IcebergWriters(self._shape(), self._options.max_file_bytes, replaces)

    def fence(self, attempt: int) -> None:
        # Nothing to fence: the offset log decides, and a commit is valid only for the table as it
        # was read. Read the log last: an epoch's entry is written before its commit.
        self._attempt, self._swept, self._marker = attempt, False, None
        self._target.refresh()
        found = self._target.marker()
        marked = NO_EPOCH if not isinstance(found, Marker) else found.epoch
        history = read_history(self._checkpoint, marked, MAGIC)
        reset = self._options.reset_marker
        if isinstance(found, Refuse):
            if reset is None or reset != history.committed:
                raise MarkerError(
                    self._target.place,
                    found.reason,
                    f"{found.remedy} Or start with option resetMarker={history.committed}: the "
                    f"query then continues after that epoch, and the rows of the epochs that were "
                    f"rolled back stay away.",
                )
            found = None
        match check_marker(found, history, reset, ICEBERG_OUTPUT):
            case Refuse(reason, remedy):
                raise MarkerError(self._target.place, reason, remedy)
            case Begin(marker):
                self._target.write_marker(marker)
                self._marker = marker
            case Continue(marker):
                self._marker = marker

    def decided(self, epoch: int) -> bool:
        return self._current_marker().epoch >= epoch

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        assert self._marker is not None, "call fence first"
        staged = [each for each in (unpack(message, MAGIC) for message in messages) if each]
        if self._is_done(epoch, messages):
            if not has_output(staged):
                self._discard(unpack_files(staged))
            return
        plan = plan_commit(self._current_marker(), epoch, messages, ICEBERG_OUTPUT, refresh=False)
        assert isinstance(plan, Write)
        commit_epoch(
            self._target,
            plan.marker,
            self._attempt,
            partial(self._change, epoch, staged),
            lambda: self._is_done(epoch, messages),
            self._discard,
        )
        self._clean_up(staged)

    def close(self) -> None:
        self._upkeep.close()
        self._target.table.catalog.close()

    def _opened(self, partition_by: tuple[str, ...]) -> Table:
        """The table, created if it is absent and the query has never written to it."""
        options = self._options
        catalog = open_catalog(options)
        table = find_table(catalog, options)
        if table is None:
            history = read_history(self._checkpoint, NO_EPOCH, MAGIC)
            if history.epochs and options.reset_marker is None:
                raise MarkerError(
                    f"table {options.table}",
                    f"the table does not exist in catalog {options.catalog_name}, but the log has "
                    f"epoch {history.epochs[0].epoch} of this sink",
                    f"Restore the table. To go on with a new, empty table, start with option "
                    f"resetMarker={history.committed}.",
                )
            first = MarkProperty(history.committed, "", 0, None)
            name = property_name(self._query_id, options.branch)
            properties = {name: encode_property(first)}
            table = create_table(catalog, options, self._schema, partition_by, properties)
        check_table(options, table, partition_by)
        return table

    def _shape(self) -> TableShape:
        table = self._target.table
        return TableShape(
            table=self._options.table,
            metadata=without_history(table.metadata),
            io=tuple((key, str(value)) for key, value in table.io.properties.items()),
            mark=self._mark,
            columns=tuple((name, name) for name in self._columns),
            required=tuple(
                field.name
                for field in table.schema().fields
                if field.required and field.name in self._columns
            ),
        )

    def _files(self) -> FileSet:
        """Writes files for the table as it is now."""
        return FileSet(self._shape(), self._attempt, DRIVER_TASK)

    def _current_marker(self) -> Marker:
        found = self._target.marker()
        if isinstance(found, Refuse):
            raise MarkerError(self._target.place, found.reason, found.remedy)
        return Marker(NO_EPOCH) if found is None else found

    def _is_done(self, epoch: int, messages: Sequence[bytes]) -> bool:
        marker = self._current_marker()
        if marker.epoch > epoch:
            return True  # a later attempt has committed it, and more
        match plan_commit(marker, epoch, messages, ICEBERG_OUTPUT, refresh=False):
            case Done():
                return True
            case Refuse():
                raise SinkConflictError(self._options.table, epoch, "the rows")
            case Write():
                return False

    def _change(self, epoch: int, staged: Sequence[Staged], table: Table) -> TableChange:
        """What the epoch changes in the table as it is now."""
        branch, keys = self._options.branch, self._options.merge_keys
        head = table.metadata.snapshot_by_name(branch)
        if any(each.rows and each.name != FILES for each in staged):
            files = self._files()
            found = [staged_table(self._staging, each, self._schema) for each in staged]
            rows = last_per_key(files.fitted(joined_tables(found, self._schema)), keys)
            return merged(table, branch, rows, keys, files.write_fitted)
        added = unpack_files(staged)
        temporary: list[WrittenFile] = []
        if any(file.spec != table.metadata.default_spec_id for file in added):
            logger.warning(
                "the partitioning of table %s has changed: files of epoch %d are written again. "
                "Restart the query, so that its tasks use the new partitioning",
                self._options.table,
                epoch,
            )
            added = temporary = self._written_again(table, added)
        removed = list(live_files(table, head)) if self._mode == COMPLETE else []
        return TableChange(added, removed, temporary)

    def _written_again(self, table: Table, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        """Write the rows of files for the table's present partitioning."""
        found = []
        for file in files:
            with table.io.new_input(file.path).open() as stream:
                found.append(pq.read_table(stream))  # type: ignore[arg-type]
        return self._files().write(joined_tables(found, found[0].schema))

    def _discard(self, files: Sequence[WrittenFile]) -> None:
        delete_files(self._target.table, [file.path for file in files])

    def _clean_up(self, staged: Sequence[Staged]) -> None:
        """After a commit: delete what was staged, and once what earlier attempts have left."""
        for each in staged:
            if each.name and each.name != FILES:
                self._staging.delete(each.name)
        # The first commit after a restart may finish an epoch of an earlier attempt. Only an epoch
        # of this attempt proves that no such epoch is left.
        if self._swept or self._attempt not in {each.attempt for each in staged}:
            return
        self._swept = True
        if self._options.merge_keys:
            delete_stale(self._staging, before=self._attempt)
        self._upkeep.begin(self._attempt, self._write_rows)

    def _write_rows(self, rows: pa.Table) -> list[WrittenFile]:
        return self._files().write_fitted(rows)


def _check_mode(mode: str, merge_keys: Sequence[str]) -> None:
    if mode == UPDATE and not merge_keys:
        raise OptionError(
            "iceberg: output mode update changes rows of earlier epochs, and the sink must know "
            "which. Set the option mergeKeys to the columns that identify a row, or use append or "
            "complete."
        )
    if mode == COMPLETE and merge_keys:
        raise OptionError(
            "iceberg: output mode complete replaces all rows in each epoch, so mergeKeys has no "
            "meaning. Remove it, or use output mode update."
        )
