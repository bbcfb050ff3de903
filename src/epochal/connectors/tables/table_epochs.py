"""Decides what an epoch becomes in a table of files, from the messages of its tasks. Pure.

| output mode | option mergeKeys | an epoch |
|---|---|---|
| append | no | adds its rows |
| append, update | yes | replaces rows by key, and adds the others |
| update | no | is refused: the sink must know which rows change |
| complete | no | replaces all rows |
| complete | yes | is refused: there is nothing to find by key |

Tasks write data files and describe them in their messages. Rows that are merged by key pass through
the checkpoint instead. A message about files has the form of one about staged rows: in place of the
name of a staged file it has a word of the format, and in place of rows the descriptions.

Of the rows of an epoch with the same key, the last one counts. Null is a value like any other: two
rows whose keys are null in the same columns have the same key, as in GROUP BY.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.connectors.contract import WriterContext
from epochal.connectors.staging.epoch_marker import (
    MarkedOutput,
    Marker,
    Staged,
    has_output,
    pack,
    token_of,
    unpack,
)
from epochal.errors import OptionError, SinkConflictError


class WriteMode(StrEnum):
    """How an epoch changes the table."""

    APPEND = "append"
    MERGE = "merge"
    OVERWRITE = "overwrite"


def choose_write_mode(sink: str, output_mode: str, merge_keys: Sequence[str]) -> WriteMode:
    """Return how epochs change the table; OptionError if the options clash."""
    if output_mode == "complete":
        if merge_keys:
            raise OptionError(
                f"{sink}: output mode complete replaces all rows in each epoch, so mergeKeys has "
                f"no meaning. Remove it, or use output mode update."
            )
        return WriteMode.OVERWRITE
    if merge_keys:
        return WriteMode.MERGE
    if output_mode == "update":
        raise OptionError(
            f"{sink}: output mode update changes rows of earlier epochs, and the sink must know "
            f"which. Set the option mergeKeys to the columns that identify a row, or use append or "
            f"complete."
        )
    return WriteMode.APPEND


class DescribedFile(Protocol):
    """What the descriptions of data files have in common."""

    @property
    def path(self) -> str: ...
    @property
    def rows(self) -> int: ...


F = TypeVar("F", bound=DescribedFile)


@dataclass(frozen=True, slots=True)
class TableFormat(Generic[F]):
    """What tells the messages of one kind of table from those of others. Part of the log."""

    output: MarkedOutput
    staging: str
    """Where in the checkpoint rows are staged that will be merged."""
    file_type: type[F]
    """How tasks describe data files."""
    words: Mapping[WriteMode, str]
    """In place of a staged file's name: the message describes data files."""
    says_none: bool
    """Whether a message without files has the word too."""


@dataclass(frozen=True, slots=True)
class FilesOutput(Generic[F]):
    """An epoch whose rows are in data files, to be added to the table or to replace it."""

    mode: WriteMode
    files: tuple[F, ...]
    is_new: bool = True
    """False for a whole result that the table has already, because there was no input."""


@dataclass(frozen=True, slots=True)
class RowsOutput:
    """An epoch whose rows are staged, for a merge."""

    staged: tuple[Staged, ...]


EpochOutput: TypeAlias = FilesOutput[F] | RowsOutput


@dataclass(frozen=True, slots=True)
class EpochNote:
    """What a commit says about itself."""

    query_id: str
    epoch: int
    attempt: int
    token: str


def pack_files(
    form: TableFormat[F], mode: WriteMode, context: WriterContext, epoch: int, files: Sequence[F]
) -> bytes:
    """Return the message of a task that has written files."""
    rows = sum(file.rows for file in files)
    inline = msgspec.json.encode(files) if files else b""
    word = form.words[mode] if files or form.says_none else ""
    staged = Staged(epoch, context.attempt, context.task, rows, inline, word)
    return pack(staged, form.output.magic)


def read_output(
    table: str, form: TableFormat[F], epoch: int, messages: Sequence[bytes]
) -> EpochOutput[F] | None:
    """Return what the tasks of an epoch have reported; None if the epoch has no rows.

    An epoch that replaces the table by nothing has rows in this sense: it has a list of no files.
    """
    staged = []
    for message in messages:
        report = unpack(message, form.output.magic)
        if report is None:
            raise SinkConflictError(table, epoch, "what another sink has prepared")
        if report.rows or report.replaces is not None:
            staged.append(report)
    if not staged:
        return None
    described = [report for report in staged if report.name in form.words.values()]
    if not described and any(report.rows for report in staged):
        return RowsOutput(tuple(staged))
    replaces = any(
        report.replaces is not None or report.name == WriteMode.OVERWRITE for report in staged
    )
    decode: Any = msgspec.json.Decoder(list[form.file_type]).decode  # type: ignore[name-defined]
    files = tuple(file for report in described if report.rows for file in decode(report.inline))
    mode = WriteMode.OVERWRITE if replaces else WriteMode.APPEND
    return FilesOutput(mode, files, is_new=has_output(staged))


def attempts_of(messages: Iterable[bytes], magic: bytes) -> set[int]:
    """Return the attempts whose tasks sent these messages."""
    reports = (unpack(message, magic) for message in messages)
    return {report.attempt for report in reports if report is not None}


def is_committed(table: str, marker: Marker, epoch: int, messages: Sequence[bytes]) -> bool:
    """Return whether the table has the epoch; SinkConflictError if it has another one.

    The marker's token is the fingerprint that was committed with its epoch; empty if unknown.
    """
    if marker.epoch < epoch:
        return False
    if marker.epoch == epoch and marker.token not in ("", token_of(messages)):
        raise SinkConflictError(table, epoch, "the rows")
    return True


def last_per_key(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Each key's last row, in the order of these rows."""
    (codes,) = _codes([rows], keys)
    _, from_end = np.unique(codes[::-1], return_index=True)
    last = np.sort(len(codes) - 1 - from_end)
    return rows if len(last) == len(codes) else rows.take(last)


def without_keys(rows: pa.Table, replacing: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows whose key no row of `replacing` has."""
    codes, replaced = _codes([rows, replacing], keys)
    stays = ~np.isin(codes, replaced)
    return rows if stays.all() else rows.filter(pa.array(stays))


def _codes(tables: Sequence[pa.Table], keys: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """A number per row of each table, equal exactly for rows with equal keys."""
    codes = np.zeros(sum(table.num_rows for table in tables), dtype=np.int64)
    for key in keys:
        kind = tables[0].schema.field(key).type
        chunks = [chunk for table in tables for chunk in table.column(key).cast(kind).chunks]
        column: Any = pa.chunked_array(chunks, kind)
        if pa.types.is_floating(kind):
            column = pc.add(column, pa.scalar(0.0, kind))  # -0.0 is 0.0, as in GROUP BY
        values = pc.unique(column)
        indices = pc.index_in(column, value_set=values).to_numpy()
        # Number the combinations that occur, so that the numbers stay small.
        _, codes = np.unique(codes * len(values) + indices, return_inverse=True)
    ends = np.cumsum([table.num_rows for table in tables])[:-1]
    return list(np.split(codes, ends))
