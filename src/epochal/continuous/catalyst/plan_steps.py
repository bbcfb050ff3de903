"""Makes steps of our tree from the expressions of Spark's plan nodes, and notes what cannot run.

Spark refers to columns by ids, we do by indexes. A `Reading` keeps the ids of its columns, so that
the node above can find them. Ids may repeat, as in `select(x, x)`; then the values are the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from epochal.continuous.catalyst.expression_reader import (
    ExpressionReader,
    NotInArrow,
    SparkExpressions,
)
from epochal.continuous.catalyst.releases import Planner
from epochal.continuous.catalyst.spark_objects import (
    JavaObject,
    arrow_type_of,
    collation_in,
    items,
    simple_name,
)
from epochal.continuous.operators.contract import OperatorSpec
from epochal.continuous.operators.expressions.expr import EITHER, Call, Column, Expr, Literal
from epochal.continuous.operators.expressions.spark_calls import is_spark_call
from epochal.continuous.operators.stateless.moment_columns import MomentColumnsSpec, lifted
from epochal.continuous.operators.stateless.row_operators import FilterSpec, ProjectSpec
from epochal.continuous.plan.logical import Node, Step, unique_names
from epochal.errors import OptionError
from epochal.errors.query import Refusal

DELAY = "spark.watermarkDelayMs"
SESSION_WINDOW = "spark.sessionWindow"

_IDS = re.compile(r"#\d+L?(-T\d+ms)?|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}, ")

USE_A_FUNCTION = "compute it in a Python UDF, mapInPandas or mapInArrow"
JVM_ONLY = "it runs in the JVM only; write the function in Python"


@dataclass(frozen=True, slots=True)
class Operator:
    """A node of Spark's plan, and where it runs."""

    depth: int
    text: str
    runs: str


@dataclass(slots=True)
class Findings:
    """What the readers of one plan have found."""

    refusals: list[Refusal] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, operator: str, what: str, instead: str) -> None:
        found = Refusal(operator, what, instead)
        if found not in self.refusals:
            self.refusals.append(found)

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
    return tuple(id_of(each) for each in attributes)


def metadata_of(attribute: JavaObject) -> dict[str, Any]:
    """The metadata of an attribute: whether it is a window, and the delay of its watermark."""
    found: dict[str, Any] = json.loads(str(attribute.metadata().json()))
    return found


class Steps:
    """Reads expressions, collects what cannot run, and appends steps to a reading."""

    def __init__(self, planner: Planner, findings: Findings) -> None:
        self.planner, self.findings = planner, findings
        self.in_spark = SparkExpressions(planner.session, self._value_of)
        self.observed: set[str] = set()
        """The names under which rows are observed."""

    def schema_of(self, operator: str, attributes: Sequence[JavaObject]) -> pa.Schema:
        """The schema of attributes. All columns are nullable, as in Spark's state."""
        names = unique_names([str(each.name()) for each in attributes])
        return pa.schema(
            [
                pa.field(name, self.type_of(operator, each))
                for name, each in zip(names, attributes, strict=True)
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
            found = self.in_spark.read(expr, self.reader(reading), reading.indexes)
        except OptionError as error:
            self.findings.refuse(operator, f"{_called(expr)}: {error}", USE_A_FUNCTION)
            return Literal(pa.scalar(None, pa.null()))
        if not volatile and lifted((found,), len(reading.ids)).calls:
            self.findings.refuse(
                operator,
                f"{_called(expr)}: functions of time and chance are not supported here",
                "compute the value in a column before",
            )
        return found

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
            if is_spark_call(part):
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
        exprs = [self.expression(operator, reading, each, volatile=True) for each in named]
        return self.computed(reading, exprs, self.schema_of(operator, named), ids_of(named))

    def filter(self, operator: str, reading: Reading, condition: JavaObject) -> Reading:
        expr = self.expression(operator, reading, condition, volatile=True)
        widened, (met,) = self.with_moment(reading, [expr])
        kept = Step(widened.tree, FilterSpec(met), widened.schema)
        if widened is reading:
            return Reading(kept, reading.ids)
        columns = [Column(index) for index in range(len(reading.ids))]
        return self.computed(Reading(kept, widened.ids), columns, reading.schema, reading.ids)

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
        found = lifted(tuple(exprs), len(reading.ids))
        if not found.calls:
            return reading, found.columns
        spec = MomentColumnsSpec.plan(found.calls, reading.schema)
        ids = (*reading.ids, *(-1 for _ in found.calls))
        return self.step(reading, spec, spec.schema, ids), found.columns

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
        for each in attributes:
            marks = metadata_of(each)
            if DELAY in marks:
                return reading.name_of(each), int(marks[DELAY])
        return None, 0


def _joined(columns: Sequence[Expr], below: Sequence[Expr]) -> list[Expr] | None:
    """The columns over what `below` is computed from; None if that would repeat work.

    One of the two must only select columns.
    """
    if all(isinstance(each, Column) for each in columns):
        return [below[each.index] for each in columns if isinstance(each, Column)]
    if all(isinstance(each, Column) for each in below):
        return [_selected(each, below) for each in columns]
    return None


def _selected(expr: Expr, below: Sequence[Expr]) -> Expr:
    match expr:
        case Column(index):
            return below[index]
        case Call(arguments=arguments):
            return replace(expr, arguments=tuple(_selected(each, below) for each in arguments))
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
