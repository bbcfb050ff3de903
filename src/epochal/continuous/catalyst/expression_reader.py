"""Reads Spark's resolved expressions into the trees of `operators.expressions.expr`.

`ExpressionReader` reads what Arrow evaluates: NotInArrow says that an expression has anything else
in it. A call gets the simple name of the Catalyst class. Scalar fields of the class (an ordinal, a
zone) are in `extra` under their Scala names, the time zone is in `extra["zone"]`.

`SparkExpressions` sends all others to tasks as they are, for Spark's own code to evaluate. The
references of an expression become numbers, its serialised form is part of the plan, and the
columns that it refers to are the arguments of the call. The current time and the values of
subqueries are not part of it: they become arguments and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from epochal.continuous.catalyst.given_schema import arrow_schema
from epochal.continuous.catalyst.releases import RENAMED, with_replacements
from epochal.continuous.catalyst.spark_objects import (
    JavaObject,
    Replacement,
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
from epochal.continuous.operators.aggregation.functions import Mode
from epochal.continuous.operators.expressions.casts import cast_name
from epochal.continuous.operators.expressions.evaluate import CHOICES, FUNCTIONS, SURE
from epochal.continuous.operators.expressions.expr import (
    EITHER,
    Call,
    Column,
    Expr,
    Literal,
    type_of,
)
from epochal.continuous.operators.expressions.scalars import COMPARISONS
from epochal.continuous.operators.expressions.spark_calls import spark_call
from epochal.continuous.operators.stateless.row_operators import MOMENT_FUNCTIONS, ProjectSpec
from epochal.errors import OptionError
from epochal.evaluator.evaluator_client import Session
from epochal.evaluator.spark_classes import (
    as_java,
    class_of,
    object_of,
    scala_seq,
    serialized,
    session_of,
    texts_of,
)

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

_CATALYST = "org.apache.spark.sql.catalyst.expressions"
_NOW = "CurrentBatchTimestamp"
_REPLACED = (_NOW, "ScalarSubquery", "With", "AggregateExpression")


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
        if name not in FUNCTIONS and name not in (*CHOICES, *MOMENT_FUNCTIONS):
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
        return Literal(scalar_of(value, kind))

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
                element = _type_of(product.child())
                java = as_java(self._spark._jvm, value)
                extra["values"] = [scalar_of(constant, element) for constant in java]
        if extra.get("failOnError") is False and mode == "ansi":
            mode = "legacy"
        return mode, extra


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
        exprs = [
            # The pattern is asked for first, because callbacks are slow.
            expr.transform(replace) if expr.containsAnyPattern(self._patterns) else expr
            for expr in exprs
        ]
        inputs: dict[int, tuple[JavaObject, Expr]] = {}
        for expr in exprs:
            for attribute in items(expr.references().toSeq()):
                number = int(attribute.exprId().id())
                if number in columns:
                    inputs[number] = (attribute, Column(columns[number]))
        return exprs, [*inputs.values(), *moments]

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
        return object_of(self._jvm, f"{package}.{name}")


def _may_ask(tree: Expr) -> bool:
    """Whether Arrow may not be sure of a value."""
    match tree:
        case Call(function, arguments):
            return function not in SURE or any(map(_may_ask, arguments))
    return False


def resolve(spark: SparkSession, schema: pa.Schema, columns: Sequence[Any]) -> ProjectSpec:
    """Resolve columns, SQL text or PySpark's, over a stream of this schema, with Spark's analyzer.

    Spark resolves names, types, implicit casts and functions on an empty DataFrame.
    """
    texts = {isinstance(column, str) for column in columns}
    if len(texts) > 1:
        raise OptionError(
            "Some columns are text and some are PySpark columns. Use only one of the two."
        )
    frame = spark.createDataFrame([], from_arrow_schema(schema))
    text = ", ".join(map(str, columns))
    try:
        selected = frame.selectExpr(*columns) if texts == {True} else frame.select(*columns)
    except (AnalysisException, ParseException) as error:
        raise OptionError(f"{text}: {error}") from None
    plan = with_replacements(spark, selected._jdf.queryExecution().analyzed())
    if simple_name(plan) != "Project":
        raise OptionError(
            f"{text}: only expressions over the columns of one row are possible. To aggregate, use "
            f"group_by."
        )
    indexes = columns_by_id(plan.child().output())
    reader, in_spark = ExpressionReader(spark, indexes, schema.types), SparkExpressions(spark)
    exprs = tuple(in_spark.read(expr, reader, indexes) for expr in items(plan.projectList()))
    return ProjectSpec(exprs, arrow_schema(selected.schema))
