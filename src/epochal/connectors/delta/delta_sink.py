"""The Delta sink: `TableSink` over one Delta table. One version per epoch that has rows.

Files are added with a marker, a `txn` action. Rows by key are merged by Delta's library. Output
mode complete replaces the table's files. The latter two are refused by the library if the table
has changed since it was loaded.

A compactor must not commit after another attempt has taken over. So a new attempt first takes over
a second marker, `<query id>#compact` with the attempt's number. An older attempt finds it in its
next look and stops.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from epochal.checkpoint.metadata_log import storage_errors
from epochal.connectors.contract import Sink
from epochal.connectors.delta.delta_files import DeltaFilePlan, DeltaFiles, indexed_columns
from epochal.connectors.delta.delta_rules import (
    DELTA,
    DataFile,
    DeltaSinkOptions,
    TableShape,
    check_new_table,
    check_required,
    check_table,
    in_microseconds,
    query_columns,
    schema_json,
    table_columns,
)
from epochal.connectors.delta.delta_table import TableGoneError, TableHandle, check_merge
from epochal.connectors.file.part_files import attempt_of, mark_of
from epochal.connectors.formats import SinkRequest
from epochal.connectors.staging.epoch_marker import Marker
from epochal.connectors.table_columns import ColumnMatch, match_columns
from epochal.connectors.tables.compaction import LiveFile
from epochal.connectors.tables.table_epochs import EpochNote, WriteMode, choose_write_mode
from epochal.connectors.tables.table_maintenance import DRIVER_TASK, Job, MaintainedTable
from epochal.connectors.tables.table_sink import TableSink, TargetTable, lost_marker
from epochal.errors import StorageError, TableMismatchError
from epochal.files import join_url, open_files, scheme_of

logger = logging.getLogger(__name__)

CHECKPOINT_VERSIONS = 100
"""After so many versions the table's log gets a checkpoint."""
CHECKPOINT = "checkpoint"


def open_delta_sink(request: SinkRequest) -> Sink:
    """Open the sink: check that the query fits the table, if there is one. Write nothing yet."""
    options = request.read_options(DeltaSinkOptions)
    mode = choose_write_mode("delta", request.output_mode, options.merge_keys)
    table = DeltaTarget(options, request, mode)
    return TableSink(table, DELTA, mode, request, options)


class DeltaTarget(TargetTable[DataFile]):
    """The table as epochs are committed to it."""

    def __init__(self, options: DeltaSinkOptions, request: SinkRequest, mode: WriteMode) -> None:
        schema, partition_by = request.schema, request.partition_by
        self._options, self._schema, self._mode = options, schema, mode
        self._query_id = request.query_id
        self._given_partition = self._partition_by = partition_by
        self._files = open_files(options.path, links=True)
        self.name = self.place = self._files.url
        self._handle = TableHandle(self._files)
        self._columns = query_columns(self.name, schema)
        check_new_table(self.name, self._columns, partition_by, options.merge_keys)
        if mode is WriteMode.MERGE:
            check_merge(self.name, schema, options.merge_keys)
        self._shape: TableShape | None = None
        self._checkpointed = 0
        self.required: tuple[str, ...] = ()
        self._stats_columns = indexed_columns({})
        self._exists = self._handle.load()
        if self._exists:
            shape = self._handle.shape()
            self._partition_by, self.required = shape.partition_by, self._fitted(shape).required
            self._stats_columns = indexed_columns(shape.configuration)

    @property
    def file_plan(self) -> DeltaFilePlan:
        return DeltaFilePlan(
            root=self._files.url,
            mark=mark_of(self._query_id),
            partition_by=self._partition_by,
            required=self.required,
            compression=self._options.compression,
            stats_columns=self._stats_columns,
        )

    def load(self) -> Marker | None:
        self._exists = self._handle.load()
        epoch = self._handle.marker(self._query_id) if self._exists else None
        return None if epoch is None else Marker(epoch)

    def settle(self, begin: Marker | None, attempt: int) -> None:
        if not self._exists:
            self._handle.create(schema_json(self._schema), self._partition_by)
        shape = self._handle.shape()
        added = self._fitted(shape).added
        if added:
            names = {column.name for column in added}
            logger.info("%s gets columns %s", self.name, sorted(names))
            fields = schema_json(self._schema)["fields"]
            self._handle.add_columns([field for field in fields if field["name"] in names])
            shape = self._handle.shape()
        self._shape = self._checked(shape)
        if begin is not None:
            self._handle.mark(EpochNote(self._query_id, begin.epoch, attempt, begin.token))
            self._handle.refresh()
        compactor = compactor_of(self._query_id)
        if self._options.compact_interval is not None or self._handle.marker(compactor) is not None:
            # From here on no earlier attempt replaces files, so its files may be deleted.
            self._handle.take_over(compactor, attempt)
            self._handle.refresh()

    def look(self, epoch: int, *, again: bool) -> Marker | None:
        del again  # a handle does not even see its own commits
        assert self._shape is not None, "call fence first"
        try:
            self._handle.refresh()
        except TableGoneError:
            raise lost_marker(self.place, "the table was deleted while the query ran") from None
        shape = self._handle.shape()
        if shape.table_id != self._shape.table_id:
            reason = "the table was replaced by another one while the query ran"
            raise lost_marker(self.place, reason)
        marker = self._handle.marker(self._query_id)
        if marker is None:
            return None
        if shape != self._shape:
            self._shape = self._checked(shape)
        token = self._handle.token(self._query_id, epoch) if marker == epoch else ""
        return Marker(marker, token)

    def check_files(self, files: Sequence[DataFile], *, ours: bool) -> None:
        # On object stores a file that this attempt has written exists, and the question takes long.
        # A local path may be a different directory on each host.
        if ours and scheme_of(self._files.url) not in ("", "file"):
            return
        for file in files:
            info = self._files.info(file.path)
            if info is None or info.size != file.size:
                state = "is missing" if info is None else f"has {info.size} bytes"
                raise StorageError(
                    join_url(self._files.url, file.path),
                    f"a task wrote this file with {file.size} bytes, but it {state}. The table of "
                    f"a query that runs on several hosts must be on storage that all of them "
                    f"share; and vacuum must not remove files of the last days",
                )

    def commit(self, mode: WriteMode, files: Sequence[DataFile], note: EpochNote) -> None:
        self._handle.write(mode, files, note, self._partition_by)

    def merge(self, rows: pa.Table, keys: Sequence[str], note: EpochNote) -> None:
        rows = in_microseconds(rows)
        check_required(self.name, rows, self.required)
        self._handle.merge(rows, keys, note)

    def discard(self, files: Sequence[DataFile]) -> None:
        for file in files:
            self._files.delete(file.path)

    def jobs_due(self) -> Sequence[str]:
        version = self._handle.version() + 1
        before, self._checkpointed = self._checkpointed, version
        crossed = version // CHECKPOINT_VERSIONS > before // CHECKPOINT_VERSIONS
        return (CHECKPOINT,) if crossed else ()

    def maintained(self, attempt: int) -> DeltaMaintained:
        return DeltaMaintained(self._options, self._query_id, attempt, self.file_plan)

    def _fitted(self, shape: TableShape) -> ColumnMatch:
        """Compare the query with a table; TableMismatchError if it does not fit."""
        names = {column.name for column in self._columns}
        check_table(self.name, shape, self._mode, self._given_partition, names)
        return match_columns(
            self.name,
            self._columns,
            table_columns(shape.fields),
            may_add=self._options.merge_schema,
            to_add="Set the option mergeSchema to true to add it, or drop it in the query.",
        )

    def _checked(self, shape: TableShape) -> TableShape:
        """Check that files, which tasks write as the table was at the start, still fit it."""
        match = self._fitted(shape)
        reasons = [
            f"column {column.name} was dropped from the table. Start the query again."
            for column in match.added
        ]
        if shape.partition_by != self._partition_by:
            reasons.append(
                f"the table is partitioned by ({', '.join(shape.partition_by)}), but at the start "
                f"of the query it was by ({', '.join(self._partition_by)}). Start it again."
            )
        reasons += [
            f"column {name} takes no nulls any more. Start the query again."
            for name in match.required
            if name not in self.required
        ]
        if reasons:
            raise TableMismatchError(self.name, tuple(reasons))
        return shape


class DeltaMaintained(MaintainedTable[DataFile]):
    """The table as it is maintained."""

    def __init__(
        self, options: DeltaSinkOptions, query_id: str, attempt: int, plan: DeltaFilePlan
    ) -> None:
        self._options, self._attempt, self._plan = options, attempt, plan
        self._compactor = compactor_of(query_id)
        self._files = open_files(options.path, links=True)
        self.name = self._files.url
        self._handle = TableHandle(self._files)
        self._shape: TableShape | None = None
        """As it was when the files were chosen that are to be replaced."""

    def jobs(self) -> Sequence[Job]:
        return (
            Job(
                "clean_log", lambda: self._loaded().clean_log(), self._options.log_cleanup_interval
            ),
            Job(CHECKPOINT, lambda: self._loaded().create_checkpoint()),
        )

    def data_files(self) -> Iterator[str]:
        for info in self._files.list():
            if not info.is_dir:
                yield info.name
            elif not info.name.startswith("_"):
                yield from (below for below, _ in self._files.walk(info.name))

    def known_files(self) -> set[str]:
        return set(map(_name, self._loaded().known_files()))

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._files.delete(path)

    def live_files(self) -> Sequence[LiveFile]:
        handle = self._loaded()
        self._shape = handle.shape()
        if "deletionVectors" in self._shape.writer_features:
            return ()  # a file could have rows that are deleted
        live, mark = handle.live_files(), self._plan.mark
        return [file for file in live if attempt_of(_name(file.path), mark) is not None]

    def rewrite(self, group: Sequence[LiveFile]) -> Sequence[DataFile]:
        tables = []
        for file in group:
            with storage_errors(join_url(self.name, file.path)):
                tables.append(pq.read_table(pa.BufferReader(self._files.read(file.path))))
        rows = pa.concat_tables(tables, promote_options="default")
        writer = DeltaFiles(self._plan, DRIVER_TASK, self._attempt, rows.schema)
        written = writer.write_one(group[0].path.rpartition("/")[0], rows)
        return (replace(written, partition=dict(group[0].partition)),)

    def replace(self, group: Sequence[LiveFile], files: Sequence[DataFile]) -> bool:
        handle = self._handle
        handle.refresh()
        if handle.marker(self._compactor) != self._attempt or handle.shape() != self._shape:
            return False
        if not {file.path for file in group} <= {file.path for file in handle.live_files()}:
            return False
        handle.replace_files(group, files[0], self._compactor, self._attempt)
        return True

    def _loaded(self) -> TableHandle:
        if not self._handle.load():
            raise TableGoneError
        return self._handle


def compactor_of(query_id: str) -> str:
    """Return the application under which a query's compactions are marked."""
    return f"{query_id}#compact"


def _name(path: str) -> str:
    return path.rpartition("/")[2]
