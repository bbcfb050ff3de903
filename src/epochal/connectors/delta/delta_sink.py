"""The driver's side of the Delta sink: one version of the table per epoch that has rows.

    tasks     prepare: write Parquet files                          no version of the table has them
    driver    offsets/N, which names the files                      N is decided
              version of the table: the files, txn(query id, N)     N is visible
              commits/N

A crash after `offsets/N` is finished by the next attempt: it finds the marker, or commits the same
files. Two drivers at once can do no harm either: they have the same files for N, and the second
commit with the same id and an old view of the table is refused.

Output mode update and `mergeKeys` pass rows through the checkpoint instead, and the driver merges
them. Output mode complete replaces the table's files. Both are refused by the library if the table
has changed since it was loaded, and are tried again after a new comparison.

Note: an epoch without output makes no version of the table. That is safe, because nothing of it can
be lost or duplicated, and `check_marker` demands markers only of epochs that have output. In output
mode complete, an epoch with input has output even if it has no rows: the table becomes empty.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from epochal.checkpoint.entries import OffsetLog
from epochal.checkpoint.layout import EPOCHAL, OFFSETS
from epochal.connectors.contract import WriterFactory
from epochal.connectors.delta.delta_options import DeltaSinkOptions
from epochal.connectors.delta.delta_rows import check_required, in_microseconds
from epochal.connectors.delta.delta_rules import (
    DELTA_OUTPUT,
    EpochOutput,
    FilesOutput,
    RowsOutput,
    TableShape,
    WriteMode,
    attempts_of,
    check_new_table,
    check_table,
    epoch_output,
    is_committed,
    leftovers,
    write_mode,
)
from epochal.connectors.delta.delta_stats import indexed_columns
from epochal.connectors.delta.delta_table import (
    CommitRefusedError,
    EpochNote,
    TableGoneError,
    TableHandle,
    check_merge,
)
from epochal.connectors.delta.delta_types import query_columns, schema_json, table_columns
from epochal.connectors.delta.delta_upkeep import Upkeep, UpkeepPlan, compactor_of
from epochal.connectors.delta.delta_writer import DeltaWriters
from epochal.connectors.file.file_sink import attempt_of, mark_of
from epochal.connectors.staging.deciding_sink import read_history
from epochal.connectors.staging.epoch_marker import (
    NO_EPOCH,
    Begin,
    Continue,
    History,
    Marker,
    Refuse,
    check_marker,
    token_of,
    unpack,
)
from epochal.connectors.staging.merged_rows import last_per_key
from epochal.connectors.staging.staged_rows import (
    ArrowRows,
    StagedWriters,
    delete_stale,
    staged_table,
)
from epochal.connectors.table_columns import ColumnMatch, match_columns
from epochal.epoch.manifest import manifest_of
from epochal.errors import (
    MarkerError,
    OptionError,
    StorageError,
    TableConflictError,
    TableMismatchError,
)
from epochal.files import Files, join_url, open_files, scheme_of
from epochal.record_batches import joined_tables

logger = logging.getLogger(__name__)

STAGING = f"{EPOCHAL}/delta"
COMMIT_TRIES = 20
FIRST_PAUSE_SECONDS = 0.02
MAX_PAUSE_SECONDS = 1.0


class DeltaSink:
    """Commits epochs to one table."""

    exactly_once = True
    decides = False

    def __init__(
        self,
        options: DeltaSinkOptions,
        schema: pa.Schema,
        checkpoint: Files,
        query_id: str,
        *,
        output_mode: str,
        partition_by: Sequence[str] = (),
    ) -> None:
        """Check that the query fits the table, if there is one. Nothing is written yet."""
        try:
            self._mode = write_mode(output_mode, options.merge_keys)
        except ValueError as error:
            raise OptionError(f"delta: {error}") from None
        self._options, self._schema, self._query_id = options, schema, query_id
        self._given_partition, self._checkpoint = tuple(partition_by), checkpoint
        self._files = open_files(options.path, links=True)
        self._handle = TableHandle(self._files)
        self._columns = query_columns(self._files.url, schema)
        check_new_table(self._files.url, self._columns, partition_by, options.merge_keys)
        if self._mode is WriteMode.MERGE:
            check_merge(self._files.url, schema, options.merge_keys)
        self._shape: TableShape | None = None
        self._partition_by: tuple[str, ...] = self._given_partition
        self._required: tuple[str, ...] = ()
        self._stats_columns = indexed_columns({})
        if self._handle.load():
            shape = self._handle.shape()
            self._partition_by, self._required = shape.partition_by, self._fitted(shape).required
            self._stats_columns = indexed_columns(shape.configuration)
        self._attempt = 0
        self._swept = False
        self._upkeep: Upkeep | None = None

    @property
    def writers(self) -> WriterFactory:
        if self._mode is not WriteMode.MERGE:
            return self._file_writers()
        rows = ArrowRows(self._schema, self._required)
        magic = DELTA_OUTPUT.magic
        return StagedWriters(rows, self._checkpoint.url, STAGING, magic, durable=True)

    def _file_writers(self) -> DeltaWriters:
        return DeltaWriters(
            root=self._files.url,
            mode=self._mode,
            mark=mark_of(self._query_id),
            partition_by=self._partition_by,
            required=self._required,
            compression=self._options.compression,
            max_file_bytes=self._options.max_file_bytes,
            stats_columns=self._stats_columns,
        )

    def fence(self, attempt: int) -> None:
        """Compare the marker with the log; create the table and its columns where they lack."""
        self.close()
        self._attempt, self._swept = attempt, False
        reason = ""
        for _ in self._tries():
            try:
                self._settle()
                break
            except CommitRefusedError as error:
                reason = str(error)
        else:
            raise TableConflictError(self._files.url, NO_EPOCH, COMMIT_TRIES, reason)
        options = self._options
        plan = UpkeepPlan(
            options.compact_interval, options.target_file_bytes, options.log_cleanup_interval
        )
        self._upkeep = Upkeep(plan, self._files, self._query_id, attempt, self._file_writers())
        self._upkeep.start()

    def decided(self, epoch: int) -> bool:
        marker = self._handle.marker(self._query_id)
        return marker is not None and marker >= epoch

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        output = epoch_output(self._files.url, epoch, messages)
        if output is None:
            return
        if isinstance(output, FilesOutput) and not output.is_new:
            for file in output.files:
                self._files.delete(file.path)
            return
        ours = attempts_of(messages) == {self._attempt}
        note = EpochNote(self._query_id, epoch, self._attempt, token_of(messages))
        reason, rows = "", None
        for number in self._tries():
            if self._has(epoch, messages):
                break
            try:
                if isinstance(output, FilesOutput):
                    if not number:
                        self._check_files(output, ours)
                    self._handle.write(output.mode, output.files, note, self._partition_by)
                else:
                    # Only now: once the table has the rows, staged files may be gone.
                    rows = self._staged(output) if rows is None else rows
                    self._handle.merge(rows, self._options.merge_keys, note)
                break
            except CommitRefusedError as error:
                reason = str(error)
        else:
            raise TableConflictError(self._files.url, epoch, COMMIT_TRIES, reason)
        if self._upkeep is not None:
            self._upkeep.committed(self._handle.version() + 1)
        self._clean_up(output, ours)

    def close(self) -> None:
        upkeep, self._upkeep = self._upkeep, None
        if upkeep is not None:
            upkeep.close()

    def _settle(self) -> None:
        exists, marker, history = self._marker_and_log()
        match check_marker(marker, history, self._options.reset_marker, DELTA_OUTPUT):
            case Refuse(reason, remedy):
                raise MarkerError(self._files.url, reason, remedy)
            case Begin(first):
                begin: int | None = first.epoch
            case Continue():
                begin = None
        if not exists:
            self._handle.create(schema_json(self._schema), self._partition_by)
        shape = self._handle.shape()
        added = self._fitted(shape).added
        if added:
            logger.info("%s gets columns %s", self._files.url, [each.name for each in added])
            names = {each.name for each in added}
            fields = schema_json(self._schema)["fields"]
            self._handle.add_columns([each for each in fields if each["name"] in names])
            shape = self._handle.shape()
        self._shape = self._checked(shape)
        if begin is not None:
            self._handle.mark(EpochNote(self._query_id, begin, self._attempt, ""))
            self._handle.refresh()
        compactor = compactor_of(self._query_id)
        compacted = self._handle.marker(compactor)
        if self._options.compact_interval is not None or compacted is not None:
            # From here on no earlier attempt replaces files, so its files may be deleted.
            self._handle.take_over(compactor, self._attempt)
            self._handle.refresh()

    def _marker_and_log(self) -> tuple[bool, Marker | None, History]:
        """Return whether there is a table, the marker in it, and the log of the checkpoint.

        A driver that this attempt has replaced may still finish its epoch meanwhile. The marker is
        written after the offset entry and before the commit entry. So it is read before the log and
        after it, until both are the same.
        """
        before: tuple[bool, int | None] | None = None
        while True:
            exists = self._handle.load()
            now = exists, self._handle.marker(self._query_id) if exists else None
            if before == now:
                break
            before = now
            found = None if now[1] is None else Marker(now[1])
            marked = NO_EPOCH if found is None else found.epoch
            history = read_history(self._checkpoint, marked, DELTA_OUTPUT.magic)
        return exists, found, history

    def _fitted(self, shape: TableShape) -> ColumnMatch:
        """Compare the query with a table; TableMismatchError if it does not fit."""
        names = {column.name for column in self._columns}
        check_table(self._files.url, shape, self._mode, self._given_partition, names)
        return match_columns(
            self._files.url,
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
            if name not in self._required
        ]
        if reasons:
            raise TableMismatchError(self._files.url, tuple(reasons))
        return shape

    def _has(self, epoch: int, messages: Sequence[bytes]) -> bool:
        """Return whether the table has the epoch, after a look at its newest version."""
        assert self._shape is not None, "call fence first"
        try:
            self._handle.refresh()
        except TableGoneError:
            raise self._lost("the table was deleted while the query ran") from None
        shape = self._handle.shape()
        if shape.table_id != self._shape.table_id:
            raise self._lost("the table was replaced by another one while the query ran")
        marker = self._handle.marker(self._query_id)
        if marker is None:
            raise self._lost("it was removed while the query ran")
        if shape != self._shape:
            self._shape = self._checked(shape)
        token = self._handle.token(self._query_id, epoch) if marker == epoch else ""
        return is_committed(self._files.url, marker, token, epoch, messages)

    def _check_files(self, output: FilesOutput, ours: bool) -> None:
        """Check that the files exist, since the library does not.

        On object stores a file that this attempt has written exists, and the question takes long.
        A local path may be a different directory on each host.
        """
        if ours and scheme_of(self._files.url) not in ("", "file"):
            return
        for file in output.files:
            found = self._files.info(file.path)
            if found is None or found.size != file.size:
                state = "is missing" if found is None else f"has {found.size} bytes"
                raise StorageError(
                    join_url(self._files.url, file.path),
                    f"a task wrote this file with {file.size} bytes, but it {state}. The table of "
                    f"a query that runs on several hosts must be on storage that all of them "
                    f"share; and vacuum must not remove files of the last days",
                )

    def _staged(self, output: RowsOutput) -> pa.Table:
        """Return the rows of an epoch that is merged: the last one of each key."""
        keys = self._options.merge_keys
        if not keys:
            raise OptionError(
                "delta: the last epoch in the log must still be merged by key, but mergeKeys is "
                "not set. Start the query with the previous mergeKeys, stop it, then change them."
            )
        staging = self._checkpoint.at(STAGING)
        parts = [staged_table(staging, each, self._schema) for each in output.staged]
        rows = in_microseconds(last_per_key(joined_tables(parts, self._schema), keys))
        check_required(self._files.url, rows, self._required)
        return rows

    def _clean_up(self, output: EpochOutput, ours: bool) -> None:
        if isinstance(output, RowsOutput):
            for each in output.staged:
                if each.name:
                    with suppress(OSError):
                        self._checkpoint.at(STAGING).delete(each.name)
        # The first commit after a restart may finish an epoch of an earlier attempt. Only an epoch
        # of this one proves that no such epoch is left.
        if ours and not self._swept:
            self._swept = True
            self._sweep()

    def _sweep(self) -> None:
        """Remove what earlier attempts wrote and never committed."""
        removed = delete_stale(self._checkpoint.at(STAGING), before=self._attempt)
        mark = mark_of(self._query_id)
        found = [(path, attempt_of(path.rpartition("/")[2], mark)) for path in self._data_paths()]
        if any(wrote is not None and wrote < self._attempt for _, wrote in found):
            known = {_name(path) for path in self._handle.known_files()} | self._logged_names()
            for path in leftovers(found, attempt=self._attempt, known=known):
                self._files.delete(path)
                removed += 1
        if removed:
            logger.info("%s: removed %d files of failed attempts", self._files.url, removed)

    def _data_paths(self) -> Iterator[str]:
        for info in self._files.list():
            if not info.is_dir:
                yield info.name
            elif not info.name.startswith("_"):
                yield from (below for below, _ in self._files.walk(info.name))

    def _logged_names(self) -> set[str]:
        """Return the names of all files that epochs in the checkpoint's log name."""
        offsets = OffsetLog(self._checkpoint.at(OFFSETS), read_only=True)
        found: set[str] = set()
        for epoch, entry in offsets.get_range():
            manifest = manifest_of(entry, join_url(offsets.url, str(epoch)))
            messages = () if manifest is None else manifest.messages
            if all(unpack(message, DELTA_OUTPUT.magic) for message in messages):
                output = epoch_output(self._files.url, epoch, messages)
                if isinstance(output, FilesOutput):
                    found |= {_name(file.path) for file in output.files}
        return found

    def _lost(self, reason: str) -> MarkerError:
        return MarkerError(
            self._files.url,
            reason,
            "Restore the table and start the query again, or use a new table and a new "
            "checkpointLocation.",
        )

    def _tries(self) -> Iterator[int]:
        """Count tries, with a pause before each but the first."""
        pause = FIRST_PAUSE_SECONDS
        for number in range(COMMIT_TRIES):
            if number:
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(MAX_PAUSE_SECONDS, pause * 2)
            yield number


def _name(path: str) -> str:
    return path.rpartition("/")[2]
