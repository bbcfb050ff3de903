"""Makes steps of our tree from Spark's plan nodes, finds their sources, notes what cannot run.

Spark refers to columns by ids, we do by indexes. A `Reading` keeps the ids of its columns, so that
the node above can find them. Ids may repeat, as in `select(x, x)`; then the values are the same.

Sources are numbered as Spark numbers them: by their first occurrence in the analysed plan, from the
sink down and from left to right. Spark treats two relations as one source if they are equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from epochal.connectors.file.file_reader import METADATA, METADATA_FIELDS
from epochal.connectors.file.spark_reader import SPARK_SCHEMA
from epochal.connectors.registry import FILE_SOURCES, SOURCES, source_identity, source_schema
from epochal.continuous.catalyst.expression_reader import (
    ExpressionReader,
    NotInArrow,
    SparkExpressions,
)
from epochal.continuous.catalyst.releases import Planner
from epochal.continuous.catalyst.spark_objects import (
    JavaObject,
    absolute_paths,
    arrow_type_of,
    collation_in,
    items,
    option,
    simple_name,
)
from epochal.continuous.operators.contract import OperatorSpec
from epochal.continuous.operators.expressions.expr import EITHER, Call, Column, Expr, Literal
from epochal.continuous.operators.expressions.spark_calls import SPARK
from epochal.continuous.operators.stateless.row_operators import (
    FilterSpec,
    MomentColumnsSpec,
    ProjectSpec,
    lifted,
)
from epochal.continuous.plan.logical import Node, Step, StreamSource, unique_names
from epochal.errors import OptionError
from epochal.errors.query import Refusal
from epochal.evaluator.spark_classes import texts_of

RELATIONS = ("StreamingRelation", "StreamingRelationV2")
DELAY = "spark.watermarkDelayMs"
SESSION_WINDOW = "spark.sessionWindow"

_IDS = re.compile(r"#\d+L?(-T\d+ms)?|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}, ")

USE_A_FUNCTION = "compute it in a Python UDF, mapInPandas or mapInArrow"
JVM_ONLY = "it runs in the JVM only; write the function in Python"


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node of Spark's plan, and where it runs."""

    depth: int
    text: str
    runs: str


@dataclass(slots=True)
class Findings:
    """What the readers of one plan have found."""

    refusals: list[Refusal] = field(default_factory=list)
    operators: list[PlacedNode] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, operator: str, what: str, instead: str) -> None:
        refusal = Refusal(operator, what, instead)
        if refusal not in self.refusals:
            self.refusals.append(refusal)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    @contextmanager
    def around(self, operator: str, instead: str = USE_A_FUNCTION) -> Iterator[None]:
        """Turn the OptionErrors of other modules into refusals of this operator."""
        try:
            yield
        except OptionError as error:
            self.refuse(operator, str(error).rstrip("."), instead)


@dataclass(frozen=True, slots=True)
class Reading:
    """A part of our tree, and the ids that its columns have in Spark's plan."""

    tree: Node
    ids: tuple[int, ...]

    @property
    def schema(self) -> pa.Schema:
        return self.tree.schema

    @property
    def indexes(self) -> dict[int, int]:
        """The index of each column, by its id."""
        return {id: index for index, id in reversed(list(enumerate(self.ids)))}

    def name_of(self, attribute: JavaObject) -> str:
        return str(self.schema.names[self.indexes[id_of(attribute)]])


def id_of(attribute: JavaObject) -> int:
    return int(attribute.exprId().id())


def ids_of(attributes: Iterable[JavaObject]) -> tuple[int, ...]:
    return tuple(id_of(attribute) for attribute in attributes)


def metadata_of(attribute: JavaObject) -> dict[str, Any]:
    """The metadata of an attribute: whether it is a window, and the delay of its watermark."""
    metadata: dict[str, Any] = json.loads(str(attribute.metadata().json()))
    return metadata


class Steps:
    """Reads expressions, collects what cannot run, and appends steps to a reading."""

    def __init__(self, planner: Planner, findings: Findings) -> None:
        self.planner, self.findings = planner, findings
        self.in_spark = SparkExpressions(planner.session, self._value_of)
        self.observed: set[str] = set()
        """The names under which rows are observed."""

    def schema_of(self, operator: str, attributes: Sequence[JavaObject]) -> pa.Schema:
        """The schema of attributes. All columns are nullable, as in Spark's state."""
        names = unique_names([str(attribute.name()) for attribute in attributes])
        return pa.schema(
            [
                pa.field(name, self.type_of(operator, attribute))
                for name, attribute in zip(names, attributes, strict=True)
            ]
        )

    def output_of(
        self, node: JavaObject, operator: str | None = None
    ) -> tuple[pa.Schema, tuple[int, ...]]:
        """The schema of a plan node's output, and the ids of its columns."""
        attributes = list(items(node.output()))
        return self.schema_of(operator or simple_name(node), attributes), ids_of(attributes)

    def type_of(self, operator: str, expr: JavaObject) -> pa.DataType:
        """The type of an expression's values; null, with a refusal, if Arrow has none."""
        try:
            return arrow_type_of(expr.dataType())
        except OptionError as error:
            self.findings.refuse(operator, f"{_called(expr)}: {error}", "cast the column")
            return pa.null()

    def refuse_collations(self, operator: str, keys: Iterable[JavaObject]) -> None:
        """Refuse keys that are not compared byte by byte, as Spark does for keys of state."""
        for key in keys:
            if collation := collation_in(key.dataType()):
                self.findings.refuse(
                    operator,
                    f"{_called(key)}: keys with the collation {collation} are not supported",
                    "cast them: COLLATE UTF8_BINARY",
                )

    def reader(self, reading: Reading, *, any_cast: bool = False) -> ExpressionReader:
        session, types = self.planner.session, reading.schema.types
        return ExpressionReader(session, reading.indexes, types, any_cast=any_cast)

    def _value_of(self, plan: JavaObject) -> JavaObject:
        self.findings.note("a scalar subquery is evaluated once, when the query starts")
        return self.planner.value_of(plan)

    def expression(
        self, operator: str, reading: Reading, expr: JavaObject, *, volatile: bool = False
    ) -> Expr:
        """Read an expression; a null, with a refusal, if it cannot be evaluated here.

        `volatile` says that the caller can evaluate functions of time and chance.
        """
        try:
            tree = self.in_spark.read(expr, self.reader(reading), reading.indexes)
        except OptionError as error:
            self.findings.refuse(operator, f"{_called(expr)}: {error}", USE_A_FUNCTION)
            return Literal(pa.scalar(None, pa.null()))
        if not volatile and lifted((tree,), len(reading.ids)).calls:
            self.findings.refuse(
                operator,
                f"{_called(expr)}: functions of time and chance are not supported here",
                "compute the value in a column before",
            )
        return tree

    def spark_call(self, operator: str, reading: Reading, expr: JavaObject) -> Expr:
        """The call of an expression that Spark's own code evaluates."""
        self.in_spark.calls += 1
        try:
            return self.in_spark.call(expr, reading.indexes)
        except OptionError as error:
            self.findings.refuse(operator, f"{_called(expr)}: {error}", USE_A_FUNCTION)
            return Literal(pa.scalar(None, pa.null()))

    def condition(self, operator: str, reading: Reading, expr: JavaObject) -> Expr:
        """Read a condition, each part that AND connects on its own.

        Where Spark's own code evaluates a part because of a cast, it has both forms nonetheless,
        since bounds of event times are read from the tree.
        """
        if simple_name(expr) != "And":
            part = self.expression(operator, reading, expr)
            if isinstance(part, Call) and part.function == SPARK:
                with suppress(NotInArrow):
                    tree = self.reader(reading, any_cast=True).read(expr)
                    if not lifted((tree,), 0).calls:
                        return Call(EITHER, (tree, part), pa.bool_())
            return part
        sides = (self.condition(operator, reading, side) for side in (expr.left(), expr.right()))
        return Call("And", tuple(sides), pa.bool_())

    def project(self, operator: str, reading: Reading, columns: JavaObject) -> Reading:
        """Compute the named expressions of a Scala sequence."""
        named = list(items(columns))
        exprs = [self.expression(operator, reading, column, volatile=True) for column in named]
        return self.computed(reading, exprs, self.schema_of(operator, named), ids_of(named))

    def filter(self, operator: str, reading: Reading, condition: JavaObject) -> Reading:
        expr = self.expression(operator, reading, condition, volatile=True)
        widened, (met,) = self.with_moment(reading, [expr])
        filtered = Step(widened.tree, FilterSpec(met), widened.schema)
        if widened is reading:
            return Reading(filtered, reading.ids)
        columns = [Column(index) for index in range(len(reading.ids))]
        return self.computed(Reading(filtered, widened.ids), columns, reading.schema, reading.ids)

    def computed(
        self, reading: Reading, exprs: Sequence[Expr], schema: pa.Schema, ids: tuple[int, ...]
    ) -> Reading:
        """Compute columns from expressions that are read already."""
        reading, columns = self.with_moment(reading, exprs)
        same = tuple(map(Column, range(len(reading.ids))))
        if columns == same and schema.names == reading.schema.names:
            return Reading(reading.tree, ids)
        return self.projected(reading, columns, schema, ids)

    def with_moment(
        self, reading: Reading, exprs: Sequence[Expr]
    ) -> tuple[Reading, tuple[Expr, ...]]:
        """Append the columns of time and chance that expressions need."""
        split = lifted(tuple(exprs), len(reading.ids))
        if not split.calls:
            return reading, split.columns
        spec = MomentColumnsSpec.plan(split.calls, reading.schema)
        ids = (*reading.ids, *(-1 for _ in split.calls))
        return self.step(reading, spec, spec.schema, ids), split.columns

    def projected(
        self, reading: Reading, columns: Sequence[Expr], schema: pa.Schema, ids: tuple[int, ...]
    ) -> Reading:
        """Append a projection. It becomes one with the projection below if nothing is lost."""
        below = reading.tree
        if isinstance(below, Step) and isinstance(below.operator, ProjectSpec):
            joined = _joined(columns, below.operator.columns)
            if joined is not None:
                columns, reading = joined, Reading(below.child, ())
        return self.step(reading, ProjectSpec(tuple(columns), schema), schema, ids)

    def step(
        self, reading: Reading, spec: OperatorSpec, schema: pa.Schema, ids: tuple[int, ...]
    ) -> Reading:
        return Reading(Step(reading.tree, spec, schema), ids)

    def event_time(
        self, reading: Reading, attributes: Iterable[JavaObject]
    ) -> tuple[str | None, int]:
        """The first column that has a watermark, and its delay in milliseconds."""
        for attribute in attributes:
            marks = metadata_of(attribute)
            if DELAY in marks:
                return reading.name_of(attribute), int(marks[DELAY])
        return None, 0


def _joined(columns: Sequence[Expr], below: Sequence[Expr]) -> list[Expr] | None:
    """The columns over what `below` is computed from; None if that would repeat work.

    One of the two must only select columns.
    """
    if all(isinstance(column, Column) for column in columns):
        return [below[column.index] for column in columns if isinstance(column, Column)]
    if all(isinstance(column, Column) for column in below):
        return [_selected(column, below) for column in columns]
    return None


def _selected(expr: Expr, below: Sequence[Expr]) -> Expr:
    match expr:
        case Column(index):
            return below[index]
        case Call(arguments=arguments):
            return replace(expr, arguments=tuple(_selected(part, below) for part in arguments))
    return expr


def without_ids(text: str) -> str:
    """A text of Spark's without the ids of columns and watermarks, which differ by run."""
    return _IDS.sub("", text)


def _called(expr: JavaObject) -> str:
    """How to name an expression in a message: by its column, or by its text."""
    if simple_name(expr) in ("Alias", "AttributeReference"):
        return f"column {str(expr.name())!r}"
    text = without_ids(str(expr.toString()))
    return text if len(text) <= 80 else f"{text[:77]}..."


class PlanSources:
    """The sources of one analysed plan."""

    def __init__(self, steps: Steps, analyzed: JavaObject) -> None:
        self._steps = steps
        self._sources: list[tuple[JavaObject, StreamSource]] = []
        self.occurrences = tuple(
            self._register(leaf).number
            for leaf in items(analyzed.collectLeaves())
            if simple_name(leaf) in RELATIONS
        )

    @property
    def all(self) -> tuple[StreamSource, ...]:
        """Each source once, in the order of their numbers."""
        return tuple(source for _, source in self._sources)

    def read(self, relation: JavaObject) -> Reading:
        """The source of a leaf of the optimised plan."""
        return Reading(self._register(relation), ids_of(items(relation.output())))

    def _register(self, relation: JavaObject) -> StreamSource:
        for earlier, source in self._sources:
            if earlier.equals(relation):
                return source
        for earlier, source in self._sources:  # the optimiser may have renamed the columns
            if earlier.canonicalized().equals(relation.canonicalized()):
                return source
        new = self._source(len(self._sources), relation)
        self._sources.append((relation, new))
        return new

    def _source(self, number: int, relation: JavaObject) -> StreamSource:
        second = simple_name(relation) == "StreamingRelationV2"
        format, options = _second(relation) if second else self._first(relation)
        columns = list(items(relation.output()))
        schema = self._steps.schema_of(format, columns)
        for index, column in enumerate(columns):
            if METADATA.decode() in column.metadata().json():
                marked = schema.field(index).with_metadata({METADATA: b"true"})
                schema = schema.set(index, marked)
                self._check_metadata(format, [field.name for field in marked.type])
        user_schema = None
        if format.lower() in FILE_SOURCES:
            user_schema = schema.with_metadata({SPARK_SCHEMA: str(relation.schema().json())})
        self._check(format, options, user_schema, schema)
        described = _described(format, options)
        options = absolute_paths(options)
        spark = self._steps.planner.session
        return StreamSource(number, format, options, user_schema, schema, described, spark)

    def _check(
        self, format: str, options: dict[str, str], user_schema: pa.Schema | None, schema: pa.Schema
    ) -> None:
        findings = self._steps.findings
        if format.lower() not in SOURCES or format.lower() == "memory":
            formats = ", ".join(sorted(set(SOURCES) - {"memory"}))
            findings.refuse(
                f"source {format}",
                "there is no connector for this format",
                f"read it with one of these: {formats}; or let Spark write it to Kafka or files",
            )
            return
        with findings.around(f"source {format}", "change the options of the source"):
            ours = source_schema(format, options, user_schema)
            if ours.names != schema.names:
                findings.refuse(
                    f"source {format}",
                    f"its columns are ({_columns(schema)}) in Spark, but ({_columns(ours)}) here",
                    "change the schema of the source",
                )
            if source_identity(format, options) is not None:
                findings.refuse(
                    f"source {format}",
                    "it may deliver rows again, and a DataFrame has no operator that drops them",
                    "leave out delivery=exactly-once, or use epochal.read_stream",
                )

    def _check_metadata(self, format: str, names: list[str]) -> None:
        unknown = [name for name in names if name not in METADATA_FIELDS]
        if unknown:
            self._steps.findings.refuse(
                f"source {format}",
                f"_metadata has the fields {', '.join(unknown)}, whose values are not known here",
                "leave out _metadata",
            )
        self._steps.findings.note(
            "_metadata: a file is read as one block, also if Spark would split it"
        )

    def _first(self, relation: JavaObject) -> tuple[str, dict[str, str]]:
        """Format and options of a relation of Spark's first source API: files."""
        source = relation.dataSource()
        options = texts_of(source.options())
        table = option(source.catalogTable())
        if table is not None and not any(key.lower() == "path" for key in options):
            options["path"] = str(table.location().toString())
        name = str(source.className())
        return name.rpartition(".")[2] if "." in name else name, options


def _second(relation: JavaObject) -> tuple[str, dict[str, str]]:
    """Format and options of a relation of Spark's second source API: everything but files."""
    own = relation.extraOptions().asCaseSensitiveMap()
    options = {str(key): str(own[key]) for key in own}
    if relation.catalog().isDefined():
        return f"table {relation.sourceName()}", options
    return str(relation.sourceName()), options


def _described(format: str, options: dict[str, str]) -> str:
    lower = {key.lower(): value for key, value in options.items()}
    for key in ("path", "subscribe", "subscribepattern", "assign", "subscription"):
        if key in lower:
            return f"{format}[{lower[key]}]"
    return format


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
