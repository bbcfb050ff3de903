"""Commits an epoch to an Iceberg table: one snapshot and the marker, in one catalog commit.

A stale writer must not commit an epoch twice. The client library would repeat a commit that lost a
race, on top of the winner's snapshot, which may hold the same epoch. So its retries are off, and
the loop is that of `TableSink`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    LessThanOrEqual,
)
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, ancestors_of
from pyiceberg.table.update import AssertCurrentSchemaId, AssertDefaultSpecId, TableRequirement
from pyiceberg.table.update.snapshot import _OverwriteFiles

from epochal.connectors.iceberg.iceberg_files import WrittenFile, data_file
from epochal.connectors.iceberg.iceberg_schema import partitioning_of
from epochal.connectors.iceberg.iceberg_snapshots import SnapshotMark
from epochal.connectors.tables.table_epochs import without_keys
from epochal.connectors.tables.table_maintenance import CommitRefusedError

logger = logging.getLogger(__name__)

RETRIES = "commit.retry.num-retries"

MarkOf: TypeAlias = Callable[[int, int], dict[str, str]]
"""The table's property with the marker, for a snapshot's sequence number and id."""


class AnswerLostError(CommitRefusedError):
    """The commit may still take effect, so its files must stay."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """The files that a commit adds and removes."""

    added: Sequence[WrittenFile] = ()
    removed: Sequence[DataFile] = ()
    temporary: Sequence[WrittenFile] = ()
    """Of the added files, those that only this try has written."""


def commit_change(
    table: Table, branch: str, change: TableChange, summary: dict[str, str], mark: MarkOf
) -> None:
    """Try to commit an epoch with its marker, of which `mark(sequence, snapshot)` is the text.

    CommitRefusedError if another commit came first; then nothing was written.
    """
    # Only this handle's copy of the properties; it is not written to the table.
    table.metadata.properties[RETRIES] = "0"
    transaction = table.transaction()
    update = transaction.update_snapshot(snapshot_properties=summary, branch=branch)
    producer: Any
    if change.removed:
        producer = update.overwrite()
        producer.delete_by_predicate(AlwaysTrue())  # look for the files in all manifests
    elif table.metadata.properties.get("commit.manifest-merge.enabled", "true") == "true":
        producer = update.merge_append()
    else:
        producer = update.fast_append()
    _stage(table, producer, change)
    # Property and snapshot are made from the same metadata, so the snapshot gets this number.
    properties = mark(last_sequence(table) + 1, producer.snapshot_id)
    try:
        producer.commit()
    except FileNotFoundError as error:  # somebody has expired what this handle still shows
        raise _refused(error) from error
    transaction.set_properties(properties)
    # The files were written for this schema and this partitioning.
    transaction._stage((), _unchanged(table))
    _finish(transaction)


def commit_properties(table: Table, properties: dict[str, str]) -> None:
    """Try to set properties of a table; CommitRefusedError as above."""
    transaction = table.transaction()
    transaction.set_properties(properties)
    _finish(transaction)


def last_sequence(table: Table) -> int:
    """The sequence number of the newest snapshot."""
    metadata: Any = table.metadata  # of version 2: others are refused
    return int(metadata.last_sequence_number)


def _finish(transaction: Transaction) -> None:
    try:
        transaction.commit_transaction()
    except CommitFailedException as error:
        raise _refused(error) from error
    except CommitStateUnknownException as error:
        # `TableSink` looks at the marker again. Until then the files may be part of the table.
        logger.warning("iceberg sink: the answer to a commit was lost: %s", error)
        raise AnswerLostError("the answer to a commit was lost") from error


def _refused(error: Exception) -> CommitRefusedError:
    logger.info("iceberg sink: another commit came first: %s", error)
    return CommitRefusedError("the table has changed since it was read")


def _unchanged(table: Table) -> tuple[TableRequirement, ...]:
    """What makes a commit fail if the table's columns or partitions have changed."""
    schema = {"current-schema-id": table.metadata.current_schema_id}
    spec = {"default-spec-id": table.metadata.default_spec_id}
    return AssertCurrentSchemaId.model_validate(schema), AssertDefaultSpecId.model_validate(spec)


def _stage(table: Table, producer: Any, change: TableChange) -> None:
    by = partitioning_of(str(table.name()), table.schema(), table.spec())
    for written in change.added:
        producer.append_data_file(data_file(written, by))
    for file in change.removed:
        producer.delete_data_file(file)


def branch_history(table: Table, branch: str) -> list[SnapshotMark]:
    """The snapshots of a branch, from the newest back."""
    metadata = table.metadata
    head = metadata.snapshot_by_name(branch)
    return [mark_of_snapshot(snapshot) for snapshot in ancestors_of(head, metadata)]


def mark_of_snapshot(snapshot: Snapshot) -> SnapshotMark:
    """A snapshot as the rules see it."""
    summary = {} if snapshot.summary is None else dict(snapshot.summary.additional_properties)
    return SnapshotMark(
        *(snapshot.snapshot_id, snapshot.sequence_number or 0, summary),
        *(snapshot.parent_snapshot_id, snapshot.timestamp_ms),
    )


def live_files(table: Table, head: Snapshot | None) -> Iterator[DataFile]:
    for manifest in () if head is None else head.manifests(table.io):
        if manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file


def read_file(table: Table, *tasks: Any) -> pa.Table:
    """The rows of data files that are not deleted, with the table's columns."""
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    return scan.to_table(tasks)


def merged(
    table: Table,
    branch: str,
    rows: pa.Table,
    keys: Sequence[str],
    write: Callable[[pa.Table], list[WrittenFile]],
) -> TableChange:
    """Replace the rows with these keys by `rows`, and add the others of `rows`.

    Files that hold replaced rows are written again without them.
    """
    removed, added = [], list(write(rows))
    if branch in table.metadata.refs:
        scan = table.scan(row_filter=_near(rows, keys)).use_ref(branch)
        for task in scan.plan_files():
            present = read_file(table, task)
            kept = without_keys(present, rows, keys)
            if kept.num_rows < present.num_rows:
                removed.append(task.file)
                added += write(kept) if kept.num_rows else []
    return TableChange(added, removed, added)


def _near(rows: pa.Table, keys: Sequence[str]) -> BooleanExpression:
    """A filter for files that may hold these keys, by the lowest and highest value of each."""
    at_least: Any = GreaterThanOrEqual
    at_most: Any = LessThanOrEqual
    near: BooleanExpression = AlwaysTrue()
    for key in keys:
        column: Any = rows.column(key)
        kind = column.type
        comparable = pa.types.is_integer(kind) or pa.types.is_large_string(kind)
        if column.null_count or not (comparable or pa.types.is_string(kind)):
            continue
        low, high = pc.min(column).as_py(), pc.max(column).as_py()
        near = And(near, And(at_least(key, low), at_most(key, high)))
    return near


class ReplaceFiles(_OverwriteFiles):
    """Replaces files by others with the same rows. Streaming readers skip such a snapshot."""

    def _summary(self, snapshot_properties: dict[str, str] = {}) -> Summary:  # noqa: B006
        # The library counts files only for the operations that it writes itself.
        summary = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **summary.additional_properties)


def replace_files(table: Table, branch: str, change: TableChange) -> None:
    """Try to commit a change that leaves all rows as they are.

    CommitRefusedError as above; ValidationException if a file is no longer in the table.
    """
    table.metadata.properties[RETRIES] = "0"
    transaction = table.transaction()
    producer = ReplaceFiles(
        operation=Operation.OVERWRITE, transaction=transaction, io=table.io, branch=branch
    )
    producer.delete_by_predicate(AlwaysTrue())
    _stage(table, producer, change)
    producer.commit()
    transaction._stage((), _unchanged(table))
    _finish(transaction)


def delete_files(table: Table, paths: Sequence[str]) -> None:
    """Delete files that no snapshot names, as far as that is possible."""
    for path in paths:
        with suppress(OSError):
            table.io.delete(path)
