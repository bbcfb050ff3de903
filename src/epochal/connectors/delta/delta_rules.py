"""Decides what the Delta sink may do to a table, and what an epoch becomes. Pure.

A query's marker is a `txn` action in the table's log, with the query's id and the epoch's number.
Delta writes it in the same commit as the epoch's files. Spark's own Delta sink uses the same id and
number, so either of them skips what the other has written.

The log of the checkpoint decides an epoch and names its files. So two drivers that believe to own
the query commit the same files, and the second one finds the marker:

    marker >= epoch     the epoch is in the table: nothing to do
    marker <  epoch     it is not; commit the files and the marker together

Delta's library checks almost nothing that is given to it, so the checks are here: a table is
refused if it has a feature whose rules we would break.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from epochal.connectors.delta.delta_types import PARTITION_TYPES
from epochal.connectors.staging.epoch_marker import (
    MarkedOutput,
    Staged,
    has_output,
    pack,
    token_of,
    unpack,
)
from epochal.connectors.table_columns import TableColumn
from epochal.errors import SinkConflictError, TableMismatchError

MAGIC = b"EDT1"
DELTA_OUTPUT = MarkedOutput(
    magic=MAGIC,
    noun="table",
    how_lost="the table was deleted, replaced or restored from a copy, or its markers expired "
    "(delta.setTransactionRetentionDuration), or this is not the table that the query wrote to",
    how_behind="The table was restored to an earlier version, or this is not the table that the "
    "query wrote to",
    how_to_look="`deltalake.DeltaTable(path).history()` shows the epoch of each commit under "
    "`epochal`",
)

KNOWN_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Writer features that ask nothing of us, or only if a column or setting uses them: see below."""


class WriteMode(StrEnum):
    """How an epoch changes the table."""

    APPEND = "append"
    MERGE = "merge"
    OVERWRITE = "overwrite"


class DataFile(msgspec.Struct, frozen=True):
    """A Parquet file that a task has written, as the table's log will describe it."""

    path: str
    """Below the table's directory, not escaped."""
    size: int
    rows: int
    modified_ms: int
    partition: dict[str, str | None]
    stats: str


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a table's log says about the table."""

    table_id: str
    fields: tuple[Mapping[str, Any], ...]
    """The fields in the schema's JSON."""
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str] = field(default_factory=dict)
    writer_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FilesOutput:
    """An epoch whose rows are in data files, to be added to the table or to replace it."""

    mode: WriteMode
    files: tuple[DataFile, ...]
    is_new: bool = True
    """False for a whole result that the table has already, because there was no input."""


@dataclass(frozen=True, slots=True)
class RowsOutput:
    """An epoch whose rows are staged, for a merge."""

    staged: tuple[Staged, ...]


EpochOutput: TypeAlias = FilesOutput | RowsOutput


def write_mode(output_mode: str, merge_keys: Sequence[str]) -> WriteMode:
    """Return how epochs change the table; ValueError with the reason if the options clash."""
    if output_mode == "complete":
        if merge_keys:
            raise ValueError(
                "output mode complete replaces all rows in each epoch, so mergeKeys has no "
                "meaning. Remove it, or use output mode update."
            )
        return WriteMode.OVERWRITE
    if merge_keys:
        return WriteMode.MERGE
    if output_mode == "update":
        raise ValueError(
            "output mode update changes rows of earlier epochs, and the sink must know which. Set "
            "the option mergeKeys to the columns that identify a row, or use append or complete."
        )
    return WriteMode.APPEND


def files_message(
    mode: WriteMode, epoch: int, attempt: int, task: int, files: Sequence[DataFile]
) -> bytes:
    """Return the message of a task that has written files.

    It has the form of a message about staged rows. In place of the name of a staged file it has the
    mode, and in place of rows the descriptions of the files.
    """
    rows = sum(each.rows for each in files)
    inline = msgspec.json.encode(files) if files else b""
    return pack(Staged(epoch, attempt, task, rows, inline, mode.value), MAGIC)


def epoch_output(table: str, epoch: int, messages: Sequence[bytes]) -> EpochOutput | None:
    """Return what the tasks of an epoch have reported; None if the epoch has no rows.

    An epoch that replaces the table by nothing has rows in this sense: it has a list of no files.
    """
    staged = []
    for message in messages:
        found = unpack(message, MAGIC)
        if found is None:
            raise SinkConflictError(table, epoch, "what another sink has prepared")
        if found.rows or found.replaces is not None:
            staged.append(found)
    if not staged:
        return None
    if staged[0].name in (WriteMode.APPEND, WriteMode.OVERWRITE):
        decode = msgspec.json.Decoder(list[DataFile]).decode
        files = tuple(file for each in staged if each.rows for file in decode(each.inline))
        return FilesOutput(WriteMode(staged[0].name), files, is_new=has_output(staged))
    return RowsOutput(tuple(staged))


def attempts_of(messages: Iterable[bytes]) -> set[int]:
    """Return the attempts whose tasks sent these messages."""
    found = (unpack(message, MAGIC) for message in messages)
    return {each.attempt for each in found if each is not None}


def is_committed(
    table: str, marker: int | None, token: str, epoch: int, messages: Sequence[bytes]
) -> bool:
    """Return whether the table has the epoch; SinkConflictError if it has another one.

    `token` is the fingerprint that was committed with that epoch; empty if it is unknown.
    """
    if marker is None or marker < epoch:
        return False
    if marker == epoch and token not in ("", token_of(messages)):
        raise SinkConflictError(table, epoch, "the rows")
    return True


def check_table(
    table: str, shape: TableShape, mode: WriteMode, partition_by: Sequence[str], query: set[str]
) -> None:
    """Raise TableMismatchError if the sink would break the table's rules."""
    reasons = [*_features(shape), *_column_rules(shape), *_removal_rules(shape, mode)]
    if partition_by and tuple(partition_by) != shape.partition_by:
        reasons.append(
            f"the table is partitioned by ({', '.join(shape.partition_by)}), but the query by "
            f"({', '.join(partition_by)}). Remove partitionBy, or use another table."
        )
    reasons += [
        f"the table is partitioned by {name}, but the query has no such column. Add it."
        for name in shape.partition_by
        if name not in query
    ]
    if reasons:
        raise TableMismatchError(table, tuple(reasons))


def _features(shape: TableShape) -> list[str]:
    unknown = [name for name in shape.writer_features if name not in KNOWN_FEATURES]
    found = [
        f"the table has the feature {name}, which this sink does not know. Remove the feature, or "
        f"write with Spark."
        for name in unknown
    ]
    configuration = shape.configuration
    mapping = configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        found.append(
            f"the table maps its columns to other names (delta.columnMapping.mode = {mapping}), "
            f"and readers would find nulls in the files of this sink. Use a table without column "
            f"mapping."
        )
    found += [
        f"the table has the CHECK constraint {key.removeprefix('delta.constraints.')} ({value}), "
        f"which this sink does not check. Drop the constraint, or filter the rows and write to "
        f"another table."
        for key, value in sorted(configuration.items())
        if key.startswith("delta.constraints.")
    ]
    return found


def _column_rules(shape: TableShape) -> list[str]:
    found = []
    for column in shape.fields:
        metadata = column.get("metadata") or {}
        for key, rule in (
            ("delta.invariants", "an invariant"),
            ("delta.generationExpression", "a generated value"),
            ("delta.identity.start", "an identity value"),
            ("CURRENT_DEFAULT", "a default value"),
        ):
            if key in metadata:
                found.append(
                    f"column {column['name']} has {rule} ({metadata[key]}), which this sink does "
                    f"not honour. Remove it from the table, or write with Spark."
                )
    return found


def _removal_rules(shape: TableShape, mode: WriteMode) -> list[str]:
    if mode is WriteMode.APPEND:
        return []
    found = []
    what = "updates rows" if mode is WriteMode.MERGE else "replaces all rows"
    if shape.configuration.get("delta.appendOnly", "").lower() == "true":
        found.append(
            f"the table only takes new rows (delta.appendOnly), but the query {what}. Use output "
            f"mode append without mergeKeys, or another table."
        )
    if shape.configuration.get("delta.enableDeletionVectors", "").lower() == "true":
        found.append(
            f"the table has deletion vectors, but the query {what}. Set "
            f"delta.enableDeletionVectors to false and rewrite its files (REORG TABLE … APPLY "
            f"(PURGE)), or use another table."
        )
    return found


def check_new_table(
    table: str, query: Sequence[TableColumn], partition_by: Sequence[str], merge_keys: Sequence[str]
) -> None:
    """Raise TableMismatchError if partition columns or keys cannot be what they should be."""
    kinds = {column.name: column.kind for column in query}
    reasons = [
        f"{option} names column {name}, which does not exist. The columns are {', '.join(kinds)}."
        for option, names in (("partitionBy", partition_by), ("mergeKeys", merge_keys))
        for name in names
        if name not in kinds
    ]
    reasons += [
        f"column {name} is {kinds[name]}, by which this sink does not partition. Partition by a "
        f"column of {', '.join(sorted(PARTITION_TYPES))}."
        for name in partition_by
        if name in kinds and kinds[name] not in PARTITION_TYPES
    ]
    if len(partition_by) >= len(kinds):
        reasons.append(
            f"partitionBy names all columns {', '.join(kinds)}, so none is left for the files. "
            f"Partition by fewer columns."
        )
    reasons += [
        f"column {name} is {kinds[name]}, which cannot identify rows. Choose other mergeKeys."
        for name in merge_keys
        if kinds.get(name, "").startswith(("array", "map", "struct"))
    ]
    if reasons:
        raise TableMismatchError(table, tuple(reasons))


def leftovers(
    found: Iterable[tuple[str, int | None]], *, attempt: int, known: set[str]
) -> list[str]:
    """Return the files that attempts before `attempt` left, of (path, attempt that wrote it).

    `known` are the names of files that the table has, or keeps for readers of earlier versions, and
    of those that an epoch in the checkpoint's log names: it may still have to be committed.
    """
    return [
        path
        for path, wrote in found
        if wrote is not None and wrote < attempt and path.rpartition("/")[2] not in known
    ]
