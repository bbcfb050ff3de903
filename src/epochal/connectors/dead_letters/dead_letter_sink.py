"""Separates the rows that a sink refuses, and writes them as dead letters of the same epoch.

In the tasks, a writer in front of the sink's own asks which rows of a batch are bad. Good rows go
on. Bad rows become letters in a file of the checkpoint, which the task's message names. After the
epoch is decided and the sink has it, the driver copies each such file to the directory for letters:

    tasks     prepare: the sink's part; .epochal/letters/e41-a3-t0-….json       nothing is visible
    driver    the decision, the sink's commit                                   rows are visible
              letters-<query>-41-0.json, created if absent                      letters are visible
              commits/41

The name of the copy is fixed by the epoch and the task, so a repeated commit changes nothing, and
anything that reads the directory sees the letters of committed epochs, each once.

Note: staged files of earlier attempts may be deleted only after the second commit of an attempt.
The first one may finish an epoch of the attempt before, and needs its files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast
from uuid import uuid4

import google_crc32c
import pyarrow as pa

from epochal.checkpoint.entries import CommitLog, OffsetLog
from epochal.checkpoint.layout import COMMITS, EPOCHAL, OFFSETS
from epochal.checkpoint.metadata_log import storage_errors
from epochal.connectors.contract import (
    BadRows,
    DeadLetterWriter,
    Prepare,
    Sink,
    SinkWriter,
    WriterContext,
    WriterFactory,
)
from epochal.connectors.dead_letters.dead_letter_rules import BadRowOptions, OnBadRow, letters_of
from epochal.connectors.staging.deciding_sink import logged_messages
from epochal.connectors.staging.epoch_marker import (
    StagedDeadLetters,
    sink_messages,
    unwrap_letters,
    wrap_letters,
)
from epochal.connectors.staging.staged_rows import delete_stale, read_staged
from epochal.errors import OptionError, SinkConflictError
from epochal.files import Files, join_url, open_files

logger = logging.getLogger(__name__)

STAGING = f"{EPOCHAL}/letters"


def dead_letter_name(query: str, epoch: int, task: int) -> str:
    return f"letters-{query}-{epoch}-{task}.json"


@dataclass(frozen=True, slots=True)
class Checking:
    """Which rows of which query are bad, and what happens to them."""

    format: str
    query: str
    options: BadRowOptions
    lasts: bool = True
    """Whether the sink's output outlives the query. Other sinks refuse no rows."""
    has_topic: bool = False
    """Whether the sink can write letters to a topic."""


@dataclass(frozen=True, slots=True)
class CheckedWriters:
    writers: WriterFactory
    about: Checking
    staging: str

    def open(self, context: WriterContext) -> CheckedWriter:
        return CheckedWriter(self, context)


class CheckedWriter(SinkWriter):
    """Passes good rows on to the sink's writer, and keeps bad ones back."""

    def __init__(self, plan: CheckedWriters, context: WriterContext) -> None:
        self._plan, self._context, self._column = plan, context, plan.about.options.bad_row_column
        inner = replace(context, schema=written_schema(context.schema, plan.about))
        self._writer = plan.writers.open(inner)
        self._fails = plan.about.options.on_bad_row is OnBadRow.FAIL
        if not self._fails and not self._writer.checks_rows:
            self._writer.close()
            raise OptionError(
                f"{plan.about.format}: this sink cannot tell which rows it refuses, so "
                f"onBadRow=deadLetter is not possible. Remove it."
            )
        self._epoch, self._letters, self._count = context.epoch, list[bytes](), 0
        self.dead_letters = 0
        """The number of letters of the epoch that was cut last."""

    def write(self, batch: pa.RecordBatch) -> None:
        rows, bad = self._checked(batch)
        if bad:
            good = [index not in bad for index in range(rows.num_rows)]
            rows = rows.filter(pa.array(good, pa.bool_()))
        if rows.num_rows or not batch.num_rows:
            self._writer.write(rows)

    def note_idle(self) -> None:
        self._writer.note_idle()

    def cut(self, epoch: int) -> Prepare:
        letters, self._letters = self._letters, []
        self.dead_letters, self._count = self._count, 0
        self._epoch = epoch + 1
        prepare = self._writer.cut(epoch)
        return (lambda: self._prepared(epoch, letters, prepare)) if letters else prepare

    def close(self) -> None:
        self._letters.clear()
        self._writer.close()

    def _checked(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, BadRows]:
        """The rows as the sink takes them, and which of them are bad. Their letters are kept."""
        bad: dict[int, str] = {}
        rows = batch
        if self._column is not None:
            reasons = batch.column(self._column)
            rows = batch.drop_columns([self._column])
            if reasons.null_count < len(reasons):
                bad = {n: text for n, text in enumerate(reasons.to_pylist()) if text is not None}
        if self._fails:
            if bad:
                raise OptionError(
                    f"{self._plan.about.format}: column {self._column} says that a row is bad: "
                    f"{next(iter(bad.values()))}. Correct the query, or set onBadRow=deadLetter to "
                    f"write such rows to deadLetterPath and to go on."
                )
            return rows, bad
        bad = {**self._writer.bad_rows(rows), **bad}
        if bad:
            self._write_dead_letters(rows, bad)
        return rows, bad

    def _write_dead_letters(self, rows: pa.RecordBatch, bad: BadRows) -> None:
        query, task = self._plan.about.query, self._context.task
        origin = {"query": query, "epoch": self._epoch, "task": task}
        self._count += len(bad)
        if self._plan.about.options.dead_letter_topic is None:
            self._letters += letters_of(rows, bad, origin)
        else:
            writer = cast(DeadLetterWriter, self._writer)
            most = writer.max_dead_letter_bytes
            writer.write_dead_letters(letters_of(rows, bad, origin, max_bytes=most))

    def _prepared(self, epoch: int, letters: Sequence[bytes], prepare: Prepare) -> bytes:
        message, context = prepare(), self._context
        data = b"".join(letter + b"\n" for letter in letters)
        name = f"e{epoch}-a{context.attempt}-t{context.task}-{uuid4().hex[:8]}.json"
        with storage_errors(join_url(self._plan.staging, name)):
            open_files(self._plan.staging).create(name, data)
        staged = StagedDeadLetters(name, google_crc32c.value(data), len(letters))
        return wrap_letters(message, staged)


def written_schema(schema: pa.Schema, about: Checking) -> pa.Schema:
    """The columns that reach the sink; OptionError if `badRowColumn` is not a text column."""
    name, sink = about.options.bad_row_column, about.format
    if name is None:
        return schema
    if name not in schema.names:
        raise OptionError(
            f"{sink}: badRowColumn is {name}, but there is no such column. The columns are "
            f"{', '.join(schema.names)}."
        )
    kind = schema.field(name).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise OptionError(
            f"{sink}: badRowColumn is {name}, which is {kind}. It must be text: the reason why a "
            f"row is bad, null for good rows."
        )
    return schema.remove(schema.get_field_index(name))


def open_checked(
    opener: Callable[[pa.Schema], Sink], about: Checking, schema: pa.Schema, checkpoint: Files
) -> Sink:
    """Open a sink, and put dead letters in front of it if the options ask for them.

    `opener` takes the schema of the rows that reach the sink.
    """
    name, options = about.format, about.options
    if options.dead_letter_path is None and about.lasts:
        refuse_pending_letters(checkpoint)
    if options == BadRowOptions():
        return opener(schema)
    if options.on_bad_row is OnBadRow.DEAD_LETTER and not about.lasts:
        raise OptionError(f"{name}: this sink refuses no rows. Remove onBadRow=deadLetter.")
    if options.dead_letter_topic is not None and not about.has_topic:
        raise OptionError(
            f"{name}: only the Kafka sink has a deadLetterTopic, because it writes letters and "
            f"rows in one transaction. Use deadLetterPath."
        )
    sink = opener(written_schema(schema, about))
    writers = CheckedWriters(sink.writers, about, join_url(checkpoint.url, STAGING))
    return DeadLetterSink(sink, writers, checkpoint)


class DeadLetterSink(Sink):
    """The driver's side: commits to the sink, then makes the epoch's letters visible."""

    def __init__(self, sink: Sink, writers: CheckedWriters, checkpoint: Files) -> None:
        self._sink, self._writers = sink, writers
        self._staging = checkpoint.at(STAGING)
        path = writers.about.options.dead_letter_path
        self._letters = None if path is None else open_files(path)
        self._attempt, self._commits = 0, 0

    @property
    def exactly_once(self) -> bool:
        return self._sink.exactly_once

    @property
    def decides(self) -> bool:
        return self._sink.decides

    @property
    def writers(self) -> CheckedWriters:
        return self._writers

    def fence(self, attempt: int) -> None:
        self._attempt, self._commits = attempt, 0
        self._sink.fence(attempt)

    def decided(self, epoch: int) -> bool:
        return self._sink.decided(epoch)

    def begin_commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        self._sink.begin_commit(epoch, sink_messages(messages))

    def commit(self, epoch: int, messages: Sequence[bytes]) -> None:
        reports = [unwrap_letters(message) for message in messages]
        # The sink first. If it decides, its commit may still be refused, and then there must be no
        # letters of this epoch.
        self._sink.commit(epoch, [message for message, _ in reports])
        for task, (_, staged) in enumerate(reports):
            if staged is not None:
                self._publish(
                    dead_letter_name(self._writers.about.query, epoch, task), epoch, staged
                )
        self._commits += 1
        if self._commits == 2:
            self._delete_stale()

    def close(self) -> None:
        self._sink.close()

    def _publish(self, name: str, epoch: int, staged: StagedDeadLetters) -> None:
        letters = self._letters
        if letters is None:
            raise pending_letters(epoch)
        with storage_errors(join_url(letters.url, name)):
            try:
                self._check_same(letters, name, epoch, staged)
            except FileNotFoundError:
                try:
                    letters.create(name, read_staged(self._staging, staged.name, staged.checksum))
                except FileExistsError:  # another driver has just finished the same epoch
                    self._check_same(letters, name, epoch, staged)
        self._staging.delete(staged.name)

    def _check_same(self, letters: Files, name: str, epoch: int, staged: StagedDeadLetters) -> None:
        if google_crc32c.value(letters.read(name)) != staged.checksum:
            raise SinkConflictError(join_url(letters.url, name), epoch, "the dead letters")

    def _delete_stale(self) -> None:
        delete_stale(self._staging, before=self._attempt)
        if self._letters is not None:
            # A driver that was killed while it copied a file leaves a hidden one.
            ours = f"letters-{self._writers.about.query}-"
            for info in self._letters.list():
                if info.hidden and ours in info.name:
                    self._letters.delete(info.name)


def refuse_pending_letters(checkpoint: Files) -> None:
    """Raise OptionError if an epoch must be finished whose letters would have no place."""
    offsets = OffsetLog(checkpoint.at(OFFSETS), read_only=True)
    commits = CommitLog(checkpoint.at(COMMITS), read_only=True)
    epoch = offsets.latest_batch_id()
    if epoch is None or epoch == commits.latest_batch_id():
        return
    if any(unwrap_letters(message)[1] for message in logged_messages(offsets, epoch)):
        raise pending_letters(epoch)


def pending_letters(epoch: int) -> OptionError:
    """The error for letters of an epoch that the query must finish, but has no place for."""
    return OptionError(
        f"Epoch {epoch} was decided with dead letters that are not yet in their directory, but the "
        f"query has no deadLetterPath now. Start it with onBadRow=deadLetter and deadLetterPath as "
        f"before, and stop it; then change the options."
    )
