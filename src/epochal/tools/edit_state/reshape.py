"""Decides how to move the state of an operator to another number, to split it, or to merge two.

Spark numbers the stateful operators of a query in the order of its plan, and finds their state by
this number alone. A query that is changed may number them otherwise, or have two operators where
there was one. These edits lay the newest state out for such a query. Only the newest version is
kept of the operators that change: older ones do not fit the changed query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from epochal.checkpoint.layout import (
    StoreKey,
    crc_target,
    operator_path,
    state_schema_log_path,
    state_schema_path,
)
from epochal.errors import EditError, OptionError
from epochal.state.files.rocksdb_family import Row
from epochal.state.files.schema_file import FamilySchema, KeyEncoder, encode_schema_file
from epochal.state.rows.tagged_json import from_json
from epochal.state.rows.types import StructType
from epochal.state.rows.unsafe_row import encode_row
from epochal.tools.edit.edit_file_log import SinkSurvey
from epochal.tools.edit.edit_plan import Change, Plan
from epochal.tools.edit.survey import Survey
from epochal.tools.edit_state.edit_state import (
    WHY,
    EditBase,
    NextVersion,
    find_edit_base,
    older_files,
    plan_batch,
    read_rows,
)
from epochal.tools.edit_state.rekey import plain_store
from epochal.tools.inspect.state_listing import StoreListing
from epochal.tools.read_state.read_target import StoreTarget
from epochal.tools.reporting import tracked
from epochal.wording import counted

WARNING = (
    "Older versions of the operators that change are deleted. The query cannot be rewound to "
    "before this edit; the edit can only be undone."
)


def plan_move(
    surveyed: Survey, operator_id: int, to: int, *, sink: SinkSurvey | None = None
) -> Plan:
    base = find_edit_base(surveyed)
    _require_free(base, to)
    stores = _stores(base, operator_id)
    version = NextVersion(base)
    version.remove(operator_id)
    for store in tracked(stores):
        version.write(store.key._replace(operator=to), base.content(store))
    removed, emptied = _without(base, operator_id)
    others = (*_moved_files(base, operator_id, to), *removed)
    return plan_batch(
        base,
        version.edited(others=others, emptied=emptied),
        command="state-move",
        summary=f"move operator {operator_id} to {to}",
        arguments={"operator": str(operator_id), "to": str(to)},
        sink=sink,
        warnings=tuple(_warnings(base, ends=operator_id, begins=to)),
    )


def plan_split(
    surveyed: Survey,
    columns: Sequence[str],
    to: int,
    *,
    operator_id: int = 0,
    sink: SinkSurvey | None = None,
) -> Plan:
    base = find_edit_base(surveyed)
    target = plain_store(base, operator_id)
    _require_free(base, to)
    names = target.schema.value.names
    unknown = [name for name in columns if name not in names]
    if unknown or not columns or len(columns) == len(names):
        raise OptionError(
            f"The value of operator {operator_id} has the columns {', '.join(names)}. Name some of "
            f"them, but not all, to be moved; given were {', '.join(columns) or 'none'}."
        )
    moved = [names.index(name) for name in columns]
    left = [at for at in range(len(names)) if at not in moved]
    version, count = NextVersion(base), 0
    schemas = {operator_id: _picked(target.schema, left), to: _picked(target.schema, moved)}
    for store in tracked(_stores(base, operator_id)):
        rows = list(read_rows(base, target, store))
        count += len(rows)
        for operator, chosen in ((operator_id, left), (to, moved)):
            part = [(key, tuple(value[at] for at in chosen)) for key, value in rows]
            version.write_rows(StoreKey(operator, store.partition), schemas[operator], part)
    others: list[Change] = [
        _written_schema(base, operator, schema) for operator, schema in schemas.items()
    ]
    others += _metadata(base, operator_id, to)
    others += older_files(base, _stores(base, operator_id), "of the operator before it was split")
    return plan_batch(
        base,
        version.edited(others=others),
        command="state-split",
        summary=(
            f"move {', '.join(columns)} of {counted(count, 'row')} from operator {operator_id} to "
            f"{to}"
        ),
        arguments={"operator": str(operator_id), "to": str(to), "columns": ",".join(columns)},
        sink=sink,
        warnings=tuple(_warnings(base, begins=to)),
    )


def plan_merge(
    surveyed: Survey,
    other: int,
    *,
    operator_id: int = 0,
    fill: Mapping[str, Any] | None = None,
    sink: SinkSurvey | None = None,
) -> Plan:
    """Add the value columns of another operator with the same keys, which then ends.

    A key that only one of them has gets null in the columns of the other, or what `fill` has for
    the column, in JSON form.
    """
    base = find_edit_base(surveyed)
    if operator_id == other:
        raise OptionError(f"Operator {other} cannot be merged with itself.")
    one, two = plain_store(base, operator_id), plain_store(base, other)
    schema = _joined(base, one, two)
    absent = _fill(schema.value, fill or {})
    width = len(one.schema.value.fields)
    version, counts = NextVersion(base), [0, 0, 0]
    others_by_partition = {store.partition: store for store in _stores(base, other)}
    for store in tracked(_stores(base, operator_id)):
        rows = {encode_row(k, schema.key): (k, v) for k, v in read_rows(base, one, store)}
        beside = others_by_partition.get(store.partition)
        added = {
            encode_row(k, schema.key): (k, v)
            for k, v in (() if beside is None else read_rows(base, two, beside))
        }
        merged: list[tuple[Row, Row]] = []
        for key in sorted(rows.keys() | added.keys()):
            left = rows[key][1] if key in rows else absent[:width]
            right = added[key][1] if key in added else absent[width:]
            merged.append(((rows.get(key) or added[key])[0], (*left, *right)))
        counts[0] += len(rows.keys() & added.keys())
        counts[1] += len(rows.keys() - added.keys())
        counts[2] += len(added.keys() - rows.keys())
        version.write_rows(StoreKey(operator_id, store.partition), schema, merged)
    version.remove(other)
    removed, emptied = _without(base, other)
    written = _written_schema(base, operator_id, schema)
    older = older_files(base, _stores(base, operator_id), "of the operator before the merge")
    return plan_batch(
        base,
        version.edited(others=(written, *older, *removed), emptied=emptied),
        command="state-merge",
        summary=(
            f"merge operator {other} into {operator_id}: {counted(counts[0], 'key')} of both, "
            f"{counts[1]} only of {operator_id}, {counts[2]} only of {other}"
        ),
        arguments={"operator": str(operator_id), "other": str(other)},
        sink=sink,
        warnings=tuple(_warnings(base, ends=other)),
    )


def _warnings(
    base: EditBase, *, ends: int | None = None, begins: int | None = None
) -> Iterator[str]:
    yield WARNING
    numbers = {operator.operator for operator in base.surveyed.operators} - {ends}
    if begins is not None:
        numbers.add(begins)
    missing = [number for number in range(max(numbers, default=0)) if number not in numbers]
    if missing:
        yield (
            f"No operator has the number {', '.join(map(str, missing))} now, but Spark numbers "
            f"them without gaps. Move one there before the query starts."
        )


def _stores(base: EditBase, operator: int) -> list[StoreListing]:
    stores = base.stores(operator)
    if not stores:
        there = sorted({store.operator for store in base.stores()})
        noun = "only operator" if len(there) == 1 else "the operators"
        raise OptionError(
            f"There is no operator {operator}. The checkpoint has {noun} "
            f"{', '.join(map(str, there))}."
        )
    return stores


def _require_free(base: EditBase, operator: int) -> None:
    if operator < 0:
        raise OptionError(f"Operators start at 0, not at {operator}.")
    if any(listed.operator == operator for listed in base.surveyed.operators):
        raise EditError(
            base.url,
            f"there is an operator {operator} already. Move it away first with `epochal state "
            f"move`.",
        )


def _picked(schema: FamilySchema, ordinals: Sequence[int]) -> FamilySchema:
    value = StructType(tuple(schema.value.fields[at] for at in ordinals))
    return replace(schema, value=value, encoder=KeyEncoder("plain"))


def _written_schema(base: EditBase, operator: int, schema: FamilySchema) -> Change:
    path, data = state_schema_path(operator), encode_schema_file([schema])
    return base.surveyed.tree.write(path, data, WHY)


def _joined(base: EditBase, one: StoreTarget, two: StoreTarget) -> FamilySchema:
    kinds = [[field.data_type for field in target.schema.key.fields] for target in (one, two)]
    numbers = f"{one.operator_id} and {two.operator_id}"
    if kinds[0] != kinds[1]:
        raise EditError(
            base.url,
            f"the keys of the operators {numbers} have different types: "
            f"{', '.join(one.schema.key.names)} and {', '.join(two.schema.key.names)}. Give one of "
            f"them the other's key first, with `epochal state rekey`.",
        )
    both = sorted({*one.schema.value.names} & {*two.schema.value.names})
    if both:
        raise EditError(
            base.url,
            f"the operators {numbers} both have {', '.join(both)}. Rename it in one of them first, "
            f"with `epochal state evolve --rename`.",
        )
    fields = (*one.schema.value.fields, *two.schema.value.fields)
    value = StructType(tuple(replace(field, nullable=True) for field in fields))
    return replace(one.schema, value=value, encoder=KeyEncoder("plain"))


def _fill(schema: StructType, values: Mapping[str, Any]) -> Row:
    unknown = [name for name in values if name not in schema.names]
    if unknown:
        raise OptionError(
            f"There is no column {unknown[0]!r} to fill; the columns are {', '.join(schema.names)}."
        )
    return tuple(
        from_json(values[field.name], field.data_type, field.name) if field.name in values else None
        for field in schema.fields
    )


def _without(base: EditBase, operator: int) -> tuple[list[Change], tuple[str, ...]]:
    """Delete everything of an operator; also returns the directories that this empties."""
    surveyed, start = base.surveyed, operator_path(operator)
    changes: list[Change] = []
    for path in surveyed.tree.under(start):
        folder, _, name = path.rpartition("/")
        target = crc_target(name)
        if target is None or f"{folder}/{target}" not in surveyed.tree:
            changes.append(surveyed.tree.delete(path, f"of operator {operator}"))
    folders = {
        start,
        *(path for path in surveyed.listing.directories.by_path if path.startswith(f"{start}/")),
    }
    folders |= {change.path.rpartition("/")[0] for change in changes}
    return changes, tuple(sorted(folders, key=lambda path: (-path.count("/"), path)))


def _moved_files(base: EditBase, operator: int, to: int) -> Iterator[Change]:
    tree, files = base.surveyed.tree, base.surveyed.files
    for store in {listed.name for listed in _stores(base, operator)}:
        path = state_schema_path(operator, store)
        if path in tree:
            yield tree.write(state_schema_path(to, store), files.read(path), "the schema")
        for path in tree.under(state_schema_log_path(operator, store)):
            name = path.rpartition("/")[2]
            if not name.startswith("."):
                target = f"{state_schema_log_path(to, store)}/{name}"
                yield tree.write(target, files.read(path), "the schema")
    yield from _metadata(base, operator, to)


def _metadata(base: EditBase, operator: int, to: int) -> Iterator[Change]:
    metadata = base.batch.operator(operator)
    if metadata is None:
        return
    old, new = (f"/{operator_path(number)}/" for number in (metadata.operator_id, to))
    stores = tuple(
        replace(
            store,
            schema_file_paths=tuple(
                new.join(path.rsplit(old, 1)) for path in store.schema_file_paths
            ),
        )
        for store in metadata.stores
    )
    renumbered = replace(metadata, operator_id=to, stores=stores)
    yield base.written_metadata(renumbered, f"operator {to}")
