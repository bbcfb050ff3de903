"""Reads the changes between two batches, with the columns of Spark's change feed.

    batch_id  int64 · change_type  `update`, `delete` or `append` · key · value · partition_id

Every record of every delta or changelog in the range is shown, in order: a key that was written
three times in a batch gives three rows. A version that exists only as a snapshot has no feed;
asking for it is an error that names the missing file.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.layout import DEFAULT_STORE
from epochal.errors import StateReadError
from epochal.files import Files, join_url
from epochal.record_batches import batch_of
from epochal.state.files.chain import checksum_name, delta_name
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_changelog import Change, ChangeRecord, LineageItem
from epochal.state.rows.byte_spans import Flags, spans_of
from epochal.state.rows.types import DataType
from epochal.state.store.rocksdb_directory import FAMILY_BYTES, RocksDirectory, file_name
from epochal.tools.read_state.load_version import encoded_rows, open_rocksdb, read_records
from epochal.tools.read_state.read import INVALID, StoreReader, open_batch, open_store, read_table
from epochal.tools.read_state.read_target import Provider, StateBatch, StoreTarget

NEGATIVE = "STDS_INVALID_OPTION_VALUE.IS_NEGATIVE"
_NAMES = {Change.PUT: "update", Change.DELETE: "delete", Change.MERGE: "append"}


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
        if self._reader.target.settings.provider is Provider.HDFS:
            return self._from_deltas(partition)
        return self._from_changelogs(partition)

    def schema(self) -> pa.Schema:
        nothing = spans_of([])
        rows = Rows(nothing, nothing, "no file")
        return self._batch(rows, np.zeros(0, np.bool_), [], 0, 0).schema

    def _from_deltas(self, partition: int) -> list[pa.RecordBatch]:
        target = self._reader.target
        files = target.directory(partition)
        there = {info.name for info in files.list()}
        batches: list[pa.RecordBatch] = []
        for version in range(self._first, target.version + 1):
            found = read_records(
                files,
                delta_name(version),
                target.settings.codec,
                row_checksums=target.settings.form.checksummed,
                has_checksum_file=checksum_name(delta_name(version)) in there,
            )
            deleted = found.records.deleted
            names = np.where(deleted, "delete", "update").tolist()
            if len(found.records):
                batches.append(self._batch(found.puts, deleted, names, version, partition))
        return batches

    def _from_changelogs(self, partition: int) -> list[pa.RecordBatch]:
        target = self._reader.target
        rocks = open_rocksdb(target.directory(partition), target.settings)
        end = LineageItem(target.version, target.unique_id(partition))
        prefix = self._prefix(rocks, end)
        batches: list[pa.RecordBatch] = []
        for item in rocks.lineage(self._first, end):
            source = join_url(target.directory(partition).url, file_name(item, "changelog"))
            keyed = (self._keyed(record, source) for record in rocks.changelog(item).records)
            records = [self._plain(r, source) for r in keyed if r.key.startswith(prefix)]
            if records:
                batches.append(self._encoded(records, len(prefix), source, item.version, partition))
        return batches

    def _prefix(self, rocks: RocksDirectory, end: LineageItem) -> bytes:
        family = self._reader.target.family
        if family is None:
            return b""
        families = rocks.families(end.version, end.unique_id)
        return families[family].to_bytes(FAMILY_BYTES, "little") if family in families else b"none"

    def _keyed(self, record: ChangeRecord, source: str) -> ChangeRecord:
        """The record with its plain key; with row checksums the key of a delete carries one."""
        if record.change is not Change.DELETE:
            return record
        return replace(record, key=self.target.settings.form.deleted_key(record.key, source))

    def _plain(self, record: ChangeRecord, source: str) -> ChangeRecord:
        """The record with a single value and without its checksum."""
        form = self.target.settings.form
        if record.change is Change.DELETE_RANGE:
            raise StateReadError(
                source,
                "it deletes a range of keys at once, which a feed of single keys cannot show; "
                "compare two batches with `epochal state diff` instead.",
                "STATE_STORE_UNSUPPORTED_OPERATION",
            )
        if record.value is None:
            return record
        if self.target.has_lists:
            # Spark's feed has one row per record, and shows the first of several values.
            return replace(record, value=form.several(record.key, record.value, source)[0])
        return replace(record, value=form.single(record.key, record.value, source))

    def _encoded(
        self, records: list[ChangeRecord], skip: int, source: str, version: int, partition: int
    ) -> pa.RecordBatch:
        pairs = [(record.key, record.value) for record in records]
        rows = encoded_rows(self.target, pairs, skip, source)
        deleted = np.array([record.value is None for record in records], np.bool_)
        names = [_NAMES[record.change] for record in records]
        return self._batch(rows, deleted, names, version, partition)

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
