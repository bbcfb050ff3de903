"""Decides how to give stored values another schema: add, widen or rename a column.

Spark refuses a query whose state schema differs from the stored one in more than names, and it
rewrites neither values nor schema files. This edit rewrites every value together with the schema
file. Key columns can be renamed but not changed otherwise, because the bytes of a key determine its
partition.

Note: the schema file of a store without column families has no version. Once it is changed, older
versions of the store cannot be read any more. So their files are deleted, and the query cannot be
rewound past the edit. Undo restores everything. State with column families (transformWithState) has
a log of schema files, and keeps its older versions.

The content of added columns may come from a table. It has the columns of the key and the new
columns, by name: a Parquet file or directory, a CSV file or a Delta table. A key that the table
lacks gets the column's default. A key that only the table has is reported, or becomes a new row:
then value columns that the table lacks are null. The keys and values of the table are held in
memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.checkpoint.layout import StoreKey
from epochal.errors import EditError, OptionError, StateSchemaError
from epochal.state.files.merge import Rows
from epochal.state.files.rocksdb_family import FamilyRows, Row
from epochal.state.files.schema_file import FamilySchema, KeyEncoder
from epochal.state.rows.arrow_types import arrow_type
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.column_encoder import encode_rows
from epochal.state.rows.tagged_json import from_json, json_column
from epochal.state.rows.types import (
    AtomicType,
    DataType,
    DecimalType,
    StructField,
    StructType,
    parse_schema,
)
from epochal.state.rows.unsafe_row import decode_row, encode_row
from epochal.tools.edit.edit_file_log import SinkSurvey
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.survey import Survey
from epochal.tools.edit_state.edit_state import (
    NO_WAY_BACK,
    NextVersion,
    find_edit_base,
    form_of,
    new_schema,
    partitions_of,
    plan_batch,
    read_rows,
    rows_of_target,
)
from epochal.tools.edit_state.rekey import plain_store
from epochal.tools.read_state.read import open_store
from epochal.tools.read_state.read_target import StoreTarget
from epochal.tools.reporting import tracked
from epochal.wording import counted

KEYS_SHOWN = 5

WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long", "double"),
    "float": ("double",),
}
_SQL_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add a column to the value, with the same content in every row."""

    name: str
    data_type: DataType
    default: Any
    """In JSON form."""
    after: str | None = None
    """The column that it follows; by default the last one."""


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """Give a column of the value a type that can hold all values of its old type."""

    name: str
    data_type: DataType


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Rename a column of the key or the value."""

    name: str
    to: str


Evolution: TypeAlias = AddColumn | WidenColumn | RenameColumn
Rewrite: TypeAlias = Callable[[Row], Row]


def parse_type(text: str) -> DataType:
    """Parse a type in Spark's or SQL's spelling (`long`, `bigint`, `decimal(10,2)`) or JSON."""
    name = _SQL_NAMES.get(text.strip().lower(), text.strip())
    document = json.loads(name) if name.startswith("{") else name
    field: dict[str, Any] = {"name": "column", "type": document, "nullable": True, "metadata": {}}
    try:
        schema = parse_schema(json.dumps({"type": "struct", "fields": [field]}))
    except StateSchemaError as error:
        raise OptionError(f"{text!r}: {error.reason}.") from None
    return schema.fields[0].data_type


def evolve(schema: StructType, step: Evolution) -> tuple[StructType, Rewrite]:
    """The schema of the value after one step, and how to rewrite a row. Pure."""
    fields = schema.fields
    if isinstance(step, AddColumn):
        if step.name in schema.names:
            raise OptionError(f"The value already has a column {step.name!r}.")
        at = len(fields) if step.after is None else _index(schema, step.after) + 1
        default = from_json(step.default, step.data_type, step.name)
        added = StructField(step.name, step.data_type)
        new = StructType((*fields[:at], added, *fields[at:]))
        return new, lambda row: (*row[:at], default, *row[at:])
    at = _index(schema, step.name)
    old = fields[at]
    if isinstance(step, RenameColumn):
        if step.to in schema.names:
            raise OptionError(f"There is already a column {step.to!r}.")
        renamed = replace(old, name=step.to)
        return StructType((*fields[:at], renamed, *fields[at + 1 :])), lambda row: row
    convert = _widening(old, step.data_type)
    wide = StructField(old.name, step.data_type, old.nullable, old.metadata)
    new = StructType((*fields[:at], wide, *fields[at + 1 :]))
    return new, lambda row: (*row[:at], convert(row[at]), *row[at + 1 :])


def plan_evolve(
    surveyed: Survey,
    steps: Sequence[Evolution],
    *,
    operator_id: int = 0,
    store_name: str = "default",
    variable: str | None = None,
    sink: SinkSurvey | None = None,
) -> Plan:
    if not steps:
        raise OptionError("There is nothing to evolve: add, widen or rename a column.")
    base = find_edit_base(surveyed)
    reader = open_store(base.batch, operator_id, store_name, state_variable=variable)
    target = reader.target
    if target.avro is not None:
        raise EditError(
            base.url,
            f"the rows of operator {operator_id} are encoded as Avro. Spark lets the values of "
            f"such state evolve by itself: start the changed query as it is.",
        )
    if target.encoder.kind.startswith("timestamp"):
        raise EditError(
            base.url, f"{target.family} is a store of a join by time: it cannot change."
        )
    has_ttl = reader.variable is not None and reader.variable.has_ttl
    schema, rewrite = evolved(target, steps, has_ttl=has_ttl)
    version, count = NextVersion(base), 0
    for store in tracked(base.stores(operator_id, target.store_name)):
        content, parts = base.content(store), list[Rows]()
        for rows in content.parts(target.family, store.path):
            place = (content, target.family, rows.source)
            old = form_of(base, rows_of_target(target), *place)
            new = form_of(base, FamilyRows(schema, target.has_lists), *place)
            values: list[bytes] = []
            for key, stored in zip(rows.keys, rows.values, strict=True):
                value = old.decode_value(key, stored)
                changed = [rewrite(row) for row in value] if target.has_lists else rewrite(value)
                values.append(new.encode_value(key, changed))
            parts.append(Rows(rows.keys, spans_of(values), rows.source))  # keys keep their bytes
            count += len(rows)
        version.write(store.key, content.rewritten(parts))
    return plan_batch(
        base,
        version.edited(others=new_schema(base, schema, target)),
        command="state-evolve",
        summary=(
            f"rewrite {counted(count, 'row')} of operator {operator_id} from "
            f"{shown_schema(target.schema.value)} to {shown_schema(schema.value)}"
        ),
        arguments={"operator": str(operator_id), "store": target.family or store_name},
        sink=sink,
        warnings=(NO_WAY_BACK,) if target.family is None else (),
    )


def evolved(
    target: StoreTarget, steps: Sequence[Evolution], *, has_ttl: bool = False
) -> tuple[FamilySchema, Rewrite]:
    key, stored = target.schema.key, target.schema.value
    # A value with a time to live is a pair: the user's columns, and when it expires.
    inner = stored.fields[0].data_type if has_ttl else stored
    assert isinstance(inner, StructType), "a value with a time to live has its columns in a struct"
    rewrites: list[Rewrite] = []
    for step in steps:
        if isinstance(step, RenameColumn) and step.name not in inner.names and not target.family:
            if step.name not in key.names:
                raise _no_column(step.name, (*key.names, *inner.names))
            key, _ = evolve(key, step)
        else:
            inner, rewrite = evolve(inner, step)
            rewrites.append(rewrite)

    def rewritten(row: Row) -> Row:
        for rewrite in rewrites:
            row = rewrite(row)
        return row

    if not has_ttl:
        return replace(target.schema, key=key, value=inner), rewritten
    value = StructType((replace(stored.fields[0], data_type=inner), *stored.fields[1:]))
    return replace(target.schema, key=key, value=value), lambda row: (rewritten(row[0]), *row[1:])


def _index(schema: StructType, name: str) -> int:
    try:
        return schema.names.index(name)
    except ValueError:
        raise _no_column(name, schema.names) from None


def _no_column(name: str, columns: Sequence[str]) -> OptionError:
    return OptionError(f"There is no column {name!r}; the columns are {', '.join(columns)}.")


def _widening(old: StructField, new: DataType) -> Callable[[Any], Any]:
    match old.data_type, new:
        case AtomicType(name=narrow), AtomicType(name=wide) if wide in WIDER.get(narrow, ()):
            return (lambda v: None if v is None else float(v)) if wide == "double" else _same
        case DecimalType(p, s), DecimalType(q, t) if t >= s and q - t >= p - s:
            return _same
    raise EditError(
        old.name,
        f"{_type_name(old.data_type)} cannot become {_type_name(new)} without losing values.",
    )


def _same(value: Any) -> Any:
    return value


def _type_name(kind: DataType) -> str:
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    return getattr(kind, "name", type(kind).__name__)


def shown_schema(schema: StructType) -> str:
    """The columns and their types, for messages."""
    return "(" + ", ".join(f"{f.name}: {_type_name(f.data_type)}" for f in schema.fields) + ")"


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
    is_directory = Path(table).is_dir() and not (Path(table) / "_delta_log").is_dir()
    try:
        if table.endswith(".csv"):
            from pyarrow import csv

            # Columns get the types of the state at once: a key such as 007 must not be a number.
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
