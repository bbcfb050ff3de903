"""Decides how stored values are given another schema: a column added, widened or renamed.

Spark refuses a query whose state schema differs in more than names from the stored one, and for
HDFS-backed state it never writes the schema file again. This edit rewrites every value and the
schema file together. Key columns can be renamed but not changed: the bytes of a key decide where
its row lies.

What a reader would get wrong: the schema file has no version. Once it is changed no older version
of the store can be read, so the files of those versions go, and with them the way back by rewind;
undo restores all of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from epochal.checkpoint.directory import Checkpoint
from epochal.checkpoint.layout import parse_state_file, state_schema_path
from epochal.errors import EditError, OptionError, StateSchemaError
from epochal.state.files.chain import delta_name, snapshot_name
from epochal.state.files.merge import Rows
from epochal.state.files.schema_file import encode_schema_file
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.tagged_json import from_json
from epochal.state.rows.types import (
    AtomicType,
    DataType,
    DecimalType,
    StructField,
    StructType,
    parse_schema,
)
from epochal.state.rows.unsafe_row import decode_row, encode_row
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.edit.survey import Survey
from epochal.tools.edit_state.edit_state import (
    EditBase,
    EditedBatch,
    delta_files,
    plan_batch,
    snapshot_bytes,
    stand_on,
)
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.load_version import load_version
from epochal.tools.read_state.read_target import StateBatch

_WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long", "double"),
    "float": ("double",),
}
_SQL_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new column of the value, with the same content in every row."""

    name: str
    data_type: DataType
    default: Any
    """In JSON form."""
    after: str | None = None
    """The column it follows; the last one unless named."""


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """A column of the value gets a type that holds all values of its old one."""

    name: str
    data_type: DataType


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """A column of the key or the value gets another name."""

    name: str
    to: str


Evolution: TypeAlias = AddColumn | WidenColumn | RenameColumn
Rewrite: TypeAlias = Callable[[tuple[Any, ...]], tuple[Any, ...]]


def parse_type(text: str) -> DataType:
    """A type by Spark's name for it, or SQL's: `long`, `bigint`, `decimal(10,2)`, or its JSON."""
    name = _SQL_NAMES.get(text.strip().lower(), text.strip())
    document = json.loads(name) if name.startswith("{") else name
    field: dict[str, Any] = {"name": "column", "type": document, "nullable": True, "metadata": {}}
    try:
        schema = parse_schema(json.dumps({"type": "struct", "fields": [field]}))
    except StateSchemaError as error:
        raise OptionError(f"{text!r}: {error.reason}.") from None
    return schema.fields[0].data_type


def evolve(schema: StructType, step: Evolution) -> tuple[StructType, Rewrite]:
    """The value's schema after one step, and what the step does to a row. Pure."""
    fields = schema.fields
    if isinstance(step, AddColumn):
        if step.name in schema.names:
            raise OptionError(f"the value already has a column {step.name!r}.")
        at = len(fields) if step.after is None else _index(schema, step.after) + 1
        default = from_json(step.default, step.data_type, step.name)
        added = StructField(step.name, step.data_type)
        new = StructType((*fields[:at], added, *fields[at:]))
        return new, lambda row: (*row[:at], default, *row[at:])
    at = _index(schema, step.name)
    old = fields[at]
    if isinstance(step, RenameColumn):
        if step.to in schema.names:
            raise OptionError(f"there already is a column {step.to!r}.")
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
) -> Plan:
    """Rewrite a store's values for another schema, as one new batch."""
    if not steps:
        raise OptionError("there is nothing to evolve: add, widen or rename a column.")
    base = stand_on(surveyed)
    schema = StateBatch(Checkpoint(surveyed.files), base.batch_id).store(operator_id, store_name)
    key, value = schema.schema.key, schema.schema.value
    rewrites: list[Rewrite] = []
    for step in steps:
        if isinstance(step, RenameColumn) and step.name not in value.names:
            key, _ = evolve(key, step)
        else:
            value, rewrite = evolve(value, step)
            rewrites.append(rewrite)
    stores = [s for s in base.stores if s.operator == operator_id and s.name == store_name]
    old_value = schema.schema.value
    files = delta_files(base, {})
    count = 0
    for store in stores:
        parts = load_version(surveyed.files.at(store.path), base.version, base.settings)
        rewritten = [_rewritten(rows, old_value, value, rewrites) for rows in parts]
        count += sum(len(rows) for rows in rewritten)
        del files[f"{store.path}/{delta_name(base.next_version)}"]
        path = f"{store.path}/{snapshot_name(base.next_version)}"
        files[path] = snapshot_bytes(rewritten, base.settings)
    family = replace(schema.schema, key=key, value=value)
    path = state_schema_path(operator_id, store_name)
    written = surveyed.tree.write(path, encode_schema_file([family]), "the evolved schema")
    return plan_batch(
        base,
        EditedBatch(files, others=(*_older(base, stores), written)),
        command="state-evolve",
        summary=(
            f"rewrite {count} rows of operator {operator_id} from {_shown(old_value)} to "
            f"{_shown(value)}, as batch {base.batch_id + 1}"
        ),
        arguments={"operator": str(operator_id), "store": store_name},
        warnings=(
            "Older versions of this store are removed, because nothing could read them any more: "
            "the query cannot be rewound to before this edit, only the edit undone.",
        ),
    )


def _rewritten(rows: Rows, old: StructType, new: StructType, rewrites: Sequence[Rewrite]) -> Rows:
    values: list[bytes] = []
    for raw in rows.values:
        row = decode_row(raw, old, source=rows.source)
        for rewrite in rewrites:
            row = rewrite(row)
        values.append(encode_row(row, new))
    return Rows(rows.keys, spans_of(values), rows.source)


def _older(base: EditBase, stores: Sequence[StoreListing]) -> Iterator[Change]:
    for store in stores:
        for name in sorted(store.files):
            file = parse_state_file(name)
            if file is not None and file.version <= base.version and not name.startswith("."):
                path = f"{store.path}/{name}"
                yield base.surveyed.tree.delete(path, "written for the old schema")


def _index(schema: StructType, name: str) -> int:
    try:
        return schema.names.index(name)
    except ValueError:
        raise OptionError(
            f"there is no column {name!r}; there are {', '.join(schema.names)}."
        ) from None


def _widening(old: StructField, new: DataType) -> Callable[[Any], Any]:
    match old.data_type, new:
        case AtomicType(name=narrow), AtomicType(name=wide) if wide in _WIDER.get(narrow, ()):
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


def _shown(schema: StructType) -> str:
    return "(" + ", ".join(f"{f.name}: {_type_name(f.data_type)}" for f in schema.fields) + ")"
