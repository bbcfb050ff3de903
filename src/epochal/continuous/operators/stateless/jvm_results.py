"""Converts the results of plain Python functions (`useArrow=False`) as Spark's JVM does. Pure.

The JVM does not cast: a value of a class that does not match the declared type becomes null, an int
for a double for example. Integers are cut to the width of the type. Any value becomes a string.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from epochal.continuous.operators.java_texts import java_text
from epochal.errors import OptionError

Converter: TypeAlias = Callable[[Any], Any]

_BITS = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


def jvm_result(kind: DataType) -> Converter:
    """A function that converts a result for the type `kind`; null stays null."""
    convert = _converter(kind)
    return lambda value: None if value is None else convert(value)


def _converter(kind: DataType) -> Converter:
    match kind:
        case BooleanType():
            return lambda value: value if isinstance(value, bool) else None
        case ByteType() | ShortType() | IntegerType() | LongType():
            return _integer(_BITS[type(kind)])
        case FloatType() | DoubleType():
            return lambda value: value if isinstance(value, float) else None
        case DecimalType():
            return _decimal(kind)
        case StringType():
            return _text
        case BinaryType():
            return _binary
        case DateType():
            return lambda value: value if isinstance(value, datetime.date) else None
        case TimestampType():
            return _timestamp
        case TimestampNTZType():
            return lambda value: value if isinstance(value, datetime.datetime) else None
        case DayTimeIntervalType():
            return lambda value: value if isinstance(value, datetime.timedelta) else None
        case ArrayType():
            element = jvm_result(kind.elementType)
            return lambda value: (
                [element(each) for each in value] if isinstance(value, list | tuple) else None
            )
        case MapType():
            key, item = jvm_result(kind.keyType), jvm_result(kind.valueType)
            return lambda value: (
                [(key(each), item(value[each])) for each in value]
                if isinstance(value, dict)
                else None
            )
        case StructType():
            return _struct(kind)
    return lambda value: value


def _integer(bits: int) -> Converter:
    half = 1 << (bits - 1)

    def convert(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
            return None
        return (value + half) % (1 << bits) - half

    return convert


def _decimal(kind: DecimalType) -> Converter:
    unit = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Any:
        if not isinstance(value, Decimal) or not value.is_finite():
            return None
        rounded = value.quantize(unit, "ROUND_HALF_UP")
        if abs(rounded) >= Decimal(10) ** (kind.precision - kind.scale):
            raise OptionError(
                f"[NUMERIC_VALUE_OUT_OF_RANGE] a function returned {value}, which does not fit "
                f"into {kind.simpleString()}. Declare more digits."
            )
        return rounded

    return convert


def _text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return java_text(value)
    return str(value)


def _binary(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def _timestamp(value: Any) -> Any:
    if not isinstance(value, datetime.datetime):
        return None
    return value.astimezone(datetime.UTC)  # without a zone it is a local time


def _struct(kind: StructType) -> Converter:
    converters = [jvm_result(each.dataType) for each in kind.fields]
    names = kind.names

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            value = tuple(value.get(name) for name in names)
        if not isinstance(value, tuple | list):
            return None
        return {name: each(item) for name, each, item in zip(names, converters, value, strict=True)}

    return convert
