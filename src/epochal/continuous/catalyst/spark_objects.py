"""Python values of the JVM's objects: sequences, options, maps, types and literals.

Note: every attribute of a py4j object exists until it is called, so `hasattr` is always true. Ask
for the class instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from inspect import signature
from typing import Any, TypeAlias, cast

import pyarrow as pa
from py4j.java_gateway import JavaClass, get_field
from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from epochal.errors import OptionError
from epochal.evaluator.spark_classes import class_of
from epochal.files import scheme_of
from epochal.record_batches import table_of

JavaObject: TypeAlias = Any

INTERVAL = pa.month_day_nano_interval()
MONTHS = pa.int32()
"""A year-month interval is a number of months, as in Spark."""

PATH_OPTIONS = ("path", "checkpointlocation", "deadletterpath")

_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
)
"""Releases before 4.3 have no parameter for the zone: theirs is always UTC."""

_COLLATION = re.compile(r"\bstring collate (\w+)")
_INTERVAL_FIELDS = ("months", "days", "microseconds")


def collected(frame: DataFrame) -> pa.Table:
    """The rows of a DataFrame. Without columns, its own `toArrow` would return none."""
    if not frame.columns:
        return table_of([], [], frame.count())
    table: pa.Table = frame.toArrow()
    return table


def class_name(value: JavaObject) -> str:
    return str(_class_names(value._gateway_client)(value))


@lru_cache(maxsize=4)
def _class_names(client: Any) -> Any:
    """Java's function for the name of an object's class: one call of the JVM instead of three."""
    return JavaClass("org.apache.commons.lang3.ClassUtils", client).getName


def simple_name(value: JavaObject) -> str:
    """The name of an object's class without its package, as Spark's documentation uses it."""
    name = class_name(value).rpartition(".")[2]
    return name.rpartition("$")[2] or name.rstrip("$")


def items(sequence: JavaObject) -> Iterator[JavaObject]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def fields(product: JavaObject, but: Container[str] = ()) -> Iterator[tuple[str, JavaObject]]:
    """The fields of a case class, but for some: (name, value)."""
    kind = class_name(product)
    if kind not in _FIELDS:
        _FIELDS[kind] = [
            str(product.productElementName(index)) for index in range(product.productArity())
        ]
    for index, name in enumerate(_FIELDS[kind]):
        if name not in but:
            yield name, product.productElement(index)


_FIELDS: dict[str, list[str]] = {}
"""The names of the fields of case classes."""


def option(value: JavaObject) -> JavaObject | None:
    """The value in a Scala Option; None if it is empty."""
    return value.get() if value.isDefined() else None


class Replacement:
    """A Scala PartialFunction that replaces nodes whose classes have some names. It is slow."""

    class Java:
        implements = ("scala.PartialFunction",)

    def __init__(self, names: Container[str], replace: Callable[[JavaObject], JavaObject]) -> None:
        self._names, self._replace = names, replace

    def isDefinedAt(self, node: JavaObject) -> bool:
        return simple_name(node) in self._names

    def apply(self, node: JavaObject) -> JavaObject:
        return self._replace(node)

    def applyOrElse(self, node: JavaObject, otherwise: JavaObject) -> JavaObject:
        return self.apply(node) if self.isDefinedAt(node) else otherwise.apply(node)


def absolute_paths(options: Mapping[str, str]) -> dict[str, str]:
    """Options with relative paths as Spark resolves them: in the directory of its JVM.

    That is where the JVM was started. `os.chdir` moves only this process.
    """
    context = SparkContext._active_spark_context
    if context is None:
        return dict(options)

    def absolute(path: str) -> str:
        if not path or scheme_of(path) or path.startswith("/"):
            return path
        place = class_of(context._jvm, "org.apache.hadoop.fs.Path")(path)
        system = place.getFileSystem(context._jsc.hadoopConfiguration())
        url = system.makeQualified(place).toUri()
        return str(url.getPath() if url.getScheme() == "file" else url.toString())

    return {
        key: absolute(text) if key.lower() in PATH_OPTIONS else text
        for key, text in options.items()
    }


def arrow_type_of(data_type: JavaObject) -> pa.DataType:
    """The Arrow type of a Spark type; OptionError if there is none."""
    return arrow_type_from_json(str(data_type.json()))


def collation_in(data_type: JavaObject) -> str | None:
    """The collation of a text, or of a text within a type: its JSON leaves it out."""
    match = _COLLATION.search(str(data_type.catalogString()))
    return match[1] if match else None


@lru_cache(maxsize=4096)
def arrow_type_from_json(text: str) -> pa.DataType:
    """The Arrow type of a Spark type in its JSON form."""
    try:
        kind = spark._parse_datatype_json_string(text)
    except (PySparkException, ValueError):  # of a newer release, or only inside of Spark's plans
        raise OptionError(f"columns of type {text} are not supported") from None
    return cast("pa.DataType", _arrow(kind))


def _arrow(kind: spark.DataType) -> Any:
    match kind:
        case spark.DayTimeIntervalType():
            return pa.duration("us")
        case spark.YearMonthIntervalType():
            return MONTHS
        case spark.CalendarIntervalType():
            return INTERVAL
        case spark.ArrayType(elementType=element, containsNull=nulls):
            return pa.list_(_field("element", element, nulls))
        case spark.MapType(keyType=key, valueType=value, valueContainsNull=nulls) if (
            key != spark.NullType()
        ):
            return pa.map_(_field("key", key, False), _field("value", value, nulls))
        case spark.StructType(fields=members):
            return pa.struct([_field(m.name, m.dataType, m.nullable) for m in members])
    try:
        arrow = to_arrow_type(kind, **_UTC)
    except (PySparkTypeError, ValueError):  # the keys of an empty map() have no type
        raise OptionError(f"columns of type {kind.simpleString()} are not supported") from None
    if pa.types.is_struct(arrow):  # a variant: its parts have no value where there is none
        arrow = pa.struct([arrow.field(i).with_nullable(True) for i in range(arrow.num_fields)])
    return arrow


def _field(name: str, kind: spark.DataType, nullable: bool) -> pa.Field[Any]:
    return pa.field(name, _arrow(kind), nullable=nullable or isinstance(kind, spark.NullType))


def scalar_of(value: JavaObject, kind: pa.DataType) -> pa.Scalar[Any]:
    """A value in Catalyst's internal form (days, microseconds, …) as an Arrow scalar."""
    if value is None:
        return pa.scalar(None, kind)
    types = pa.types
    if types.is_string(kind):
        return pa.scalar(str(value.toString() if not isinstance(value, str) else value), kind)
    if types.is_binary(kind):
        return pa.scalar(bytes(value), kind)
    if types.is_decimal(kind):
        return pa.scalar(Decimal(str(value.toString())), kind)
    if types.is_date(kind):
        return pa.scalar(int(value), pa.int32()).cast(kind)
    if types.is_timestamp(kind) or types.is_duration(kind):
        return pa.scalar(int(value), pa.int64()).cast(kind)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return pa.scalar(value, kind)
    if kind == INTERVAL:
        months, days, micros = (get_field(value, field) for field in _INTERVAL_FIELDS)
        return pa.scalar((months, days, micros * 1000), kind)
    raise OptionError(f"constants of type {kind} are not supported")


def is_plain(kind: pa.DataType) -> bool:
    """Whether `scalar_of` supports values of this type."""
    return not (pa.types.is_nested(kind) or pa.types.is_time(kind))
