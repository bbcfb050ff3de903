"""Spark's file sink with exactly-once output: files in a directory, made visible by its log.

Tasks write files under their final names and make them durable. Only the log in `_spark_metadata`
lists the files that belong to the output. The driver creates an epoch's log entry once, after the
epoch was decided. Spark's readers follow that log, so files without an entry are never read:
leftovers of a crash waste space but cause no duplicates.

The UUID in a file name contains a hash of the query id and the attempt, so leftovers can be
attributed to the attempt that wrote them.

Note: leftovers may be removed only after this attempt has committed an epoch. At the start, a file
without a log entry may belong to an epoch that was decided and is about to be finished.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import pyarrow as pa

from epochal.checkpoint.file_log import DEFAULT_COMPACT_INTERVAL, FileSinkLog, SinkFileStatus
from epochal.checkpoint.layout import SINK_LOG
from epochal.connectors.contract import BadRows, Sink, WriterContext
from epochal.connectors.file.file_formats import Csv, FileFormat, ParquetCodec, bad_rows, encoder
from epochal.connectors.file.file_names import entry_path, split
from epochal.connectors.file.part_files import (
    PartNames,
    attempt_of,
    create_part,
    find_leftovers,
    mark_of,
)
from epochal.connectors.formats import APPEND, SinkRequest, check_positive
from epochal.connectors.row_collector import PartWriter
from epochal.connectors.table_columns import new_partition_reasons
from epochal.errors import OptionError, SinkConflictError
from epochal.files import open_files, scheme_of
from epochal.options import ByteSize

logger = logging.getLogger(__name__)

BLOCK_SIZE = 32 * 1024 * 1024
"""The block size that Hadoop reports for local files. Readers accept any value."""
MAX_NAME_BYTES = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSinkOptions:
    """The options of Spark's file sink, plus `maxFileBytes` and `compactInterval`."""

    path: str
    compression: ParquetCodec = ParquetCodec.SNAPPY
    header: bool = False
    sep: str = ","

    retention: timedelta | None = None
    """Files older than this are removed from the log and so from the output, but not from disk."""

    max_file_bytes: ByteSize = 128 * 1024 * 1024
    """When a task holds this many bytes of rows, it writes them before the epoch ends."""

    compact_interval: int = DEFAULT_COMPACT_INTERVAL
    """The log is compacted every this many epochs. Use a larger value for short epochs."""

    def __post_init__(self) -> None:
        check_positive(
            "files", max_file_bytes=self.max_file_bytes, compact_interval=self.compact_interval
        )


@dataclass(frozen=True, slots=True)
class FileWriters:
    root: str
    mark: bytes
    form: FileFormat
    partition_by: tuple[str, ...]
    options: FileSinkOptions

    def open(self, context: WriterContext) -> PartWriter[SinkFileStatus]:
        files = _RowFiles(self, context)
        return PartWriter(
            context.schema,
            self.options.max_file_bytes,
            lambda _epoch, rows: files.write(rows),
            lambda _epoch, statuses: msgspec.json.encode(statuses),
            files.bad_rows,
        )

    def encoder(self, schema: pa.Schema) -> tuple[str, Callable[[pa.Table], bytes]]:
        """The suffix of files with rows of `schema`, and the function that encodes them."""
        csv = Csv(self.options.header, self.options.sep)
        return encoder(self.form, schema, csv, self.options.compression, self.partition_by)


class _RowFiles:
    def __init__(self, plan: FileWriters, context: WriterContext) -> None:
        self._plan, self._files = plan, open_files(plan.root, links=True)
        self._names = PartNames(plan.mark, context.attempt, context.task)
        self._suffix, self._encode = plan.encoder(context.schema)

    def bad_rows(self, batch: pa.RecordBatch) -> BadRows:
        plan = self._plan
        # Object stores have keys, not directories with names of limited length.
        local = scheme_of(plan.root) in ("", "file")
        return bad_rows(
            batch, plan.form, plan.partition_by, self._encode, MAX_NAME_BYTES if local else None
        )

    def write(self, table: pa.Table) -> list[SinkFileStatus]:
        return [
            self._write_file(directory, part)
            for directory, part in split(table, self._plan.partition_by)
            if part.num_rows
        ]

    def _write_file(self, directory: str, rows: pa.Table) -> SinkFileStatus:
        name = self._names.draw(self._suffix)
        below, info = create_part(self._files, directory, name, self._encode(rows))
        return SinkFileStatus(
            path=entry_path(self._files.url, below),
            size=info.size,
            is_dir=False,
            modification_time=info.modified_ms,
            block_replication=1,
            block_size=BLOCK_SIZE,
            action="add",
        )


def open_file_sink(request: SinkRequest) -> FileSink:
    if request.output_mode != APPEND:
        raise OptionError(
            f"{request.format}: output mode {request.output_mode} is not possible, because a file "
            f"sink only adds files. Use append, or another sink."
        )
    options = request.read_options(FileSinkOptions)
    form, by = FileFormat(request.format), request.partition_by
    return FileSink(form, options, request.schema, request.query_id, partition_by=by)


class FileSink(Sink):
    """The driver's side: the log in `_spark_metadata`."""

    exactly_once = True

    def __init__(
        self,
        form: FileFormat,
        options: FileSinkOptions,
        schema: pa.Schema,
        query_id: str,
        *,
        partition_by: Sequence[str] = (),
    ) -> None:
        for reason in new_partition_reasons(partition_by, schema.names):
            raise OptionError(f"{form.value}: {reason}")
        self._files = open_files(options.path, links=True)
        self._mark = mark_of(query_id)
        self._retention = retention = options.retention
        self._log = FileSinkLog(
            self._files.at(SINK_LOG),
            retention_ms=None if retention is None else retention // timedelta(milliseconds=1),
            compact_interval=options.compact_interval,
        )
        by = tuple(partition_by)
        self._writers = FileWriters(self._files.url, self._mark, form, by, options)
        # Only for its checks: an unsupported column fails here, before any task starts.
        self._writers.encoder(schema)
        self._attempt: int | None = None
        self._swept = False

    @property
    def writers(self) -> FileWriters:
        return self._writers

    def fence(self, attempt: int) -> None:
        self._attempt, self._swept = attempt, False

    def decided(self, epoch: int) -> bool:
        newest = self._log.latest_batch_id()
        return newest is not None and newest >= epoch

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        decode = msgspec.json.Decoder(list[SinkFileStatus]).decode
        statuses = [status for message in messages for status in decode(message)]
        # A crash may have followed the log entry, so the entry may already exist. Two queries that
        # share the directory would cause the same: hence the check.
        if self.decided(epoch) or not self._log.add(epoch, statuses):
            self._check_logged(epoch, statuses)
        self._sweep_once(statuses)

    def _check_logged(self, epoch: int, statuses: Sequence[SinkFileStatus]) -> None:
        """Check that the existing entry of the epoch names the files that the epoch wrote."""
        if self._retention is not None:
            return  # files that are too old may have left the log
        logged = {entry.path for entry in self._log.all_files()}
        for status in statuses:
            if status.path not in logged:
                raise SinkConflictError(self._log.url, epoch, status.path)

    def _sweep_once(self, statuses: Sequence[SinkFileStatus]) -> None:
        """Remove leftovers of earlier attempts after the first commit of an epoch of this one."""
        # With a retention, a file that is not in the log may be old output, which stays on disk.
        if self._swept or self._attempt is None or self._retention is not None:
            return
        # The first commit after a restart may finish an epoch of an earlier attempt. Only a file of
        # this attempt proves that no such epoch is left.
        names = [status.path.rpartition("/")[2] for status in statuses]
        if self._attempt not in (attempt_of(name, self._mark) for name in names):
            return
        self._swept = True
        logged = {entry.path.rpartition("/")[2] for entry in self._log.all_files()}
        files = ((path, attempt_of(info.name, self._mark)) for path, info in self._files.walk())
        left = find_leftovers(files, attempt=self._attempt, known=logged)
        for path in left:
            self._files.delete(path)
        if left:
            logger.info("file sink: removed %d files of failed attempts", len(left))
