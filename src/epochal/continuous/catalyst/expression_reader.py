"""Reads Spark's resolved expressions from the JVM into the trees of `operators.expressions.expr`.

Only what Arrow evaluates is read: NotInArrow says that an expression has anything else in it. A
call gets the simple name of the Catalyst class. Scalar fields of the class (an ordinal, a zone) are
in `extra` under their Scala names, the time zone is in `extra["zone"]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from epochal.continuous.catalyst.releases import RENAMED
from epochal.continuous.catalyst.spark_objects import (
    JavaObject,
    arrow_type_from_json,
    arrow_type_of,
    class_name,
    collation_in,
    fields,
    is_plain,
    items,
    option,
    scalar_of,
    simple_name,
)
from epochal.continuous.operators.expressions import expr as exprs
from epochal.continuous.operators.expressions.casts import cast_name

from epochal.continuous.operators.expressions.evaluate import CHOICES, FUNCTIONS

from epochal.continuous.operators.expressions.expr import Call, Column, Expr, type_of
from epochal.continuous.operators.stateless.moment_columns import FUNCTIONS as MOMENT
from epochal.errors import OptionError
from epochal.evaluator.spark_classes import as_java, texts_of

Mode: TypeAlias = Literal["ansi", "legacy", "try"]
"""What an aggregate does with a value that has no result, such as an overflow: raise an error
(ansi), return what Spark returns without ANSI mode (legacy), or return null (try)."""

_MODES: dict[str, Mode] = {"ANSI": "ansi", "LEGACY": "legacy", "TRY": "try"}
_CALENDAR = '"interval"'
_ONLY_IN_SPARK = (_CALENDAR, '"interval year', '"interval month', '"variant', '"time(')
"""How the JSON of types begins whose values Arrow has in other forms."""

_TYPES = "org.apache.spark.sql.types."

_OF_ANY_TYPE = ("IsNull", "IsNotNull")
"""Functions that only look at whether there is a value."""

_CHILDREN = ("left", "right", "child", "children")
"""Fields of calls that are other expressions."""

_SAME = ("Alias", "KnownNullable", "KnownNotNull", "KnownFloatingPointNormalized")
"""Expressions whose value is that of their only child."""


class NotInArrow(Exception):
    """An expression has a part that only Spark's code evaluates."""


class ExpressionReader:
    """Reads expressions over the columns of one plan node."""

    def __init__(
        self,
        spark: SparkSession,
        columns: Mapping[int, int],
        types: Sequence[pa.DataType],
        *,
        any_cast: bool = False,
    ) -> None:
        """`columns` maps the ids of Spark's attributes to indexes in a batch of these types.

        With `any_cast` trees may have casts that Arrow does not evaluate: they show what is cast.
        """
        self._spark, self._columns, self._types = spark, dict(columns), types
        self._any_cast = any_cast
        self._common: dict[int, Expr] = {}  # what a With expression names
        ansi = str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "true"
        self._mode: Mode = "ansi" if ansi else "legacy"

    def read(self, expr: JavaObject, *, is_argument: bool = False) -> Expr:
        """Read an expression; NotInArrow if Arrow cannot evaluate all of it."""
        name = simple_name(expr)
        name = RENAMED.get(name, name)
        match name:
            case "AttributeReference":
                if is_argument:
                    _type_of(expr)
                return Column(self._columns[expr.exprId().id()])
            case "AggregateExpression":  # computed already
                return Column(self._columns[expr.resultId().id()])
            case "Literal":
                return self._literal(expr)
            case "With":
                for definition in items(expr.defs()):
                    number = int(definition.id().id())
                    self._common[number] = self.read(definition.child())
                return self.read(expr.child())
            case "CommonExpressionRef":
                return self._common[int(expr.id().id())]
        if name in _SAME:
            return self.read(expr.children().apply(0), is_argument=is_argument)
        if name not in FUNCTIONS and name not in (*CHOICES, *MOMENT):
            raise NotInArrow
        typed = name not in _OF_ANY_TYPE
        arguments = tuple(self.read(child, is_argument=typed) for child in items(expr.children()))
        types = [type_of(argument, self._types) for argument in arguments]
        if typed and name in COMPARISONS and any(map(pa.types.is_nested, types)):
            raise NotInArrow
        kind = _type_of(expr)
        if name == "Cast" and not self._any_cast:
            (source,) = types
            if source != kind and cast_name(source, kind) is None:
                raise NotInArrow
        return Call(name, arguments, kind, self.scalar_fields(expr)[1])

    def _literal(self, expr: JavaObject) -> Expr:
        text = str(expr.dataType().json())
        kind = arrow_type_from_json(text) if text == _CALENDAR else _type_of(expr)
        value = expr.value()
        if value is not None:
            # Spark's texts need not be UTF-8, Python's must.
            is_text = pa.types.is_string(kind) and not isinstance(value, str)
            if not is_plain(kind) or (is_text and not value.isValid()):
                raise NotInArrow
        return exprs.Literal(scalar_of(value, kind))

    def scalar_fields(self, product: JavaObject) -> tuple[Mode, dict[str, Any]]:
        """The mode of a call or an aggregate function, and its scalar fields."""
        mode = self._mode
        extra: dict[str, Any] = {}
        for name, value in fields(product, but=_CHILDREN):
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
                content = option(value)
                if isinstance(content, bool | int | float | str):
                    extra["zone" if name == "timeZoneId" else name] = content
            elif kind.startswith(_TYPES) and not kind.endswith(".StructField"):
                extra[name] = arrow_type_of(value)
            elif kind.endswith("UTF8String"):
                extra[name] = str(value.toString())
            elif "Map" in kind and kind.startswith("scala.collection"):
                extra[name] = texts_of(value)
            elif name == "hset":
                extra["values"] = self._set(product, value)
        if extra.get("failOnError") is False and mode == "ansi":
            mode = "legacy"
        return mode, extra

    def _set(self, product: JavaObject, values: JavaObject) -> list[pa.Scalar[Any]]:
        kind = _type_of(product.child())
        java = as_java(self._spark._jvm, values)
        return [scalar_of(value, kind) for value in java]


def _type_of(expr: JavaObject) -> pa.DataType:
    """The type of an expression, if its values mean the same to Arrow as to Spark."""
    data_type = expr.dataType()
    text = str(data_type.json())
    if text.startswith(_ONLY_IN_SPARK):
        raise NotInArrow
    if text.startswith(('"string', '{"type":"struct"')) and collation_in(data_type):
        raise NotInArrow
    try:
        return arrow_type_from_json(text)
    except OptionError:
        raise NotInArrow from None


def columns_by_id(attributes: JavaObject) -> dict[int, int]:
    """The index of each attribute of a plan node's output, by its id."""
    return {attribute.exprId().id(): index for index, attribute in enumerate(items(attributes))}
