"""Reads Spark's resolved expressions from the JVM into the trees of `operators.expressions.expr`.

A call gets the simple name of the Catalyst class. Scalar fields of the class (an ordinal, a format,
`ignoreNulls`) are in `extra` under their Scala names, the time zone is in `extra["zone"]`.
`StaticInvoke` becomes `Class.method`. `Invoke` on a constant evaluator becomes `Evaluator.method`,
with the evaluator's fields in `extra`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from epochal.continuous.catalyst.releases import RENAMED
from epochal.continuous.catalyst.spark_objects import (
    JavaObject,
    arrow_type_of,
    class_name,
    fields,
    interval_in,
    is_plain,
    items,
    option,
    scalar_of,
    simple_name,
    texts_of,
)
from epochal.continuous.operators.expressions.expr import (
    Call,
    Column,
    Expr,
    Lambda,
    Literal,
    Mode,
)
from epochal.continuous.operators.expressions.nested.maps import LAST_WINS
from epochal.errors import OptionError

_MODES: dict[str, Mode] = {"ANSI": "ansi", "LEGACY": "legacy", "TRY": "try"}
_TYPES = "org.apache.spark.sql.types."

_PRINTING = ("Cast", "CreateArray", "CreateMap", "CreateNamedStruct", "FormatString")
"""Calls that turn their arguments into other types, or into parts of values that may be printed."""

_SAME = ("Alias", "KnownNullable", "KnownNotNull", "KnownFloatingPointNormalized")
"""Expressions whose value is that of their only child."""


class ExpressionReader:
    """Reads expressions over the columns of one plan node."""

    def __init__(
        self,
        spark: SparkSession,
        columns: Mapping[int, int],
        width: int,
        collect: Callable[[JavaObject], pa.Table] | None = None,
    ) -> None:
        """`columns` maps the ids of Spark's attributes to indexes in a batch of `width` columns.

        `collect` returns the rows of a plan without streams: scalar subqueries need it.
        """
        self._spark, self._columns, self._width = spark, dict(columns), width
        self._collect = collect
        self._common: dict[int, Expr] = {}  # what a With expression names
        ansi = str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true"
        self._mode: Mode = "ansi" if ansi else "legacy"
        policy = str(spark.conf.get("spark.sql.mapKeyDedupPolicy"))
        self._last_wins = policy.upper() == "LAST_WIN"
        self._zone = str(spark.conf.get("spark.sql.session.timeZone"))

    def read(self, expr: JavaObject) -> Expr:
        """Read an expression."""
        name = RENAMED.get(simple_name(expr), simple_name(expr))
        match name:
            case "AttributeReference" | "NamedLambdaVariable":
                return Column(self._columns[expr.exprId().id()])
            case "AggregateExpression":  # computed already
                return Column(self._columns[expr.resultId().id()])
            case "Literal":
                return self._literal(expr)
            case "LambdaFunction":
                return self._lambda(expr)
            case "StaticInvoke":
                owner = str(expr.staticObject().getName()).rpartition(".")[2].rstrip("$")
                return self._call(f"{owner}.{expr.functionName()}", expr, expr.arguments())
            case "Invoke":
                return self._invoke(expr)
            case "With":
                for each in items(expr.defs()):
                    self._common[int(each.id().id())] = self.read(each.child())
                return self.read(expr.child())
            case "CommonExpressionRef":
                return self._common[int(expr.id().id())]
            case "ScalarSubquery" if self._collect is not None:
                return self._subquery(expr, self._collect)
        if name in _SAME:
            return self.read(expr.children().apply(0))
        return self._call(name, expr, expr.children())

    def _call(self, name: str, expr: JavaObject, arguments: JavaObject) -> Expr:
        mode, extra = self.scalar_fields(expr)
        kind = arrow_type_of(expr.dataType())
        if name in _PRINTING:
            self._refuse_intervals(name, expr)
        if self._last_wins and pa.types.is_map(kind):
            extra[LAST_WINS] = True
        return Call(name, tuple(self.read(each) for each in items(arguments)), kind, mode, extra)

    def _refuse_intervals(self, name: str, expr: JavaObject) -> None:
        """Intervals are numbers here: a function must not take them for numbers."""
        kinds = [expr.dataType(), *(each.dataType() for each in items(expr.children()))]
        found = next((kind for each in kinds if (kind := interval_in(each))), None)
        if found is not None:
            raise OptionError(f"{name} of an {found} is not supported")

    def _invoke(self, expr: JavaObject) -> Expr:
        target = expr.targetObject()
        if simple_name(target) != "Literal":
            return self._call("Invoke", expr, expr.children())
        evaluator = target.value()
        mode, extra = self.scalar_fields(evaluator)
        arguments = tuple(self.read(each) for each in items(expr.arguments()))
        name = f"{simple_name(evaluator)}.{expr.functionName()}"
        return Call(name, arguments, arrow_type_of(expr.dataType()), mode, extra)

    def _lambda(self, expr: JavaObject) -> Expr:
        first, parameters = self._width, list(items(expr.arguments()))
        inner = ExpressionReader.__new__(ExpressionReader)
        inner._spark, inner._mode, inner._zone = self._spark, self._mode, self._zone
        inner._last_wins = self._last_wins
        inner._collect, inner._common = self._collect, self._common
        inner._width = first + len(parameters)
        inner._columns = self._columns | {
            each.exprId().id(): first + number for number, each in enumerate(parameters)
        }
        return Lambda(inner.read(expr.function()), first, len(parameters))

    def _subquery(self, expr: JavaObject, collect: Callable[[JavaObject], pa.Table]) -> Expr:
        """The only value of a subquery, which is evaluated here and now."""
        if expr.plan().isStreaming():
            raise OptionError("a scalar subquery over a stream is not supported")
        kind, values = arrow_type_of(expr.dataType()), collect(expr.plan()).column(0)
        if len(values) > 1:
            raise OptionError(f"a scalar subquery returned {len(values)} rows, not one")
        found = values.combine_chunks().cast(kind)
        return Literal(found[0] if len(found) else pa.scalar(None, kind))

    def _literal(self, expr: JavaObject) -> Expr:
        kind, value = arrow_type_of(expr.dataType()), expr.value()
        if value is None or is_plain(kind):
            return Literal(scalar_of(value, kind))
        # The JVM's arrays, maps and structs are opaque: let Spark itself return the value.
        made = self._spark._jsparkSession.range(1).select(_columns(self._spark, expr))
        found = DataFrame(made, self._spark).toArrow().column(0).combine_chunks()
        return Literal(found.cast(kind)[0])

    def scalar_fields(self, product: JavaObject) -> tuple[Mode, dict[str, Any]]:
        """The mode of a call or an aggregate function, and its scalar fields."""
        mode = self._mode
        extra: dict[str, Any] = {}
        for name, value in fields(product):
            match value:
                case bool() | int() | float() | str():
                    extra[name] = value
                    continue
                case None:
                    continue
            kind = class_name(value)
            if name == "evalMode":
                mode = _MODES[str(value.toString())]
            elif name == "evalContext":
                mode = _MODES[str(value.evalMode().toString())]
            elif kind.startswith(("scala.Some", "scala.None$")):
                found = option(value)
                if isinstance(found, bool | int | float | str):
                    extra["zone" if name == "timeZoneId" else name] = found
            elif kind.startswith(_TYPES) and not kind.endswith(".StructField"):
                extra[name] = arrow_type_of(value)
            elif kind.endswith("UTF8String"):
                extra[name] = str(value.toString())
            elif "Map" in kind and kind.startswith("scala.collection"):
                extra[name] = texts_of(self._spark._jvm, value)
            elif name == "patterns":
                extra[name] = [
                    None if each is None else str(each.toString()) for each in items(value)
                ]
            elif name == "hset":
                extra["values"] = self._set(product, value)
        if extra.get("failOnError") is False and mode == "ansi":
            mode = "legacy"
        return mode, extra

    def _set(self, product: JavaObject, values: JavaObject) -> list[pa.Scalar[Any]]:
        kind = arrow_type_of(product.child().dataType())
        java = cast(Any, self._spark._jvm).scala.jdk.javaapi.CollectionConverters.asJava(values)
        return [scalar_of(each, kind) for each in java]


def columns_by_id(attributes: JavaObject) -> dict[int, int]:
    """The index of each attribute of a plan node's output, by its id."""
    return {each.exprId().id(): index for index, each in enumerate(items(attributes))}


def _columns(spark: SparkSession, expr: JavaObject) -> JavaObject:
    """An array of one column, as the JVM's `select` takes it."""
    sql = cast(Any, spark._jvm).org.apache.spark.sql
    array = cast(Any, spark.sparkContext._gateway).new_array(sql.Column, 1)
    array[0] = sql.classic.ExpressionUtils.column(expr)
    return array
