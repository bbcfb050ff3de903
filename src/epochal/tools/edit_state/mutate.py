"""Decides which files to write to put or delete single keys.

Keys and values are given in the JSON form that `epochal state read` shows. They are encoded as
Spark would encode them, and written to the partition that Spark's hash of the key selects. In the
wrong partition a key would silently exist twice. For transformWithState, the families in which
Spark finds timers and expired values by time, and counts list elements, are changed along. The
stores of a join depend on each other, so they cannot be edited one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from epochal.checkpoint.layout import JOIN_STORES
from epochal.errors import EditError, StateError, StateValueError
from epochal.state.files.partitioning import owner_path, place_of, placing_columns
from epochal.state.files.rocksdb_family import Family, Row, RowOrList, families_of
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.tagged_json import json_column, row_from_json
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import encode_row
from epochal.state.store.contract import StoreContent
from epochal.tools.edit.edit_file_log import SinkSurvey
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.edit.survey import Survey
from epochal.tools.edit_state.edit_state import (
    EditBase,
    NextVersion,
    avro_forms,
    find_edit_base,
    form_of,
    plan_batch,
    rows_of_target,
)
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.read import StoreReader, open_store
from epochal.tools.read_state.read_target import JOIN_OPERATOR, StateBatch
from epochal.tools.reporting import tracked
from epochal.wording import counted

DETAILS_SHOWN = 100
PAIRS = ("MapState", "TimerState")
"""Variables whose keys are a grouping key and something else."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A key to put or, without a value, to delete; both in JSON form.

    The key of a map or of a timer has the columns that `read` shows: `key`, and `user_map_key` or
    `expiration_timestamp_ms`. The value of a timer is `{}`. The value of a list is one element, or
    all of them; mutations of the same list together give its elements.
    """

    key: Mapping[str, Any]
    value: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


@dataclass(slots=True)
class _Edit:
    key: Row
    value: RowOrList | None
    before: RowOrList | None = None


Edits = dict[bytes, _Edit]
"""By the key's bytes."""


@dataclass(slots=True)
class _Target:
    """The store or variable that is edited, and the edits by partition."""

    reader: StoreReader
    operator_name: str | None
    partitions: dict[int, Edits] = field(default_factory=dict)

    @property
    def is_list(self) -> bool:
        variable = self.reader.variable
        return variable is not None and variable.kind == "ListState"

    @property
    def edits(self) -> list[_Edit]:
        return [edit for edits in self.partitions.values() for edit in edits.values()]


def plan_mutations(
    surveyed: Survey,
    mutations: Sequence[Mutation],
    *,
    operator_id: int = 0,
    store_name: str = "default",
    variable: str | None = None,
    timers: bool = False,
    sink: SinkSurvey | None = None,
) -> Plan:
    if not mutations:
        raise EditError(surveyed.url, "there is nothing to put or delete.")
    base = find_edit_base(surveyed)
    reader = open_store(base.batch, operator_id, store_name, state_variable=variable, timers=timers)
    name = base.batch.operator_name(operator_id)
    if name == JOIN_OPERATOR or reader.target.store_name in JOIN_STORES:
        raise EditError(
            base.url,
            f"operator {operator_id} keeps its state in several stores that depend on each other; "
            f"changing one of them would break the others.",
        )
    target = _Target(reader, name)
    for number, mutation in enumerate(mutations):
        _add(target, mutation, number)
    version = NextVersion(base)
    for store in tracked(base.stores(operator_id, reader.target.store_name)):
        if edits := target.partitions.get(store.partition):
            _change(base, version, store, target, edits)
    edits_made = target.edits
    puts = sum(1 for edit in edits_made if edit.value is not None)
    replaced = sum(1 for edit in edits_made if edit.value is not None and edit.before is not None)
    words = [f"put {counted(puts, 'key')} (replacing {counted(replaced, 'value')})"] if puts else []
    if deletes := len(edits_made) - puts:
        words.append(f"delete {counted(deletes, 'key')}")
    where = f"operator {operator_id}"
    if reader.variable is not None:
        where = f"{reader.variable.name} of {where}"
    return plan_batch(
        base,
        version.edited(),
        command="state-put" if puts else "state-delete",
        summary=f"{' and '.join(words)} in {where}",
        arguments={"operator": str(operator_id), "store": reader.target.family or store_name},
        sink=sink,
        details=tuple(_details(target)),
    )


def _add(target: _Target, mutation: Mutation, number: int) -> None:
    schema, variable = target.reader.target.schema, target.reader.variable
    shown = mutation.key
    if variable is not None and variable.kind in PAIRS:
        shown = _stored_names(shown, target.reader, number)
    key = _row(shown, schema.key, f"row {number}: key")
    value: RowOrList | None = None
    if mutation.value is not None:
        value = _value(target, mutation.value, f"row {number}: value")
    edits = target.partitions.setdefault(_partition(target, key, number), {})
    encoded = encode_row(key, schema.key)
    earlier = edits.get(encoded)
    if earlier is None:
        edits[encoded] = _Edit(key, value)
    elif not target.is_list or (earlier.value is None) != (value is None):
        raise StateValueError(f"row {number}: key", "struct", "the same key was given before")
    elif value is not None:
        earlier.value = [*(earlier.value or ()), *value]


def _stored_names(key: Mapping[str, Any], reader: StoreReader, number: int) -> dict[str, Any]:
    """The key with the names of the stored columns instead of those that `read` shows."""
    shown = [name for name, _ in reader.fields[:2]]
    if set(key) != set(shown):
        raise StateValueError(
            f"row {number}: key", "struct", f"{' and '.join(shown)} are needed, and nothing else"
        )
    names = reader.target.schema.key.names
    return {stored: key[name] for stored, name in zip(names, shown, strict=True)}


def _value(target: _Target, shown: Any, path: str) -> RowOrList:
    schema, variable = target.reader.target.schema.value, target.reader.variable
    if variable is not None and variable.kind == "TimerState":
        return (None,) * len(schema.fields)
    if not target.is_list:
        rows = [_row(shown, schema, path)]
    else:
        listed = shown if isinstance(shown, list) else [shown]
        rows = [_row(element, schema, f"{path}[{n}]") for n, element in enumerate(listed)]
    if not rows:
        raise StateValueError(path, "array", "Spark has no empty lists; delete the key instead")
    if variable is not None and variable.has_ttl and any(row[1] is None for row in rows):
        raise StateValueError(f"{path}.{schema.names[1]}", "long", "it cannot be null")
    return rows if target.is_list else rows[0]


def _row(value: Any, schema: StructType, path: str) -> Row:
    row = tuple(row_from_json(value, schema, path))
    for column, item in zip(schema.fields, row, strict=True):
        if item is None and not column.nullable:
            raise StateValueError(f"{path}.{column.name}", "", "it cannot be null")
    return row


def _partition(target: _Target, key: Row, number: int) -> int:
    store, variable = target.reader.target, target.reader.variable
    schema = store.schema.key
    placing = placing_columns(target.operator_name, store.store_name, schema)
    if variable is not None:
        maps = (variable.name,) if variable.kind == "MapState" else ()
        for ordinal in owner_path(variable.name, maps):
            nested = schema.fields[ordinal].data_type
            assert isinstance(nested, StructType), f"{schema.names[ordinal]} is no grouping key"
            key, schema = key[ordinal], nested
        placing = schema
    count = store.settings.partitions or len(store.partitions)
    partition = place_of(encode_row(key, schema), schema, placing, count)
    if partition not in store.partitions:
        raise EditError(
            store.files.url, f"row {number} belongs to partition {partition}, which does not exist."
        )
    return partition


def _change(
    base: EditBase, version: NextVersion, store: StoreListing, target: _Target, edits: Edits
) -> None:
    """Find the values that the changed keys have now, and write the changes of one partition."""
    content, stored = base.content(store), target.reader.target
    family = _family_of(base.batch, target.reader, content)
    form = form_of(base, family.rows, content, stored.family, store.path)
    by_key = {form.key(edit.key): edit for edit in edits.values()}
    for key, value, source in content.find(by_key, store.path):
        form = form_of(base, family.rows, content, stored.family, source)
        by_key[key].before = form.decode_value(key, value)
    absent = [edit.key for edit in edits.values() if edit.value is None and edit.before is None]
    if absent:
        first = _shown(absent[0], target.reader.target.schema.key)
        more = f", nor are {counted(len(absent) - 1, 'other key')}" if len(absent) > 1 else ""
        raise EditError(
            base.url,
            f"the key {first} is not in the state{more}, so it cannot be deleted. Nothing was "
            f"changed.",
        )
    changes = content.changes(
        family, [(edit.key, edit.value) for edit in edits.values()], base.settings.form
    )
    version.change(store.key, content, changes)


def _family_of(batch: StateBatch, reader: StoreReader, content: StoreContent) -> Family:
    """How a store or variable encodes its rows, and the indexes on them."""
    target, variable = reader.target, reader.variable
    if variable is None:
        return Family(rows_of_target(target))
    lists = (variable.name,) if variable.kind == "ListState" else ()
    schemas = batch.schemas(target.operator_id, target.store_name)
    avro = avro_forms(batch, target.operator_id)
    return families_of(schemas, lists, content.families, avro)[variable.name]


def _details(target: _Target) -> Iterator[str]:
    """What happens to each key, up to a limit: its old value and its new one, as JSON."""
    schema = target.reader.target.schema
    edits = target.edits
    for edit in edits[:DETAILS_SHOWN]:
        old = _shown(edit.before, schema.value) if edit.before is not None else "no value"
        new = _shown(edit.value, schema.value) if edit.value is not None else "deleted"
        yield f"{_shown(edit.key, schema.key)}: {old} -> {new}"
    if len(edits) > DETAILS_SHOWN:
        yield f"... and {len(edits) - DETAILS_SHOWN} more"


def _shown(value: RowOrList, schema: StructType) -> str:
    rows: Iterable[Row] = value if isinstance(value, list) else [value]
    try:
        encoded = spans_of([encode_row(row, schema) for row in rows])
        column = json_column(decode_rows(encoded, schema, source="state"), schema)
    except StateError:
        return "an unreadable value"
    return json.dumps(column if isinstance(value, list) else column[0], ensure_ascii=False)
