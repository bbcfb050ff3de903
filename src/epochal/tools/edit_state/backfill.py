"""Decides how to add columns to stored values whose content comes from a table.

The table has the columns of the key and the new columns, by name: a Parquet file or directory, a
CSV file or a Delta table. A key that the table lacks gets the column's default. A key that only the
table has is reported, or becomes a new row: then value columns that the table lacks are null.

Note: the keys and values of the table are held in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from epochal.checkpoint.layout import StoreKey
from epochal.errors import EditError, OptionError
from epochal.state.files.rocksdb_family import Row
from epochal.state.files.schema_file import KeyEncoder
from epochal.state.rows.arrow_types import arrow_type
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.rows.tagged_json import json_column
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import decode_row, encode_row
from epochal.tools.edit.edit_file_log import SinkSurvey
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.survey import Survey
from epochal.tools.edit_state.edit_state import (
    NO_WAY_BACK,
    NextVersion,
    find_edit_base,
    new_schema,
    partitions_of,
    plan_batch,
    read_rows,
)
from epochal.tools.edit_state.evolve import AddColumn, Evolution, evolved, shown_schema
from epochal.tools.edit_state.rekey import plain_store
from epochal.tools.reporting import tracked
from epochal.wording import counted

KEYS_SHOWN = 5


def plan_backfill(
    surveyed: Survey,
    steps: Sequence[Evolution],
    table: str,
    *,
    add_keys: bool = False,
    operator_id: int = 0,
    store_name: str = "default",
    sink: SinkSurvey | None = None,
) -> Plan:
    """Evolve a store's values, with the content of added columns from a table."""
    added = [step.name for step in steps if isinstance(step, AddColumn)]
    if not added:
        raise OptionError("A table gives the values of added columns: name them with --add.")
    base = find_edit_base(surveyed)
    target = plain_store(base, operator_id, store_name)
    schema, rewrite = evolved(target, steps)
    schema = replace(schema, encoder=KeyEncoder("plain"))
    values = TableValues(table, schema.key, schema.value, added)
    parts: dict[int, list[tuple[Row, Row]]] = {}
    count = matched = 0
    for store in tracked(base.stores(operator_id, store_name)):
        part = parts.setdefault(store.partition, [])
        for key, value in read_rows(base, target, store):
            row, is_there = values.take(key, rewrite(value))
            part.append((key, row))
            count, matched = count + 1, matched + is_there
    new = values.left()
    if add_keys:
        partitions = base.settings.partitions or len(target.partitions)
        keys = [key for key, _ in new]
        for row, partition in zip(new, partitions_of(keys, schema.key, partitions), strict=True):
            parts[partition].append(row)
    version = NextVersion(base)
    for partition, rows in parts.items():
        version.write_rows(StoreKey(operator_id, partition, store_name), schema, rows)
    warnings = [NO_WAY_BACK]
    if new and not add_keys:
        shown = ", ".join(values.shown(key) for key, _ in new[:KEYS_SHOWN])
        warnings.append(
            f"Left out: {counted(len(new), 'key')} of the table that the state has not, such as "
            f"{shown}. Give --add-keys to add {'it' if len(new) == 1 else 'them'}."
        )
    words = f" and add {counted(len(new), 'key')}" if new and add_keys else ""
    return plan_batch(
        base,
        version.edited(others=new_schema(base, replace(schema, encoder=None), target)),
        command="state-evolve",
        summary=(
            f"rewrite {counted(count, 'row')} of operator {operator_id} from "
            f"{shown_schema(target.schema.value)} to {shown_schema(schema.value)}, {matched} of "
            f"them with values of {table}{words}"
        ),
        arguments={"operator": str(operator_id), "store": store_name, "from": table},
        sink=sink,
        warnings=tuple(warnings),
    )


class TableValues:
    """The rows of a table by their key, in the encoding of the state."""

    def __init__(
        self, table: str, key: StructType, value: StructType, added: Sequence[str]
    ) -> None:
        self._key, self._value, self._added = key, value, [value.names.index(n) for n in added]
        self._columns = StructType(())
        self._rows: dict[bytes, bytes] = {}
        self._taken: set[bytes] = set()
        for batch in read_table(table, key, value):
            self._add(table, batch, added)

    def take(self, key: Row, value: Row) -> tuple[Row, bool]:
        """A value with its added columns from the table, and whether the table has the key."""
        encoded = encode_row(key, self._key)
        stored = self._rows.get(encoded)
        if stored is None:
            return value, False
        self._taken.add(encoded)
        row, there = list(value), self._row(stored)
        for at in self._added:
            row[at] = there[at]
        return tuple(row), True

    def left(self) -> list[tuple[Row, Row]]:
        """The rows whose keys nobody took."""
        return [
            (decode_row(key, self._key), self._row(stored))
            for key, stored in self._rows.items()
            if key not in self._taken
        ]

    def shown(self, key: Row) -> str:
        column = decode_rows(spans_of([encode_row(key, self._key)]), self._key, source="table")
        return json.dumps(json_column(column, self._key)[0], ensure_ascii=False)

    def _row(self, stored: bytes) -> Row:
        """All value columns; null where the table has none."""
        by_name = dict(zip(self._columns.names, decode_row(stored, self._columns), strict=True))
        return tuple(by_name.get(name) for name in self._value.names)

    def _add(self, table: str, batch: pa.RecordBatch, added: Sequence[str]) -> None:
        there = batch.schema.names
        missing = [name for name in (*self._key.names, *added) if name not in there]
        if missing:
            raise OptionError(
                f"{table} lacks {', '.join(missing)}. It must have the columns of the key "
                f"({', '.join(self._key.names)}) and the added ones ({', '.join(added)}); it has "
                f"{', '.join(there)}."
            )
        self._columns = StructType(tuple(f for f in self._value.fields if f.name in there))
        keys = encode_rows(batch.select(list(self._key.names)), self._key)
        rows = encode_rows(batch.select(list(self._columns.names)), self._columns)
        for key, row in zip(keys.to_list(), rows.to_list(), strict=True):
            if key in self._rows:
                shown = self.shown(decode_row(key, self._key))
                raise EditError(table, f"it has two rows for the key {shown}; it may have one.")
            self._rows[key] = row


def read_table(table: str, key: StructType, value: StructType) -> Iterator[pa.RecordBatch]:
    """The record batches of a Parquet, CSV or Delta table."""
    is_directory = Path(table).is_dir() and not (Path(table) / "_delta_log").is_dir()
    try:
        if table.endswith(".csv"):
            from pyarrow import csv

            # Columns get the types of the state at once: a key such as 007 must not become a number.
            types: dict[str, Any] = {
                field.name: arrow_type(field.data_type) for field in (*key.fields, *value.fields)
            }
            options = csv.ConvertOptions(column_types=types)
            yield from csv.open_csv(table, convert_options=options)
        elif table.endswith(".parquet") or is_directory:
            from pyarrow import dataset

            yield from dataset.dataset(table, format="parquet").to_batches()
        else:
            yield from _delta_batches(table)
    except (OSError, pa.ArrowException) as error:
        raise OptionError(f"{table} cannot be read: {error}") from error


def _delta_batches(table: str) -> Iterator[pa.RecordBatch]:
    from epochal.connectors.delta.delta_table import import_deltalake

    deltalake = import_deltalake()
    try:
        yield from deltalake.DeltaTable(table).to_pyarrow_dataset().to_batches()
    except deltalake.exceptions.DeltaError as error:
        raise OptionError(f"{table} cannot be read: {error}") from error
