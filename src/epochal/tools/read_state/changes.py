"""Reads the changes between two batches, with the columns of Spark's change feed.

    batch_id  int64 · change_type  `update`, `delete` or `append` · key · value · partition_id

Every record of every delta or changelog in the range is shown, in order: a key that was written
three times in a batch gives three rows. A version that exists only as a snapshot has no feed;
asking for it is an error that names the missing file.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.layout import DEFAULT_STORE
from epochal.errors import StateReadError
from epochal.files import Files
from epochal.record_batches import batch_of
from epochal.state.files.merge import Rows
from epochal.state.rows.byte_spans import Flags, spans_of
from epochal.state.rows.types import DataType
from epochal.tools.read_state.read import INVALID, StoreReader, open_batch, open_store, read_table
from epochal.tools.read_state.read_target import StateBatch, StoreTarget

NEGATIVE = "STDS_INVALID_OPTION_VALUE.IS_NEGATIVE"


def read_state_changes(
    checkpoint: str | Files | Checkpoint,
    start_batch: int,
    end_batch: int | None = None,
    operator_id: int = 0,
    store_name: str = DEFAULT_STORE,
    *,
    state_variable: str | None = None,
    partition: int | None = None,
) -> pa.Table:
    """Read the changes that the batches from `start_batch` to `end_batch`, inclusive, made.

    `end_batch` defaults to the newest committed batch.
    """
    batch = open_batch(checkpoint, end_batch)
    reader = open_changes(
        batch, start_batch, operator_id, store_name, state_variable=state_variable
    )
    return read_table(reader, partition)


def open_changes(
    batch: StateBatch,
    start_batch: int,
    operator_id: int = 0,
    store_name: str = DEFAULT_STORE,
    *,
    state_variable: str | None = None,
) -> ChangeReader:
    """Open the change feed of a store, ending with `batch`."""
    url = batch.checkpoint.url
    if start_batch < 0:
        raise StateReadError(url, f"batches start at 0, not at {start_batch}.", NEGATIVE)
    if start_batch > batch.batch_id:
        raise StateReadError(
            url, f"the feed ends at batch {batch.batch_id}, before {start_batch}.", INVALID
        )
    _check_formats(batch, start_batch, operator_id)
    store = open_store(batch, operator_id, store_name, state_variable=state_variable)
    return ChangeReader(store, start_batch + 1)


def _check_formats(batch: StateBatch, start_batch: int, operator_id: int) -> None:
    first = batch.checkpoint.commits.get(start_batch)
    if first is None:
        raise StateReadError(
            batch.checkpoint.url,
            f"batch {start_batch} is not committed, or its commit has been removed.",
            "STDS_COMMITTED_BATCH_UNAVAILABLE",
        )
    has_ids = [bool((e.state_unique_ids or {}).get(operator_id)) for e in (first, batch.commit)]
    if has_ids[0] != has_ids[1]:
        formats = [2 if has else 1 for has in has_ids]
        raise StateReadError(
            batch.checkpoint.url,
            f"batch {start_batch} uses checkpoint format {formats[0]} and batch {batch.batch_id} "
            f"format {formats[1]}; read the changes of each part separately.",
            "STDS_MIXED_CHECKPOINT_FORMAT_VERSIONS_NOT_SUPPORTED",
        )


class ChangeReader:
    """Reads the change feed of one store, starting with version `first`."""

    def __init__(self, reader: StoreReader, first: int) -> None:
        self._reader, self._first = reader, first

    @property
    def target(self) -> StoreTarget:
        return self._reader.target

    @property
    def fields(self) -> tuple[tuple[str, DataType | None], ...]:
        return (("batch_id", None), ("change_type", None), *self._reader.fields)

    def batches(self, partition: int) -> list[pa.RecordBatch]:
        target = self.target
        changes = target.settings.format.versions.read_changes(
            target.stored(partition), self._first, target.selection()
        )
        return [
            self._batch(change.rows, change.deleted, change.names, change.version, partition)
            for change in changes
            if len(change.rows)
        ]

    def schema(self) -> pa.Schema:
        nothing = spans_of([])
        rows = Rows(nothing, nothing, "no file")
        return self._batch(rows, np.zeros(0, np.bool_), [], 0, 0).schema

    def _batch(
        self, rows: Rows, deleted: Flags, names: list[str], version: int, partition: int
    ) -> pa.RecordBatch:
        """The records of one file; a deleted key has a null value."""
        keys = self._reader.keys(rows)
        live = np.flatnonzero(~deleted)
        values = self._reader.values(rows.take(live))
        places = np.cumsum(~deleted) - 1
        spread = values.take(pa.array(places, pa.int64(), mask=deleted))
        count = len(rows)
        return batch_of(
            [
                pa.array(np.full(count, version - 1, np.int64)),
                pa.array(names, pa.string()),
                *keys,
                spread,
                pa.array(np.full(count, partition, np.int32)),
            ],
            [name for name, _ in self.fields],
            count,
        )
