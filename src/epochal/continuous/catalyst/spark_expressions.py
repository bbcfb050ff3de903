"""Sends Spark's resolved expressions to tasks as they are, for Spark's own code to evaluate.

The references of an expression become numbers, its serialised form is part of the plan, and the
columns that it refers to are the arguments of the call. The current time and the values of
subqueries are not part of it: they become arguments and constants.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from epochal.continuous.catalyst.expression_reader import ExpressionReader, NotInArrow
from epochal.continuous.catalyst.spark_objects import (
    JavaObject,
    Replacement,
    arrow_type_from_json,
    arrow_type_of,
    items,
    option,
    simple_name,
)
from epochal.continuous.operators.expressions.evaluate import SURE
from epochal.continuous.operators.expressions.expr import EITHER, Call, Column, Expr
from epochal.continuous.operators.expressions.spark_calls import spark_call
from epochal.errors import OptionError
from epochal.evaluator.evaluator_client import Session
from epochal.evaluator.spark_classes import class_of, object_of, scala_seq, serialized
from epochal.evaluator.spark_session import session_of

_CATALYST = "org.apache.spark.sql.catalyst.expressions"
_NOW = "CurrentBatchTimestamp"
_REPLACED = (_NOW, "ScalarSubquery", "With", "AggregateExpression")


class SparkExpressions:
    """Makes calls of Spark's expressions in one session."""

    def __init__(
        self, spark: SparkSession, value_of: Callable[[JavaObject], JavaObject] | None = None
    ) -> None:
        """`value_of` returns the only row of a plan without streams, for scalar subqueries."""
        self._spark, self._value_of = spark, value_of
        self._jvm: Any = spark._jvm
        self.calls = 0
        """How many parts of the plan only Spark's code evaluates."""

    @cached_property
    def session(self) -> Session:
        """The settings of the session that Spark's code reads when it runs."""
        return session_of(self._spark)

    def read(self, expr: JavaObject, reader: ExpressionReader, columns: dict[int, int]) -> Expr:
        """An expression for Arrow if that can evaluate it, else for Spark's code.

        Where Arrow may not be sure, the result has both forms.
        """
        try:
            tree = reader.read(expr)
        except NotInArrow:
            self.calls += 1
            return self.call(expr, columns)
        if not _may_ask(tree):
            return tree
        spark = self.call(expr, columns)
        return Call(EITHER, (tree, spark), spark.type)

    def call(self, expr: JavaObject, columns: dict[int, int]) -> Call:
        """The call of an expression, whose columns have these indexes by the ids of attributes."""
        while simple_name(expr) == "Alias":
            expr = expr.child()
        spark_type = str(expr.dataType().json())
        kind = arrow_type_from_json(spark_type)
        (expr,), inputs = self._inputs([expr], columns)
        attributes = self._sequence([attribute for attribute, _ in inputs])
        bound = self._object("BindReferences").bindReference(
            expr, self._object("package").AttributeSeq(attributes), False
        )
        arguments = tuple(argument for _, argument in inputs)
        return spark_call(arguments, kind, serialized(self._jvm, bound), spark_type, self.session)

    def aggregates(
        self, exprs: list[JavaObject], columns: dict[int, int]
    ) -> tuple[bytes, list[tuple[Expr, pa.DataType]]]:
        """Aggregate expressions and the attributes they take, serialised, and these as values."""
        self.calls += 1
        exprs, inputs = self._inputs(exprs, columns)
        attributes = [attribute for attribute, _ in inputs]
        both = class_of(self._jvm, "scala.Tuple2")(
            self._sequence(exprs), self._sequence(attributes)
        )
        kinds = [(value, arrow_type_of(attribute.dataType())) for attribute, value in inputs]
        return serialized(self._jvm, both), kinds

    def _inputs(
        self, exprs: list[JavaObject], columns: dict[int, int]
    ) -> tuple[list[JavaObject], list[tuple[JavaObject, Expr]]]:
        """Expressions without functions of time, and the attributes that they take."""
        moments: list[tuple[JavaObject, Expr]] = []
        replace = Replacement(_REPLACED, lambda node: self._replaced(node, moments, columns))
        exprs = [expr.transform(replace) if self._has_replaced(expr) else expr for expr in exprs]
        inputs: dict[int, tuple[JavaObject, Expr]] = {}
        for expr in exprs:
            for attribute in items(expr.references().toSeq()):
                number = int(attribute.exprId().id())
                if number in columns:
                    inputs[number] = (attribute, Column(columns[number]))
        return exprs, [*inputs.values(), *moments]

    def _has_replaced(self, expr: JavaObject) -> bool:
        """Whether an expression uses the current time or a subquery; callbacks are slow."""
        return bool(expr.containsAnyPattern(self._patterns))

    @cached_property
    def _patterns(self) -> JavaObject:
        patterns = self._object("TreePattern", "org.apache.spark.sql.catalyst.trees")
        return self._sequence(
            [
                patterns.CURRENT_LIKE(),
                patterns.SCALAR_SUBQUERY(),
                patterns.WITH_EXPRESSION(),
                patterns.AGGREGATE_EXPRESSION(),
            ]
        )

    def _replaced(
        self, node: JavaObject, moments: list[tuple[JavaObject, Expr]], columns: dict[int, int]
    ) -> JavaObject:
        if simple_name(node) == "AggregateExpression":
            # Where its result is a column, it is computed already.
            return node.resultAttribute() if int(node.resultId().id()) in columns else node
        if simple_name(node) == _NOW:
            kind = arrow_type_of(node.dataType())
            attribute = self._object("AttributeReference").apply(
                "now",
                node.dataType(),
                True,
                class_of(self._jvm, "org.apache.spark.sql.types.Metadata").empty(),
                self._object("NamedExpression").newExprId(),
                self._sequence([]),
            )
            extra = {"zone": str(zone)} if (zone := option(node.timeZoneId())) else {}
            moments.append((attribute, Call(_NOW, (), kind, extra=extra)))
            return attribute
        if simple_name(node) == "With":
            parts = {int(part.id().id()): part.child() for part in items(node.defs())}
            return node.child().transform(
                Replacement(("CommonExpressionRef",), lambda part: parts[int(part.id().id())])
            )
        if self._value_of is None or node.plan().isStreaming():
            raise OptionError("a scalar subquery over a stream is not supported")
        row = self._value_of(node.plan())
        if row is None:
            return self._object("Literal").create(None, node.dataType())
        # The row stays in the JVM: a value would come back as a number of another type.
        literal = class_of(self._jvm, f"{_CATALYST}.Literal")(row, node.plan().schema())
        none = class_of(self._jvm, "scala.Option").empty()
        return class_of(self._jvm, f"{_CATALYST}.GetStructField")(literal, 0, none)

    def _sequence(self, elements: list[JavaObject]) -> JavaObject:
        return scala_seq(self._jvm, elements)

    def _object(self, name: str, package: str = _CATALYST) -> Any:
        """The only instance of a Scala object."""
        return object_of(self._jvm, f"{package}.{name}")


def _may_ask(tree: Expr) -> bool:
    """Whether Arrow may not be sure of a value."""
    match tree:
        case Call(function, arguments):
            return function not in SURE or any(map(_may_ask, arguments))
    return False
