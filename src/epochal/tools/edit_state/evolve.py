"""Decides how to give stored values another schema: add, widen or rename a column.

Spark refuses a query whose state schema differs from the stored one in more than names, and for
HDFS-backed state it never rewrites the schema file. This edit rewrites every value together with
the schema file. Key columns can be renamed but not changed otherwise, because the bytes of a key
determine its partition.

Note: the schema file has no version. Once it is changed, older versions of the store cannot be read
any more. So their files are deleted, and the query cannot be rewound past the edit. Undo restores
everything.
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
from epochal.tools.edit.edit_file_log import SinkSurvey
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.edit.survey import Survey
from epochal.tools.edit_state.edit_state import (
    EditBase,
    EditedBatch,
    delta_files,
    find_edit_base,
    plan_batch,
    snapshot_bytes,
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
Rewrite: TypeAlias = Callable[[tuple[Any, ...]], tuple[Any, ...]]


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
    sink: SinkSurvey | None = None,
) -> Plan:
    """Rewrite a store's values for another schema, as one new batch."""
    if not steps:
        raise OptionError("There is nothing to evolve: add, widen or rename a column.")
    base = find_edit_base(surveyed)
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
        sink=sink,
        warnings=(
            "Older versions of this store are deleted, because they do not match the new schema. "
            "The query cannot be rewound to before this edit; the edit can only be undone.",
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
            f"There is no column {name!r}; the columns are {', '.join(schema.names)}."
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
