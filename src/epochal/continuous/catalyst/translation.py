"""Translates a streaming DataFrame: the tree of our operators, or all reasons why it cannot run.

    analysed plan   Spark's own check; sources and their numbers
    optimised plan  the tree, node by node
    physical plan   ids and keys of stateful operators

Stateful nodes are numbered from the sink down and from left to right, as Spark numbers them. Their
physical operators, from a dry run of Spark's planner, are found by that number.

Nothing is started and nothing is written. Spark runs a job only for the rows of static branches and
scalar subqueries, which are collected once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from epochal.continuous.catalyst.join_nodes import read_static_join, read_stream_join
from epochal.continuous.catalyst.plan_steps import (
    DELAY,
    JVM_ONLY,
    RELATIONS,
    USE_A_FUNCTION,
    Findings,
    PlacedNode,
    PlanSources,
    Reading,
    Steps,
    id_of,
    metadata_of,
    without_ids,
)
from epochal.continuous.catalyst.python_nodes import read_functions, read_map, read_processor
from epochal.continuous.catalyst.releases import Planner, stateful_operators
from epochal.continuous.catalyst.spark_objects import JavaObject, items, simple_name
from epochal.continuous.catalyst.stateful_nodes import (
    aggregation_above,
    check_layout,
    placeholder,
    read_aggregate,
    read_deduplicate,
    read_limit,
    read_observation,
)
from epochal.continuous.operators.expressions.expr import Column, Literal
from epochal.continuous.operators.expressions.spark_calls import SPARK
from epochal.continuous.operators.stateless.generate import GENERATORS, GenerateSpec
from epochal.continuous.operators.stateless.row_operators import ExpandSpec, FilterSpec, ProjectSpec
from epochal.continuous.plan.logical import (
    Node,
    Stateful,
    Step,
    StreamSource,
    Union,
    Watermarked,
    preorder,
    unique_names,
)
from epochal.errors import OptionError, UnsupportedPlanError

_SAME_ROWS = {
    "SubqueryAlias": "has no effect here",
    "View": "has no effect here",
    "ResolvedHint": "has no effect here",
    "UnresolvedHint": "has no effect here",
    "Repartition": "has no effect here: rows are exchanged by key before a stateful operator",
    "RepartitionByExpression": "has no effect here: rows are exchanged by key where necessary",
    "RebalancePartitions": "has no effect here",
    "LocalLimit": "is part of the limit above it",
    "UpdateEventTimeWatermarkColumn": "has no effect on rows",
}
"""Nodes whose rows are those of their only child, and what to say about them."""

_STATEFUL = {
    "Aggregate": ("StateStoreSaveExec", "SessionWindowStateStoreSaveExec"),
    "Deduplicate": ("StreamingDeduplicateExec",),
    "DeduplicateWithinWatermark": ("StreamingDeduplicateWithinWatermarkExec",),
    "GlobalLimit": ("StreamingGlobalLimitExec",),
    "Join": ("StreamingSymmetricHashJoinExec",),
    "TransformWithStateInPySpark": ("TransformWithStateInPySparkExec",),
    "TransformWithStateInPandas": ("TransformWithStateInPandasExec",),
}
"""Stateful nodes, and the physical operators that keep their state."""

_IN_JVM = (
    *("MapPartitions", "MapElements", "TypedFilter", "DeserializeToObject"),
    *("SerializeFromObject", "AppendColumns", "MapGroups"),
    *("FlatMapGroupsWithState", "TransformWithState"),
)
_REFUSED = {
    **dict.fromkeys(_IN_JVM, JVM_ONLY),
    "FlatMapGroupsInPandasWithState": "use transformWithState or transformWithStateInPandas",
    "Sort": "sort the rows where they are read",
    "Window": "group by a window of event time",
}

_WORDS_OF_SPARK = {
    "Sort": "Sorting is not supported",
    "Window": "NON_TIME_WINDOW_NOT_SUPPORTED_IN_STREAMING",
}
"""How Spark itself refuses these operators. Once is enough."""

IN_TASKS = "runs in the query's tasks"
IN_SPARK = "runs in the query's tasks, in Spark's own code"


@dataclass(frozen=True, slots=True)
class Translation:
    """A DataFrame as our engine runs it."""

    tree: Node
    occurrences: tuple[int, ...]
    """The number of the source at each leaf of the analysed plan. Spark's offset log has a line for
    each of them."""
    needs_evaluator: bool = False
    """Whether Spark's own code evaluates a part of it, beside the tasks."""


def read_plan(
    df: DataFrame,
    *,
    output_mode: str = "append",
    pinned: Mapping[str, str] | None = None,
    runs_jobs: bool = True,
) -> Translation:
    """Translate a DataFrame; UnsupportedPlanError with all refusals if it cannot run.

    `pinned` are the settings in the offset log of the checkpoint, which decide the layout of its
    state; None for a new checkpoint. Without `runs_jobs` static branches are empty, so the result
    shows the query but must not be run.
    """
    findings = Findings()
    translation = _read(df, output_mode, pinned, findings, runs_jobs=runs_jobs)
    if translation is None or findings.refusals:
        raise UnsupportedPlanError(findings.refusals)
    return translation


def explain_plan(df: DataFrame, *, output_mode: str = "append") -> str:
    """Say where each operator of a DataFrame runs, and list all that cannot run."""
    findings = Findings()
    _read(df, output_mode, None, findings, runs_jobs=False)
    lines = [f"{'  ' * node.depth}{node.text}: {node.runs}" for node in findings.operators]
    if findings.notes:
        lines += ["", "Notes:", *(f"  - {note}" for note in findings.notes)]
    if findings.refusals:
        return "\n".join([str(UnsupportedPlanError(findings.refusals)), "", *lines])
    return "\n".join(["The DataFrame can run.", "", *lines])


def _read(
    df: DataFrame,
    output_mode: str,
    pinned: Mapping[str, str] | None,
    findings: Findings,
    *,
    runs_jobs: bool,
) -> Translation | None:
    frame: Any = df
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        findings.refuse(
            "Spark Connect",
            "the DataFrame is of a Spark Connect session, whose plans are on the server",
            "use a classic session: SparkSession.builder.master(...)",
        )
        return None
    analyzed = frame._jdf.queryExecution().analyzed()
    planner = Planner(df.sparkSession, output_mode=output_mode, pinned=pinned, runs_jobs=runs_jobs)
    refused = planner.check(analyzed)
    if refused is not None:
        findings.refuse("Spark", refused, "change the query so that Spark accepts it")
        if not analyzed.isStreaming():
            return None
    steps = Steps(planner, findings)
    with findings.around("input_file_name", "select it, or _metadata.file_path, before"):
        analyzed = planner.with_files(analyzed)
    sources = PlanSources(steps, analyzed)
    optimized = planner.optimized(analyzed)
    physical = planner.physical(optimized) if refused is None else None
    reading = PlanReader(steps, sources, physical, output_mode, refused).read(optimized)
    return Translation(
        tree=_renamed(reading.tree, df.columns),
        occurrences=sources.occurrences,
        needs_evaluator=steps.in_spark.calls > 0,
    )


def _renamed(tree: Node, names: list[str]) -> Node:
    """The tree, whose columns have the names that the user gave them."""
    wanted = unique_names(names)
    if tree.schema.names == wanted:
        return tree
    schema = pa.schema(
        [field.with_name(name) for field, name in zip(tree.schema, wanted, strict=True)]
    )
    columns = tuple(Column(index) for index in range(len(wanted)))
    return Step(tree, ProjectSpec(columns, schema), schema)


class PlanReader:
    """Reads one plan."""

    def __init__(
        self,
        steps: Steps,
        sources: PlanSources,
        physical: JavaObject | None,
        output_mode: str,
        refused: str | None = None,
    ) -> None:
        """`refused` is what Spark itself says against the plan."""
        self._refused = refused or ""
        self._steps, self._sources = steps, sources
        self._output_mode = output_mode.lower()
        self._physical = physical
        self._operators = [] if physical is None else stateful_operators(physical)
        self._next_id = 0

    def read(self, node: JavaObject, depth: int = 0) -> Reading:
        """Read a node and everything below it. What cannot run leaves a placeholder."""
        name, findings = simple_name(node), self._steps.findings
        operator_id = -1
        if self._is_stateful(name, node):
            operator_id, self._next_id = self._next_id, self._next_id + 1
        place = len(findings.operators)
        children = [
            self.read(child, depth + 1) if child.isStreaming() else self._skip(child, depth + 1)
            for child in items(node.children())
        ]
        before, calls = len(findings.refusals), self._steps.in_spark.calls
        try:
            reading = self._node(name, node, children, operator_id)
            if operator_id >= 0 and len(findings.refusals) == before and self._physical is not None:
                stage = next(
                    tree_node
                    for tree_node in preorder(reading.tree)
                    if isinstance(tree_node, Stateful) and tree_node.operator_id == operator_id
                )
                check_layout(self._steps, stage.spec, self._operators[operator_id])
        except OptionError as error:
            findings.refuse(name, str(error).rstrip("."), USE_A_FUNCTION)
            reading = placeholder(self._steps, node)
        here = IN_SPARK if self._steps.in_spark.calls > calls else IN_TASKS
        runs = _SAME_ROWS.get(name, here)
        if len(findings.refusals) > before or self._is_refused(name):
            runs = "cannot run"
        elif operator_id >= 0:
            runs = f"{here}, after an exchange by key; its state is in state/{operator_id}"
        text = _text(node)
        if isinstance(reading.tree, StreamSource) and name in RELATIONS:
            text, runs = f"Source {reading.tree.number}", reading.tree.description
        findings.operators.insert(place, PlacedNode(depth, text, runs))
        return reading

    def _skip(self, node: JavaObject, depth: int) -> Reading | None:
        """A branch without streams: the operator above it collects its rows, if there are any."""
        if simple_name(node) == "LocalRelation" and not node.data().size():
            return None
        runs = "runs in Spark, once, when the query starts"
        self._steps.findings.operators.append(PlacedNode(depth, _text(node), runs))
        return None

    def _is_stateful(self, name: str, node: JavaObject) -> bool:
        if name == "Join":
            return all(child.isStreaming() for child in items(node.children()))
        if name == "GlobalLimit":
            return self._output_mode == "append"
        return name in _STATEFUL

    def _is_refused(self, name: str) -> bool:
        return name in _WORDS_OF_SPARK and _WORDS_OF_SPARK[name] in self._refused

    def _node(
        self, name: str, node: JavaObject, children: list[Reading | None], operator_id: int
    ) -> Reading:
        if name in RELATIONS:
            return self._sources.read(node)
        if name == "LocalRelation":
            return self._nothing(node)
        if name in _SAME_ROWS:
            return _only(children)
        if name == "Join" and operator_id < 0:
            left, right = children
            return read_static_join(self._steps, node, left, right)
        if operator_id >= 0:
            return self._stateful(name, node, children, operator_id)
        if (name not in _READERS and name != "Union") or None in children:
            instead = _REFUSED.get(name, USE_A_FUNCTION)
            if not self._is_refused(name):
                self._steps.findings.refuse(name, "this operator is not supported", instead)
            return placeholder(self._steps, node)
        if name == "Union":
            return _union(self._steps, node, [child for child in children if child])
        return _READERS[name](self._steps, node, _only(children))

    def _stateful(
        self, name: str, node: JavaObject, children: list[Reading | None], operator_id: int
    ) -> Reading:
        steps, child = self._steps, _only(children[:1])
        if self._physical is None:  # Spark refuses the query
            return placeholder(steps, node)
        physical = self._operator(name, operator_id)
        match name:
            case "Join":
                right = _only(children[1:])
                return read_stream_join(steps, node, child, right, physical, operator_id)
            case "Aggregate":
                pair = (physical, aggregation_above(self._physical, physical))
                return read_aggregate(steps, node, child, pair, operator_id, self._output_mode)
            case "GlobalLimit":
                return read_limit(steps, node, child, operator_id)
            case "Deduplicate" | "DeduplicateWithinWatermark":
                within = name == "DeduplicateWithinWatermark"
                return read_deduplicate(steps, node, child, operator_id, within=within)
            case _:
                return read_processor(steps, node, child, operator_id)

    def _operator(self, name: str, operator_id: int) -> JavaObject:
        operator = self._operators[operator_id] if operator_id < len(self._operators) else None
        if operator is None or simple_name(operator) not in _STATEFUL[name]:
            raise OptionError(
                f"Spark plans {simple_name(operator) if operator else 'nothing'} as stateful "
                f"operator {operator_id}"
            )
        return operator

    def _nothing(self, node: JavaObject) -> Reading:
        """The optimiser found that a branch has no rows: keep a source, and drop all rows."""
        schema, ids = self._steps.output_of(node)
        source = self._sources.all[0]
        none = Step(source, FilterSpec(Literal(pa.scalar(False))), source.schema)
        nulls = [Literal(pa.scalar(None, field.type)) for field in schema]
        reading = Reading(none, tuple(-1 for _ in source.schema))
        return self._steps.computed(reading, nulls, schema, ids)


def _only(children: Sequence[Reading | None]) -> Reading:
    (child,) = children
    assert child is not None, "a node of a stream has a child that is not one"
    return child


def _union(steps: Steps, node: JavaObject, children: list[Reading]) -> Reading:
    schema, ids = steps.output_of(node)
    trees = []
    for child in children:
        same = list(map(Column, range(len(ids))))
        fits = child.schema.names == schema.names and child.schema.types == schema.types
        trees.append(child.tree if fits else steps.projected(child, same, schema, ids).tree)
    return Reading(Union(tuple(trees), schema), ids)


def _expand(steps: Steps, node: JavaObject, child: Reading) -> Reading:
    schema, ids = steps.output_of(node)
    projections = tuple(
        tuple(steps.expression("Expand", child, expr) for expr in items(projection))
        for projection in items(node.projections())
    )
    return steps.step(child, ExpandSpec(projections, schema), schema, ids)


def _generate(steps: Steps, node: JavaObject, child: Reading) -> Reading:
    generator = node.generator()
    name = simple_name(generator)
    dropped = set(items(node.unrequiredChildIndex()))
    rest = tuple(index for index in range(len(child.ids)) if index not in dropped)
    schema, ids = steps.output_of(node)
    if name in GENERATORS:
        arguments = [
            steps.expression("Generate", child, expr, volatile=True)
            for expr in items(generator.children())
        ]
    else:
        name, arguments = SPARK, [steps.spark_call("Generate", child, generator)]
    child, lifted = steps.with_moment(child, arguments)
    spec = GenerateSpec(name, tuple(lifted), rest, bool(node.outer()), schema)
    return steps.step(child, spec, schema, ids)


def _watermark(steps: Steps, node: JavaObject, child: Reading) -> Reading:
    column = child.name_of(node.eventTime())
    if not pa.types.is_timestamp(child.schema.field(column).type):
        steps.findings.refuse(
            "EventTimeWatermark",
            f"the column {column!r} with event time is not a timestamp",
            "call withWatermark before the window is made",
        )
        return child
    wanted = id_of(node.eventTime())
    marked = next(attribute for attribute in items(node.output()) if id_of(attribute) == wanted)
    delay_ms = int(metadata_of(marked)[DELAY])
    node_id = str(node.nodeId().toString())
    return Reading(Watermarked(child.tree, column, delay_ms, node_id), child.ids)


_Reader: TypeAlias = Callable[[Steps, JavaObject, Reading], Reading]

_READERS: dict[str, _Reader] = {
    "Project": lambda steps, node, child: steps.project("Project", child, node.projectList()),
    "Filter": lambda steps, node, child: steps.filter("Filter", child, node.condition()),
    "Expand": _expand,
    "Generate": _generate,
    "EventTimeWatermark": _watermark,
    "CollectMetrics": read_observation,
    "ArrowEvalPython": read_functions,
    "BatchEvalPython": read_functions,
    "MapInPandas": read_map,
    "PythonMapInArrow": read_map,
    "MapInArrow": read_map,
}


def _text(node: JavaObject) -> str:
    text = without_ids(str(node.simpleString(25)).lstrip("~").replace("\n", " "))
    return text if len(text) <= 110 else f"{text[:107]}..."
