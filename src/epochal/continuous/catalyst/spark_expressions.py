"""Sends Spark's resolved expressions to tasks as they are, for Spark's own code to evaluate.

The references of an expression become numbers, its serialised form is part of the plan, and the
columns that it refers to are the arguments of the call. The current time and the values of
subqueries are not part of it: they become arguments and constants.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

from epochal.continuous.catalyst.expression_reader import ExpressionReader, NotInArrow
from epochal.continuous.catalyst.spark_objects import (
    JavaObject,
    arrow_type_of,
    items,
    option,
    simple_name,
    texts_of,
)
from epochal.continuous.evaluator.evaluator_client import Session
from epochal.continuous.evaluator.executor_jvm import DEFAULT_MEMORY_MB
from epochal.continuous.operators.expressions.evaluate import SURE
from epochal.continuous.operators.expressions.expr import EITHER, Call, Column, Expr
from epochal.continuous.operators.expressions.spark_calls import spark_call
from epochal.errors import OptionError

_CATALYST = "org.apache.spark.sql.catalyst.expressions"
_NOW = "CurrentBatchTimestamp"
_REPLACED = (_NOW, "ScalarSubquery", "With")

Replace: TypeAlias = Callable[[JavaObject], JavaObject]


class SparkExpressions:
    """Makes calls of Spark's expressions in one session."""

    def __init__(
        self,
        spark: SparkSession,
        value_of: Callable[[JavaObject], JavaObject] | None = None,
        memory_mb: int = DEFAULT_MEMORY_MB,
    ) -> None:
        """`value_of` returns the only value of a plan without streams, for scalar subqueries."""
        self._spark, self._value_of, self._memory_mb = spark, value_of, memory_mb
        self._jvm: Any = spark._jvm
        self.calls = 0
        """How many parts of the plan only Spark's code evaluates."""

    @cached_property
    def session(self) -> Session:
        """The settings of the session that Spark's code reads when it runs."""
        conf = self._spark._jsparkSession.sessionState().conf()
        found = texts_of(self._jvm, conf.getAllConfs())
        lines = [
            text
            for key, value in sorted(found.items())
            if key.startswith("spark.sql.")
            for text in (key, value.replace("\\", "\\\\").replace("\n", "\\n"))
        ]
        return Session("\n".join(lines), memory_mb=self._memory_mb)

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
        kind, spark_type = arrow_type_of(expr.dataType()), str(expr.dataType().json())
        moments: list[tuple[JavaObject, Expr]] = []
        if self._has_replaced(expr):
            expr = expr.transform(_Replacement(lambda node: self._replaced(node, moments)))
        attributes: list[JavaObject] = []
        arguments: list[Expr] = []
        for attribute in items(expr.references().toSeq()):
            index = columns.get(int(attribute.exprId().id()))
            if index is not None:
                attributes.append(attribute)
                arguments.append(Column(index))
        for attribute, moment in moments:
            attributes.append(attribute)
            arguments.append(moment)
        bound = self._object("BindReferences").bindReference(
            expr, self._object("package").AttributeSeq(self._sequence(attributes)), False
        )
        payload = bytes(self._jvm.org.apache.spark.util.Utils.serialize(bound))
        return spark_call(tuple(arguments), kind, payload, spark_type, self.session)

    def _has_replaced(self, expr: JavaObject) -> bool:
        """Whether an expression uses the current time or a subquery; callbacks are slow."""
        patterns = self._object("TreePattern", "org.apache.spark.sql.catalyst.trees")
        wanted = (
            patterns.CURRENT_LIKE(),
            patterns.SCALAR_SUBQUERY(),
            patterns.WITH_EXPRESSION(),
        )
        return any(expr.containsPattern(pattern) for pattern in wanted)

    def _replaced(self, node: JavaObject, moments: list[tuple[JavaObject, Expr]]) -> JavaObject:
        if simple_name(node) == _NOW:
            kind = arrow_type_of(node.dataType())
            made = self._object("AttributeReference").apply(
                "now",
                node.dataType(),
                True,
                self._jvm.org.apache.spark.sql.types.Metadata.empty(),
                self._object("NamedExpression").newExprId(),
                self._sequence([]),
            )
            extra = {"zone": str(zone)} if (zone := option(node.timeZoneId())) else {}
            moments.append((made, Call(_NOW, (), kind, extra=extra)))
            return made
        if simple_name(node) == "With":
            parts = {int(part.id().id()): part.child() for part in items(node.defs())}
            return node.child().transform(
                _Replacement(
                    lambda part: parts[int(part.id().id())], names=("CommonExpressionRef",)
                )
            )
        if self._value_of is None or node.plan().isStreaming():
            raise OptionError("a scalar subquery over a stream is not supported")
        return self._object("Literal").create(self._value_of(node.plan()), node.dataType())

    def _sequence(self, elements: list[JavaObject]) -> JavaObject:
        java = self._jvm.java.util.ArrayList()
        for element in elements:
            java.add(element)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(java).toSeq()

    def _object(self, name: str, package: str = _CATALYST) -> Any:
        """The only instance of a Scala object."""
        found: Any = self._jvm
        for part in f"{package}.{name}$".split("."):
            found = getattr(found, part)
        return getattr(found, "MODULE$")


def _may_ask(tree: Expr) -> bool:
    """Whether Arrow may not be sure of a value."""
    match tree:
        case Call(function, arguments):
            return function not in SURE or any(map(_may_ask, arguments))
    return False


class _Replacement:
    """A Scala PartialFunction that replaces some nodes of an expression."""

    class Java:
        implements = ("scala.PartialFunction",)

    def __init__(self, replace: Replace, names: tuple[str, ...] = _REPLACED) -> None:
        self._replace, self._names = replace, names

    def isDefinedAt(self, node: JavaObject) -> bool:
        return simple_name(node) in self._names

    def apply(self, node: JavaObject) -> JavaObject:
        return self._replace(node)

    def applyOrElse(self, node: JavaObject, otherwise: JavaObject) -> JavaObject:
        return self.apply(node) if self.isDefinedAt(node) else otherwise.apply(node)
