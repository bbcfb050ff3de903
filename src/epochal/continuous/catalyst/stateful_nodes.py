"""Makes stateful operators from plan nodes: aggregation, deduplication, limits.

The logical node says what is computed. The physical operator says how Spark stores it: which
expressions are the key, and which distinct aggregates there are, in which order. Both refer to the
same column ids, because one was planned from the other.

The state of a query must fit both engines. If a layout differs by a type or the order of columns,
`check_layout` refuses the query, before anything is written. Spark does not compare names, and
neither do we.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.continuous.catalyst.plan_steps import (
    DELAY,
    SESSION_WINDOW,
    Reading,
    Steps,
    ids_of,
    metadata_of,
    without_ids,
)
from epochal.continuous.catalyst.releases import preorder
from epochal.continuous.catalyst.spark_objects import JavaObject, items, option, simple_name
from epochal.continuous.operators.aggregation.aggregate import AggregateSpec
from epochal.continuous.operators.aggregation.functions import FUNCTIONS, AggregateCall, fold_of
from epochal.continuous.operators.aggregation.observe import ObserveSpec, is_reportable
from epochal.continuous.operators.aggregation.spark_buffers import SparkAggregates
from epochal.continuous.operators.contract import StatefulSpec
from epochal.continuous.operators.deduplication import DropDuplicatesSpec
from epochal.continuous.operators.expressions.expr import Expr, Literal
from epochal.continuous.operators.expressions.spark_calls import struct_json
from epochal.continuous.operators.global_limit import GlobalLimitSpec
from epochal.continuous.operators.stateless.row_operators import ProjectSpec
from epochal.continuous.plan.logical import Stateful, StreamSource, unique_names
from epochal.errors import OptionError
from epochal.state.rows.types import Layout, StructType, parse_schema

_SPARKS = re.compile(" collate |interval (year|month)")
"""In the names of types that our aggregates do not know: Arrow has plain numbers for months."""

_NOT_FIELDS = ("mutableAggBufferOffset", "inputAggBufferOffset")

Types: TypeAlias = tuple[Any, ...]
"""The types of the columns of a key or a value, without names."""

_LONG, _BOOLEAN, _VOID, _TIMESTAMP = '"long"', '"boolean"', '"void"', '"timestamp"'


def read_aggregate(
    steps: Steps,
    node: JavaObject,
    child: Reading,
    physical: tuple[JavaObject, JavaObject],
    operator_id: int,
    output_mode: str,
) -> Reading:
    """An aggregation: project keys and arguments, aggregate, project the results.

    `physical` is the operator that saves the state, and the aggregation above it.
    """
    save, last = physical
    session = simple_name(save) == "SessionWindowStateStoreSaveExec"
    conf = f"spark.sql.streaming.{'sessionWindow' if session else 'aggregation'}.stateFormatVersion"
    if not known_format(steps, "Aggregate", save, 1 if session else 2, conf):
        return placeholder(steps, node)
    keys = list(items(last.groupingExpressions()))
    steps.refuse_collations("Aggregate", keys)
    values = [
        steps.expression("Aggregate", child, steps.planner.normalized(expr), volatile=True)
        for expr in items(node.groupingExpressions())
    ]
    arguments = _Columns(
        unique_names([without_ids(str(key.name())) for key in keys]),
        values,
        [steps.type_of("Aggregate", key) for key in keys],
    )
    logical = _aggregates_in(node.aggregateExpressions())
    asked = [logical[int(expr.resultId().id())] for expr in items(last.aggregateExpressions())]
    attributes = list(items(last.aggregateAttributes()))
    names = unique_names([*arguments.names, *(f"_aggregate{n}" for n in range(len(attributes)))])
    calls, spark = _calls(steps, child, asked, names[len(keys) :], arguments)
    before = steps.computed(
        child, arguments.exprs, arguments.schema, tuple(-1 for _ in arguments.names)
    )
    marked = [metadata_of(key) for key in keys]
    spec = AggregateSpec(
        key=tuple(arguments.names[: len(keys)]),
        aggregates=tuple(calls),
        input_schema=arguments.schema,
        output_mode=output_mode,
        event_time=_first(arguments.names, [DELAY in marks for marks in marked]),
        session=_first(arguments.names, [SESSION_WINDOW in marks for marks in marked]),
        per_epoch=True,
        spark=spark,
    )
    tree = Stateful((before.tree,), operator_id, spec)
    aggregated = Reading(tree, (*ids_of(keys), *ids_of(attributes)))
    return steps.project("Aggregate", aggregated, last.resultExpressions())


def read_observation(steps: Steps, node: JavaObject, child: Reading) -> Reading:
    """`observe`: aggregates for progress reports.

    If a name occurs again, as in a union of a stream with itself, it is the same node with the same
    rows: Spark reports those of one place.
    """
    metrics = list(items(node.metrics()))
    if str(node.name()) in steps.observed:
        return child
    steps.observed.add(str(node.name()))
    asked = list(_aggregates_in(node.metrics()).values())
    columns = _Columns(["_all"], [Literal(pa.scalar(0))], [pa.int64()])
    names = [f"_aggregate{number}" for number in range(len(asked))]
    calls, spark = _calls(steps, child, asked, names, columns)
    output = steps.schema_of("CollectMetrics", metrics)
    unknown = [field.name for field in output if not is_reportable(field.type)]
    if unknown or not calls:
        steps.findings.refuse(
            "CollectMetrics",
            f"reports cannot have the metrics {', '.join(unknown or output.names)}",
            "observe aggregates that are numbers, texts or times, or cast them",
        )
        return child
    kinds = pa.schema([(call.alias, call.type) for call in calls])
    ids = tuple(int(aggregate.resultId().id()) for aggregate in asked)
    aggregated = Reading(StreamSource(-1, "", {}, None, kinds), ids)
    results = tuple(steps.expression("CollectMetrics", aggregated, metric) for metric in metrics)
    spec = ObserveSpec(
        str(node.name()),
        ProjectSpec(tuple(columns.exprs), columns.schema),
        tuple(calls),
        ProjectSpec(results, output),
        str(steps.planner.session.conf.get("spark.sql.session.timeZone")),
        spark,
    )
    return steps.step(child, spec, child.schema, child.ids)


def _calls(
    steps: Steps,
    child: Reading,
    asked: Sequence[JavaObject],
    names: Sequence[str],
    columns: _Columns,
) -> tuple[list[AggregateCall], SparkAggregates | None]:
    """The aggregates of an operator, and how Spark's code computes them if our own cannot.

    What they need is added to `columns`.
    """
    width, before = len(columns.names), len(steps.findings.refusals)
    try:
        calls = [
            _call(steps, child, expr, name, columns)
            for expr, name in zip(asked, names, strict=True)
        ]
        if all(fold_of(call, columns.schema).arrow is not None for call in calls):
            return calls, None
    except OptionError:
        pass  # a function or a type that only Spark knows
    columns.cut(width)
    del steps.findings.refusals[before:]
    expressions, inputs = steps.in_spark.aggregates(list(asked), child.indexes)
    functions = [expr.aggregateFunction() for expr in asked]
    fields = [
        (str(attribute.name()), str(attribute.dataType().json()))
        for function in functions
        for attribute in items(function.aggBufferAttributes())
    ]
    spark = SparkAggregates(
        expressions=expressions,
        columns=tuple(columns.add(expr, kind) for expr, kind in inputs),
        fields=_struct(fields).fields,
        results_json=struct_json([str(function.dataType().json()) for function in functions]),
        session=steps.in_spark.session,
    )
    calls = [
        AggregateCall(simple_name(function), (), name, steps.type_of("Aggregate", function))
        for function, name in zip(functions, names, strict=True)
    ]
    return calls, spark


def aggregation_above(physical: JavaObject, save: JavaObject) -> JavaObject:
    """The aggregation that computes the results from the state that `save` passes on."""
    last = None
    for node in preorder(physical):
        if simple_name(node).endswith("AggregateExec"):
            last = node
        if node.equals(save):
            break
    assert last is not None, "a StateStoreSave without an aggregation above it"
    return last


class _Columns:
    """The columns that an aggregation needs: its keys, then arguments and filters, each once."""

    def __init__(
        self, names: Sequence[str], exprs: Sequence[Expr], types: Sequence[pa.DataType]
    ) -> None:
        self.names, self.exprs, self.types = list(names), list(exprs), list(types)
        self._keys = len(self.names)

    def add(self, expr: Expr, kind: pa.DataType) -> str:
        """The name of a column with this value."""
        for number in range(self._keys, len(self.exprs)):
            if self.exprs[number] == expr:
                return self.names[number]
        name = unique_names([*self.names, f"_argument{len(self.names) - self._keys}"])[-1]
        self.names.append(name)
        self.exprs.append(expr)
        self.types.append(kind)
        return name

    def cut(self, count: int) -> None:
        """Keep only the first columns."""
        for column in (self.names, self.exprs, self.types):
            del column[count:]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(zip(self.names, self.types, strict=True)))


def _call(
    steps: Steps, child: Reading, expr: JavaObject, alias: str, columns: _Columns
) -> AggregateCall:
    function, condition = expr.aggregateFunction(), option(expr.filter())
    children = list(items(function.children()))
    kinds = [str(part.dataType().catalogString()) for part in children]
    if simple_name(function) not in FUNCTIONS or any(_SPARKS.search(kind) for kind in kinds):
        raise OptionError(f"{function.prettyName()} is not a function of ours")
    mode, fields = steps.reader(child).scalar_fields(function)
    if simple_name(function) == "Count" and all(
        simple_name(part) == "Literal" and part.value() is not None for part in children
    ):
        children = []  # count(1) and count(*): every row counts
    arguments = tuple(
        columns.add(
            steps.expression("Aggregate", child, part, volatile=True),
            steps.type_of("Aggregate", part),
        )
        for part in children
    )
    filter_name = None
    if condition is not None:
        filter_name = columns.add(
            steps.expression("Aggregate", child, condition, volatile=True), pa.bool_()
        )
    return AggregateCall(
        function=simple_name(function),
        arguments=arguments,
        alias=alias,
        type=steps.type_of("Aggregate", expr),
        filter=filter_name,
        mode=mode,
        extra={key: value for key, value in fields.items() if key not in _NOT_FIELDS},
    )


def _aggregates_in(exprs: JavaObject) -> dict[int, JavaObject]:
    """The aggregate expressions in some expressions, by the ids of their results."""
    return {
        int(node.resultId().id()): node
        for top in items(exprs)
        for node in preorder(top)
        if simple_name(node) == "AggregateExpression"
    }


def read_deduplicate(
    steps: Steps, node: JavaObject, child: Reading, operator_id: int, *, within: bool
) -> Reading:
    """`dropDuplicates` and `dropDuplicatesWithinWatermark`."""
    name = simple_name(node)
    steps.refuse_collations(name, items(node.keys()))
    event_time, delay_ms = steps.event_time(child, items(node.child().output()))
    if within and event_time and pa.types.is_struct(child.schema.field(event_time).type):
        steps.findings.refuse(
            name,
            f"the column {event_time!r}, which has the watermark, is a window",
            "keep only columns of the window, or group by the columns instead",
        )
        return placeholder(steps, node)
    spec = DropDuplicatesSpec(
        key=tuple(child.name_of(key) for key in items(node.keys())),
        output_schema=child.schema,
        event_time=event_time,
        delay_ms=delay_ms,
        within_watermark=within,
    )
    return Reading(Stateful((child.tree,), operator_id, spec), child.ids)


def placeholder(steps: Steps, node: JavaObject) -> Reading:
    """Stands for a node that cannot run, so that the nodes above it can be read."""
    schema, ids = steps.output_of(node)
    return Reading(StreamSource(-1, "", {}, None, schema), ids)


def known_format(steps: Steps, operator: str, physical: JavaObject, wanted: int, conf: str) -> bool:
    """Whether the state of an operator has a format that we can read; a refusal if not."""
    version = int(physical.stateFormatVersion())
    if version != wanted:
        steps.findings.refuse(
            operator,
            f"its state has format {version} ({conf}), but only {wanted} is supported",
            "start from a new checkpoint",
        )
    return version == wanted


def _first(names: Sequence[str], marks: Sequence[bool]) -> str | None:
    return next((name for name, mark in zip(names, marks, strict=False) if mark), None)


def read_limit(steps: Steps, node: JavaObject, child: Reading, operator_id: int) -> Reading:
    """`limit`: the first rows of the whole stream."""
    expr = node.limitExpr()
    if simple_name(expr) != "Literal":
        steps.findings.refuse("GlobalLimit", "the limit is not a number", "use a number")
        return placeholder(steps, node)
    spec = GlobalLimitSpec(int(expr.value()), child.schema)
    return Reading(Stateful((child.tree,), operator_id, spec), child.ids)


def check_layout(steps: Steps, spec: StatefulSpec, physical: JavaObject) -> None:
    """Refuse an operator whose state would differ from Spark's."""
    theirs = _spark_layout(steps, physical)
    if theirs is None:
        return
    ours = {store.name: (_plain(store.key), _plain(store.value)) for store in spec.stores}
    if (str(physical.shortName()), theirs) == (spec.name, ours):
        return
    steps.findings.refuse(
        simple_name(physical).removesuffix("Exec"),
        f"its state would be {spec.name} {ours} here, but {physical.shortName()} {theirs} in Spark",
        "report this query; Spark itself can run it",
    )


def _spark_layout(steps: Steps, physical: JavaObject) -> dict[str, tuple[Types, Types]] | None:
    """The types of key and value in each store of a physical operator; None if not known."""
    match simple_name(physical):
        case "StateStoreSaveExec":
            value = _plain(parse_schema(str(steps.planner.aggregation_value(physical).json())))
            return {"default": (_types(physical.keyExpressions()), value)}
        case "SessionWindowStateStoreSaveExec":
            key = _types(physical.keyWithoutSessionExpressions(), _TIMESTAMP)
            return {"default": (key, _types(physical.child().output()))}
        case "StreamingDeduplicateExec":
            return {"default": (_types(physical.keyExpressions()), _types((), _VOID))}
        case "StreamingDeduplicateWithinWatermarkExec":
            return {"default": (_types(physical.keyExpressions()), _types((), _LONG))}
        case "StreamingGlobalLimitExec":
            return {"default": (_types((), _VOID), _types((), _LONG))}
        case "StreamingSymmetricHashJoinExec":
            layouts = {}
            for side, keys, child in (
                ("left", physical.leftKeys(), physical.left()),
                ("right", physical.rightKeys(), physical.right()),
            ):
                layouts[f"{side}-keyToNumValues"] = (_types(keys), _types((), _LONG))
                value = _types(child.output(), _BOOLEAN)
                layouts[f"{side}-keyWithIndexToValue"] = (_types(keys, _LONG), value)
            return layouts
    return None


def _types(expressions: JavaObject | tuple[()], *more: str) -> Types:
    texts: Iterable[str] = (
        [] if expressions == () else [str(expr.dataType().json()) for expr in items(expressions)]
    )
    return _plain(_struct((f"c{number}", text) for number, text in enumerate([*texts, *more])))


def _struct(types: Iterable[tuple[str, str]]) -> StructType:
    """A struct of fields with these names and types, which are Spark's JSON."""
    fields = ", ".join(
        f'{{"name": {json.dumps(name)}, "type": {kind}, "nullable": true, "metadata": {{}}}}'
        for name, kind in types
    )
    return parse_schema(f'{{"type": "struct", "fields": [{fields}]}}')


def _plain(schema: StructType) -> Types:
    return tuple(_unnamed(child) for child in schema.layout.children)


def _unnamed(layout: Layout) -> Any:
    children = tuple(_unnamed(child) for child in layout.children)
    name = layout.kind.name.lower()
    if layout.precision:
        return f"{name}({layout.precision},{layout.scale})"
    return (name, *children) if children else name
