"""Makes joins from plan nodes: of two streams, and of a stream with a table that is read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from epochal.continuous.catalyst.plan_steps import Reading, Steps
from epochal.continuous.catalyst.spark_objects import JavaObject, items, option
from epochal.continuous.catalyst.stateful_nodes import known_format, placeholder
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Column, Expr
from epochal.continuous.operators.joins.static_join import StaticJoinSpec
from epochal.continuous.operators.joins.stream_join import JoinInput, StreamJoinSpec
from epochal.continuous.operators.stateless.row_operators import ProjectSpec
from epochal.continuous.plan.logical import Stateful, Step, StreamSource, unique_names
from epochal.record_batches import cast_table

_KINDS: dict[str, Any] = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left_outer",
    "RightOuter": "right_outer",
    "FullOuter": "full_outer",
    "LeftSemi": "left_semi",
    "LeftAnti": "left_anti",
    "ExistenceJoin": "existence",
}
_FORMAT = "spark.sql.streaming.join.stateFormatVersion"


def read_stream_join(
    steps: Steps,
    node: JavaObject,
    left: Reading,
    right: Reading,
    physical: JavaObject,
    operator_id: int,
) -> Reading:
    """A join of two streams. Both keep their rows in state."""
    kind = _kind(steps, node)
    if kind is None or not known_format(steps, "Join", physical, 2, _FORMAT):
        return placeholder(steps, node)
    inputs = []
    for side, keys, child in (
        (left, physical.leftKeys(), node.left()),
        (right, physical.rightKeys(), node.right()),
    ):
        keyed, key = _with_keys(steps, side, list(items(keys)))
        event_time, delay_ms = steps.event_time(side, items(child.output()))
        stream = JoinInput(keyed.schema, len(side.ids), key, event_time, delay_ms)
        inputs.append((keyed, stream))
    schema, ids = steps.output_of(node)
    spec = StreamJoinSpec(
        kind=kind,
        left=inputs[0][1],
        right=inputs[1][1],
        condition=_condition(steps, option(physical.condition().full()), left, right),
        output_schema=schema,
    )
    trees = tuple(keyed.tree for keyed, _ in inputs)
    return Reading(Stateful(trees, operator_id, spec), ids)


def read_static_join(
    steps: Steps, node: JavaObject, left: Reading | None, right: Reading | None
) -> Reading:
    """A join of a stream with a table. The table is collected when the query is read."""
    kind = _kind(steps, node)
    if kind is None:
        return placeholder(steps, node)
    stream, plan = (left, node.right()) if left is not None else (right, node.left())
    assert stream is not None
    schema, static_ids = steps.output_of(plan, "Join")
    collected = steps.planner.collect(plan).rename_columns(schema.names)
    table = cast_table(collected, schema).combine_chunks()
    lookup = Reading(StreamSource(-1, "", {}, None, schema), static_ids)
    sides = (stream, lookup) if left is not None else (lookup, stream)
    keys, condition = steps.planner.join_keys(node)
    keyed = [_with_keys(steps, side, own) for side, own in zip(sides, keys, strict=True)]
    (rows, key), (looked_up, table_key) = keyed if left is not None else reversed(keyed)
    output, ids = steps.output_of(node)
    spec = StaticJoinSpec(
        table=_computed(table, looked_up),
        stream_side="left" if left is not None else "right",
        kind=kind,
        stream_key=key,
        table_key=table_key,
        condition=_condition(steps, condition, *sides),
        output_schema=output,
        stream_columns=len(stream.ids),
        table_columns=len(lookup.ids),
    )
    steps.findings.note(
        "the static side of a join is read once, when the query starts; Spark reads it anew in "
        "every batch"
    )
    return Reading(Step(rows.tree, spec, output), ids)


def _kind(steps: Steps, node: JavaObject) -> Any | None:
    name = str(node.joinType().toString()).partition("(")[0]
    if name not in _KINDS:
        steps.findings.refuse(
            "Join", f"joins of the type {name} are not supported", "use an inner or outer join"
        )
    return _KINDS.get(name)


def _with_keys(
    steps: Steps, side: Reading, keys: Sequence[JavaObject]
) -> tuple[Reading, tuple[str, ...]]:
    """Append the keys that are not columns. Returns the names of the keys, too."""
    width, names = len(side.ids), []
    exprs: list[Expr] = [Column(index) for index in range(width)]
    fields = list(side.schema)
    steps.refuse_collations("Join", keys)
    for key in keys:
        expr = steps.expression("Join", side, key)
        if isinstance(expr, Column):
            names.append(side.schema.names[expr.index])
            continue
        name = unique_names([*(field.name for field in fields), f"_key{len(names)}"])[-1]
        names.append(name)
        exprs.append(expr)
        fields.append(pa.field(name, steps.type_of("Join", key)))
    ids = (*side.ids, *(-1 for _ in exprs[width:]))
    return steps.computed(side, exprs, pa.schema(fields), ids), tuple(names)


def _condition(
    steps: Steps, condition: JavaObject | None, left: Reading, right: Reading
) -> Expr | None:
    """A condition over the columns of the left side, then those of the right side."""
    if condition is None:
        return None
    names = unique_names([*left.schema.names, *right.schema.names])
    schema = pa.schema(list(zip(names, [*left.schema.types, *right.schema.types], strict=True)))
    both = Reading(StreamSource(-1, "", {}, None, schema), (*left.ids, *right.ids))
    return steps.condition("Join", both, condition)


def _computed(table: pa.Table, keyed: Reading) -> pa.Table:
    if not isinstance(keyed.tree, Step):
        return table
    assert isinstance(keyed.tree.operator, ProjectSpec)
    project = keyed.tree.operator.open()
    moment = Moment(0, -1, 0, -1)
    batches = [part for batch in table.to_batches() for part in project.process(batch, moment)]
    return pa.Table.from_batches(batches, schema=keyed.schema)
