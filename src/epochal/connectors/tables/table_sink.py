"""Exactly-once output to a table of files: one commit per epoch, with the query's marker in it.

    tasks     prepare: write data files                        nothing of them is in the table
    driver    offsets/N, which names the files                 N is decided
              one commit of the files and the marker N         N is visible
              commits/N, sources

A crash after `offsets/N` is finished by the next attempt: it finds the marker, or commits the same
files. Two drivers at once can do no harm either: they have the same files for N, each looks for the
marker before it commits, and a commit is refused if the table has changed since that look.

Rows that are merged by key pass through the checkpoint, and the driver merges them. In output mode
complete, the files of an epoch replace all others. `table_epochs` has the rules.

Note: an epoch without output makes no version of the table. That is safe, because nothing of it can
be lost or duplicated, and `check_marker` demands markers only of epochs that have output. In output
mode complete, an epoch with input has output even if it has no rows: the table becomes empty.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol

import pyarrow as pa

from epochal.connectors.contract import Sink, WriterContext, WriterFactory
from epochal.connectors.formats import SinkRequest
from epochal.connectors.row_collector import PartWriter, WholeResultWriter
from epochal.connectors.staging.deciding_sink import read_history
from epochal.connectors.staging.epoch_marker import (
    NO_EPOCH,
    History,
    Marker,
    Refuse,
    check_marker,
    token_of,
    with_input,
)
from epochal.connectors.staging.staged_rows import (
    ArrowRows,
    StagedWriters,
    delete_staged,
    staged_table,
)
from epochal.connectors.table_columns import rows_without_values
from epochal.connectors.tables.compaction import TableWriting
from epochal.connectors.tables.table_epochs import (
    EpochNote,
    EpochOutput,
    F,
    FilesOutput,
    RowsOutput,
    TableFormat,
    WriteMode,
    attempts_of,
    is_committed,
    last_per_key,
    pack_files,
    read_output,
)
from epochal.connectors.tables.table_maintenance import (
    CommitRefusedError,
    MaintainedTable,
    TableMaintenance,
)
from epochal.errors import MarkerError, OptionError, TableConflictError
from epochal.record_batches import joined_tables

COMMIT_TRIES = 20
FIRST_PAUSE_SECONDS = 0.02
MAX_PAUSE_SECONDS = 1.0


class FilePlan(Protocol[F]):
    """How tasks write data files of a table; picklable."""

    def open(self, context: WriterContext) -> Callable[[pa.Table], list[F]]:
        """Return a function that writes rows of a query as data files."""
        ...


class TargetTable(Protocol[F]):
    """The table that a query writes to, in one format.

    A class that inherits from it has what is optional, so that it has no effect.
    """

    name: str
    """The table, for errors."""
    place: str
    """Where the query's marker is, for errors."""
    required: tuple[str, ...]
    """Columns of the query in which the table takes no nulls."""

    @property
    def file_plan(self) -> FilePlan[F]: ...

    def load(self) -> Marker | Refuse | None:
        """Read the newest version, if there is one; return the query's marker in it."""
        ...

    def settle(self, begin: Marker | None, attempt: int) -> None:
        """Make what was loaded ready for epochs of this attempt: create what is missing, and write
        the marker `begin`. CommitRefusedError if another writer was faster.
        """
        ...

    def look(self, epoch: int, *, again: bool) -> Marker | Refuse | None:
        """The marker now, of which only that of `epoch` needs a token. Raises if this is not the
        same table any more. `again` says that a commit was refused after the last look.
        """
        ...

    def check_files(self, files: Sequence[F], *, ours: bool) -> None:
        """Check that data files exist, if the library does not. `ours`: this attempt wrote them."""
        del files, ours

    def commit(self, mode: WriteMode, files: Sequence[F], note: EpochNote) -> None:
        """Commit files and marker. CommitRefusedError if the table has changed since the look, or
        if the answer was lost.
        """
        ...

    def merge(self, rows: pa.Table, keys: Sequence[str], note: EpochNote) -> None:
        """Commit marker and rows of which no two have the same key; otherwise as `commit`."""
        ...

    def discard(self, files: Sequence[F]) -> None:
        """Delete files that are not part of the table."""
        ...

    def jobs_due(self) -> Sequence[str]:
        """What the maintenance must do after the last commit, by the names of its jobs."""
        return ()

    def maintained(self, attempt: int) -> MaintainedTable[F]:
        """The same table for the maintenance."""
        ...

    def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class TableWriters(Generic[F]):
    """Opens writers in tasks, which write data files and describe them to the driver."""

    form: TableFormat[F]
    plan: FilePlan[F]
    mode: WriteMode
    required: tuple[str, ...]
    max_file_bytes: int

    def open(self, context: WriterContext) -> PartWriter[F] | WholeResultWriter:
        write = self.plan.open(context)
        writer = PartWriter[F](
            context.schema,
            self.max_file_bytes,
            lambda _epoch, rows: write(rows),
            partial(pack_files, self.form, self.mode, context),
            partial(rows_without_values, required=self.required),
        )
        if self.mode is WriteMode.OVERWRITE:
            return WholeResultWriter(writer, partial(with_input, self.form.output.magic))
        return writer


class TableSink(Sink, Generic[F]):
    """The driver's side: commits epochs to one table."""

    exactly_once = True

    def __init__(
        self,
        table: TargetTable[F],
        form: TableFormat[F],
        mode: WriteMode,
        request: SinkRequest,
        options: TableWriting,
    ) -> None:
        self.table, self._form, self._mode = table, form, mode
        self._query_id, self._schema, self._options = request.query_id, request.schema, options
        self._checkpoint = request.checkpoint
        self._staging = request.checkpoint.at(form.staging)
        self._attempt = -1
        self.maintenance: TableMaintenance[F] | None = None

    @property
    def writers(self) -> WriterFactory:
        form, table = self._form, self.table
        if self._mode is WriteMode.MERGE:
            rows, url = ArrowRows(self._schema, table.required), self._checkpoint.url
            return StagedWriters(rows, url, form.staging, form.output.magic, durable=True)
        return TableWriters(
            form, table.file_plan, self._mode, table.required, self._options.max_file_bytes
        )

    def fence(self, attempt: int) -> None:
        """Compare the marker with the log, and make the table ready.

        There is no one to fence off: the offset log decides, and commits are compare-and-swap.
        """
        self._end_maintenance()
        self._attempt = attempt

        def settle(_: int) -> None:
            # Each try compares anew: whoever was faster may have moved the marker.
            self.table.settle(self._first_marker(), attempt)

        self._until_accepted(NO_EPOCH, settle)
        self.maintenance = self.open_maintenance()

    def open_maintenance(self) -> TableMaintenance[F]:
        """Return the maintenance of this attempt, which has not begun."""
        return TableMaintenance(
            *(self.table.maintained(self._attempt), self._form, self._options.compaction),
            *(self._checkpoint, self._query_id, self._attempt),
        )

    def decided(self, epoch: int) -> bool:
        return self._marker(epoch).epoch >= epoch

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        maintenance = self.maintenance
        assert maintenance is not None, "call fence first"
        output = read_output(self.table.name, self._form, epoch, messages)
        if output is None:
            return
        if isinstance(output, FilesOutput) and not output.is_new:
            # No task had input, so an earlier epoch has written the same result. It needs no marker
            # either: `check_marker` passes over epochs without output.
            self.table.discard(output.files)
            return
        ours = attempts_of(messages, self._form.output.magic) == {self._attempt}
        self._until_accepted(epoch, self._commit_of(epoch, messages, output, ours=ours))
        if isinstance(output, RowsOutput):
            delete_staged(self._staging, output.staged)
        # The first commit after a restart may finish an epoch of an earlier attempt. Only an epoch
        # of this one proves that no such epoch is left.
        if ours:
            maintenance.start()
        maintenance.ask(self.table.jobs_due())

    def close(self) -> None:
        self._end_maintenance()
        self.table.close()

    def _commit_of(
        self, epoch: int, messages: Sequence[bytes], output: EpochOutput[F], *, ours: bool
    ) -> Callable[[int], None]:
        """Return a function that commits the epoch, unless the table has it."""
        table = self.table
        note = EpochNote(self._query_id, epoch, self._attempt, token_of(messages))
        rows: pa.Table | None = None

        def commit(number: int) -> None:
            nonlocal rows
            # This look and the commit below are one compare-and-swap: the commit is refused if the
            # table, or at least the marker in it, has changed in between. So no other driver has
            # committed the epoch meanwhile. If the answer is lost, the next look shows the outcome.
            marker = self._marker(epoch, again=number > 0)
            if is_committed(table.name, marker, epoch, messages):
                return
            if isinstance(output, FilesOutput):
                if not number:
                    table.check_files(output.files, ours=ours)
                table.commit(output.mode, output.files, note)
            else:
                # Only now: once the table has the rows, staged files may be gone.
                rows = self._merged_rows(output) if rows is None else rows
                table.merge(rows, self._options.merge_keys, note)

        return commit

    def _merged_rows(self, output: RowsOutput) -> pa.Table:
        """Return the rows of an epoch that is merged: the last one of each key."""
        keys, schema = self._options.merge_keys, self._schema
        if not keys:
            raise OptionError(
                f"{self.table.name}: the last epoch in the log must still be merged by key, but "
                f"mergeKeys is not set. Start the query with the previous mergeKeys, stop it, then "
                f"change them."
            )
        parts = [staged_table(self._staging, staged, schema) for staged in output.staged]
        return last_per_key(joined_tables(parts, schema), keys)

    def _first_marker(self) -> Marker | None:
        """Compare the marker with the log; return the marker to begin with, if it lacks one."""
        current, history = self._marker_and_log()
        reset, place = self._options.reset_marker, self.table.place
        if isinstance(current, Refuse):
            if reset is None or reset != history.committed:
                raise MarkerError(
                    place,
                    current.reason,
                    f"{current.remedy} Or start with option resetMarker={history.committed}: the "
                    f"query then continues after that epoch, and the rows of the epochs that were "
                    f"rolled back stay away.",
                )
            current = None
        first = check_marker(current, history, reset, self._form.output)
        if isinstance(first, Refuse):
            raise MarkerError(place, first.reason, first.remedy)
        return first

    def _marker_and_log(self) -> tuple[Marker | Refuse | None, History]:
        """Return the marker in the table, and the log of the checkpoint.

        A driver that this attempt has replaced may still finish its epoch meanwhile. The marker is
        written after the offset entry and before the commit entry. So it is read before the log and
        after it, until both are the same.
        """
        current = self.table.load()
        while True:
            marked = current.epoch if isinstance(current, Marker) else NO_EPOCH
            history = read_history(self._checkpoint, marked, self._form.output.magic)
            before, current = current, self.table.load()
            if before == current:
                return current, history

    def _marker(self, epoch: int, *, again: bool = False) -> Marker:
        """Return the marker in the table. `fence` has made sure that there is one."""
        match self.table.look(epoch, again=again):
            case Refuse(reason, remedy):
                raise MarkerError(self.table.place, reason, remedy)
            case None:
                raise lost_marker(self.table.place, "it was removed while the query ran")
            case marker:
                return marker

    def _end_maintenance(self) -> None:
        maintenance, self.maintenance = self.maintenance, None
        if maintenance is not None:
            maintenance.close()

    def _until_accepted(self, epoch: int, action: Callable[[int], Any]) -> None:
        """Call a function with the number of tries before, until no other writer is faster."""
        pause, reason = FIRST_PAUSE_SECONDS, ""
        for number in range(COMMIT_TRIES):
            if number:
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(MAX_PAUSE_SECONDS, pause * 2)
            try:
                action(number)
                return
            except CommitRefusedError as error:
                reason = str(error)
        raise TableConflictError(self.table.name, epoch, COMMIT_TRIES, reason)


def lost_marker(place: str, reason: str) -> MarkerError:
    """The error for a marker that is gone while the query runs."""
    return MarkerError(
        place,
        reason,
        "Restore the table and start the query again, or use a new table and a new "
        "checkpointLocation.",
    )
