"""Reads and writes whole versions of a store in RocksDB's files, as the tools need them.

Rows here have their stored form: keys and values with the bytes that RocksDB has around them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from epochal.errors import StateReadError
from epochal.files import join_url
from epochal.state.files.codecs import compress
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_changelog import (
    ChangeRecord,
    LineageItem,
    Operation,
    encode_changelog,
)
from epochal.state.files.rocksdb_entries import VERSION_BYTE, ValueWrapper, decode_keys, rows_of
from epochal.state.files.rocksdb_family import FAMILY_BYTES, FamilyRows, family_prefix
from epochal.state.files.schema_file import KeyEncoder
from epochal.state.rows.byte_spans import Spans, spans_of
from epochal.state.rows.types import StructType
from epochal.state.store.contract import (
    CarriedVersion,
    ChangedRows,
    FamilyForm,
    FileSettings,
    RowForm,
    Selection,
    StoredVersion,
)
from epochal.state.store.rocksdb_directory import (
    RocksContent,
    RocksDirectory,
    file_name,
    parse_name,
    read_metadata,
)

_NAMES = {Operation.PUT: "update", Operation.DELETE: "delete", Operation.MERGE: "append"}
_OF_FAMILIES = (2, 4)
"""The layouts of changelogs of stores with column families."""
_FIRST_WITH_LINEAGE = 3


class RocksVersions:
    """Reads and writes whole versions of a RocksDB store, as `HdfsVersions` does."""

    empty = RocksContent({})

    def file_names(self, stored: StoredVersion, names: Collection[str]) -> list[str]:
        plan = RocksDirectory(stored.files, stored.settings).plan(stored.version, stored.unique_id)
        snapshot = [] if plan.snapshot is None else [file_name(plan.snapshot, "zip")]
        return snapshot + [file_name(item, "changelog") for item in plan.changelogs]

    def shared_files(self, stored: StoredVersion, name: str) -> list[str]:
        parsed = parse_name(name)
        if parsed is None or parsed[1] != "zip":
            return []
        return [shared.path for shared in read_metadata(stored.files, parsed[0]).files]

    def read_rows(self, stored: StoredVersion, wanted: Selection) -> list[Rows]:
        directory, form = RocksDirectory(stored.files, stored.settings), stored.settings.form
        content = directory.load(stored.version, stored.unique_id, wanted)
        source = f"{stored.files.url} at version {stored.version}"
        entries = list(content.family(wanted.family))
        if wanted.has_lists:
            entries = [
                (key, value)
                for key, joined in entries
                for value in form.several(key, joined, source)
            ]
        elif form.checksummed:
            entries = [(key, form.single(key, value, source)) for key, value in entries]
        skip = 0 if wanted.family is None else FAMILY_BYTES
        return [_plain_rows(wanted, entries, skip, source)] if entries else []

    def read_changes(
        self, stored: StoredVersion, first: int, wanted: Selection
    ) -> Iterator[ChangedRows]:
        directory, form = RocksDirectory(stored.files, stored.settings), stored.settings.form
        prefix = b""
        if wanted.family is not None:
            numbers = directory.families(stored.version, stored.unique_id)
            prefix = family_prefix(numbers[wanted.family]) if wanted.family in numbers else b"none"
        for item in directory.lineage(first, stored.item):
            source = join_url(stored.files.url, file_name(item, "changelog"))
            records: list[ChangeRecord] = []
            for record in directory.changelog(item).records:
                if record.change is Operation.DELETE:  # with row checksums its key carries one
                    record = replace(record, key=form.deleted_key(record.key, source))
                if record.key.startswith(prefix):
                    value = _value_of(record, wanted, stored.settings, source)
                    records.append(replace(record, value=value))
            pairs = [(record.key, record.value) for record in records]
            yield ChangedRows(
                item.version,
                _plain_rows(wanted, pairs, len(prefix), source),
                np.array([record.value is None for record in records], np.bool_),
                [_NAMES[record.change] for record in records],
            )

    def read_content(self, stored: StoredVersion) -> RocksContent:
        return RocksDirectory(stored.files, stored.settings).load(stored.version, stored.unique_id)

    def key_columns(
        self, keys: Spans, encoder: KeyEncoder, schema: StructType, source: str
    ) -> pa.StructArray:
        return decode_keys(keys, encoder, schema, source)

    def unwrap(self, rows: Spans, source: str) -> Spans:
        return rows_of(rows, source)

    def row_form(self, start: bytes, rows: FamilyRows, form: ValueWrapper, source: str) -> RowForm:
        return FamilyForm(start, rows, form, source)

    def carried_version(self, stored: StoredVersion, names: Collection[str]) -> CarriedVersion:
        item, snapshot = stored.item, file_name(stored.item, "zip")
        if snapshot in names:
            return CarriedVersion(item, snapshot, lineage=(item,))
        changelog = RocksDirectory(stored.files, stored.settings).changelog(item)
        return CarriedVersion(item, None, changelog.layout, (*changelog.lineage, item))

    def next_carried(
        self, carried: CarriedVersion, item: LineageItem, codec: str
    ) -> tuple[str, bytes | None, CarriedVersion]:
        # A copy of a snapshot needs no other file: a lineage after it begins with itself.
        if carried.snapshot is not None:
            return file_name(item, "zip"), None, replace(carried, item=item, lineage=(item,))
        lineage = carried.lineage if carried.layout >= _FIRST_WITH_LINEAGE else None
        raw = encode_changelog((), lineage, of_families=carried.layout in _OF_FAMILIES)
        after = replace(carried, item=item, lineage=(*carried.lineage, item))
        return file_name(item, "changelog"), compress(raw, codec), after

    def first_files(
        self, parts: Sequence[Rows], version: int, settings: FileSettings
    ) -> dict[str, bytes]:
        records = [
            settings.form.record(VERSION_BYTE + key, VERSION_BYTE + value)
            for rows in parts
            for key, value in zip(rows.keys, rows.values, strict=True)
        ]
        # RocksDB counts versions from 1, and without a snapshot each of them needs its changelog.
        nothing = compress(encode_changelog((), None), settings.codec)
        files = {f"{number}.changelog": nothing for number in range(1, version)}
        last = compress(encode_changelog(records, None), settings.codec)
        return {**files, f"{version}.changelog": last}


def _plain_rows(
    wanted: Selection, pairs: Sequence[tuple[bytes, bytes | None]], skip: int, source: str
) -> Rows:
    """Keys, without their first `skip` bytes, and values; None is no value.

    Rows in Avro become UnsafeRows here, so that all that follows sees only those.
    """
    if wanted.avro is not None:
        keys = spans_of([wanted.avro.plain_key(key[skip:], source) for key, _ in pairs])
        plain = wanted.avro.plain_value
        values = spans_of([b"" if v is None else plain(v, source) for _, v in pairs])
        return Rows(keys, values, source)
    keys = spans_of([key for key, _ in pairs])
    values = spans_of([value or b"" for _, value in pairs])
    return Rows(Spans(keys.buffer, keys.starts + skip, keys.lengths - skip), values, source)


def _value_of(
    record: ChangeRecord, wanted: Selection, settings: FileSettings, source: str
) -> bytes | None:
    """The single value of a record, without its checksum."""
    if record.change is Operation.DELETE_RANGE:
        raise StateReadError(
            source,
            "it deletes a range of keys at once, which a feed of single keys cannot show; "
            "compare two batches with `epochal state diff` instead.",
            "STATE_STORE_UNSUPPORTED_OPERATION",
        )
    if record.value is None:
        return None
    if wanted.has_lists:
        # Spark's feed has one row per record, and shows the first of several values.
        return settings.form.several(record.key, record.value, source)[0]
    return settings.form.single(record.key, record.value, source)
