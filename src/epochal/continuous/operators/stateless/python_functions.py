"""Calls the Python functions of a Spark plan: row, pandas and Arrow UDFs, mapInPandas, mapInArrow.

Values are converted by PySpark's own code, as in Spark's Python workers: a timestamp is a local
time without zone for a row function, a Series has the session's time zone, a result is cast to the
declared type. Only results of functions with `useArrow=False` are converted here (`jvm_result`),
because Spark does that in its JVM, whose rules are in `java_values`.

An iterator function is called once per batch, with an iterator of one batch, so that its rows are
passed on immediately.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import types as spark

from epochal.connectors.user_code import USER_CODE, name_of
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.evaluate import evaluate
from epochal.continuous.operators.expressions.expr import Expr, column_of
from epochal.continuous.operators.java_values import java_bytes, java_integer, java_text
from epochal.errors import ExpressionError, OptionError
from epochal.record_batches import batch_of

PICKLED, ARROW_ROWS = 100, 101
PANDAS, PANDAS_ITERATOR = 200, 204
MAP_PANDAS, MAP_ARROW = 205, 207
ARROW, ARROW_ITERATOR = 250, 251
ROW_TYPES = (PICKLED, ARROW_ROWS)
SCALAR_TYPES = (*ROW_TYPES, PANDAS, PANDAS_ITERATOR, ARROW, ARROW_ITERATOR)
"""Spark's numbers for the kinds of functions: `PythonEvalType` in PySpark."""

Converter: TypeAlias = Callable[[Any], Any]

_BITS = {spark.ByteType: 8, spark.ShortType: 16, spark.IntegerType: 32, spark.LongType: 64}
_CLASSES: dict[type[spark.DataType], type] = {
    spark.BooleanType: bool,
    spark.FloatType: float,
    spark.DoubleType: float,
    spark.DateType: datetime.date,
    spark.TimestampNTZType: datetime.datetime,
    spark.DayTimeIntervalType: datetime.timedelta,
}
"""Types that take values of one class, as they are."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """The settings of the session that decide how values are converted."""

    timezone: str
    safe: bool = False
    """Whether a cast of a result may not lose anything."""
    int_to_decimal: bool = False
    int_extension: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a function: an expression, or the result of a function of the same kind."""

    value: Expr | PythonFunction
    type: spark.DataType | None = None
    arrow: pa.DataType = field(default_factory=pa.null)
    keyword: str | None = None


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """A user's function and its arguments."""

    pickled: bytes
    """The function and its return type, as PySpark pickles them."""
    kind: int
    arguments: tuple[Argument, ...]
    name: str


@dataclass(frozen=True, slots=True)
class PythonFunctionsSpec:
    """Functions whose results are appended to each batch."""

    functions: tuple[PythonFunction, ...]
    schema: pa.Schema
    """The columns of the input, then one for each function."""
    conversion: Conversion

    def open(self) -> PythonFunctions:
        return PythonFunctions(self)


class PythonFunctions:
    """Calls each function once per batch, or once per row."""

    def __init__(self, spec: PythonFunctionsSpec) -> None:
        self._schema = spec.schema
        self._calls = [_Call(function, spec.conversion) for function in spec.functions]

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        rows = batch.num_rows
        if not rows:
            return ()
        kinds = self._schema.types[batch.num_columns :]
        added = [
            column_of(call.result(batch), rows, kind)
            for call, kind in zip(self._calls, kinds, strict=True)
        ]
        return (batch_of([*batch.columns, *added], self._schema, rows),)


class _Call:
    """A function with its arguments, ready to be called."""

    def __init__(self, function: PythonFunction, conversion: Conversion) -> None:
        with USER_CODE:
            self._function, self._type = cloudpickle.loads(function.pickled)
        self._kind, self._name, self._conversion = function.kind, function.name, conversion
        self._arguments = [
            (
                argument,
                _Call(argument.value, conversion)
                if isinstance(argument.value, PythonFunction)
                else None,
            )
            for argument in function.arguments
        ]
        self._converters = {
            number: _row_converter(argument.type)
            for number, (argument, _) in enumerate(self._arguments)
            if argument.type is not None and function.kind in ROW_TYPES
        }

    def result(self, batch: pa.RecordBatch) -> Any:
        returned = self._raw(batch)
        with USER_CODE:  # iterator functions run only now, and a value may not have the type
            return self._converted(returned, batch.num_rows)

    def _converted(self, returned: Any, rows: int) -> Any:
        if self._kind == PICKLED:
            convert = jvm_result(self._type)
            return _array([convert(value) for value in returned], self._type)
        if self._kind == ARROW_ROWS:
            return self._from_rows(returned)
        if self._kind in (PANDAS_ITERATOR, ARROW_ITERATOR):
            parts = [self._from_columns(column) for column in returned]
            converted = pa.concat_arrays(parts) if parts else _array([], self._type)
        else:
            converted = self._from_columns(returned)
        if len(converted) != rows:
            raise OptionError(
                f"the function {self._name} returned {len(converted)} values for {rows} rows. "
                f"Return one value for each row."
            )
        return converted

    def _raw(self, batch: pa.RecordBatch) -> Any:
        """What the function returns: a list of values, or a column, or an iterator of columns."""
        positional, keywords = [], {}
        for number, (argument, inner) in enumerate(self._arguments):
            value = inner._raw(batch) if inner else self._given(number, argument, batch)
            if argument.keyword is None:
                positional.append(value)
            else:
                keywords[argument.keyword] = value
        with USER_CODE:
            if self._kind in ROW_TYPES:
                return _by_row(self._function, positional, keywords, batch.num_rows)
            if self._kind in (PANDAS_ITERATOR, ARROW_ITERATOR):
                if any(inner for _, inner in self._arguments):
                    return self._function(positional[0])  # the iterator of the inner function
                return self._function(
                    iter(positional if len(positional) == 1 else [(*positional,)])
                )
            return self._function(*positional, **keywords)

    def _given(self, number: int, argument: Argument, batch: pa.RecordBatch) -> Any:
        """The values of an expression in the form that the function takes."""
        assert not isinstance(argument.value, PythonFunction)
        column = column_of(evaluate(argument.value, batch), batch.num_rows, argument.arrow)
        if self._kind in (ARROW, ARROW_ITERATOR):
            return column
        if self._kind in (PANDAS, PANDAS_ITERATOR):
            return _series(column, self._conversion)
        from pyspark.sql.conversion import ArrowTableToRowsConversion

        values: list[Any] = ArrowTableToRowsConversion._to_pylist(column)
        convert = self._converters.get(number)
        return values if convert is None else [convert(value) for value in values]

    def _from_rows(self, values: list[Any]) -> Any:
        from pyspark.sql.conversion import LocalDataToArrowConversion

        convert = LocalDataToArrowConversion._create_converter(
            self._type,
            none_on_identity=True,
            int_to_decimal_coercion_enabled=self._conversion.int_to_decimal,
        )
        if convert is not None:
            values = [convert(value) for value in values]
        try:
            return _array(values, self._type, safe=self._conversion.safe)
        except pa.ArrowException as error:
            raise ExpressionError(
                f"the function {self._name} is declared to return {self._type.simpleString()}, "
                f"but it returned another value: {error}. Correct the function or its type."
            ) from None

    def _from_columns(self, result: Any) -> pa.Array[Any]:
        schema = spark.StructType([spark.StructField("_0", self._type)])
        if self._kind in (ARROW, ARROW_ITERATOR):
            column = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
            kind = _arrow_type(self._type)
            return column if column.type == kind else column.cast(kind)
        batch = to_arrow(result, schema, self._conversion)
        return batch.column(0)


@dataclass(frozen=True, slots=True)
class MapFramesSpec:
    """`mapInPandas` and `mapInArrow` of a DataFrame."""

    pickled: bytes
    kind: int
    schema: pa.Schema
    conversion: Conversion

    def open(self) -> MapFrames:
        return MapFrames(self)


class MapFrames:
    """Calls the function with one frame or record batch per batch."""

    def __init__(self, spec: MapFramesSpec) -> None:
        self._spec = spec
        with USER_CODE:
            self._function, self._type = cloudpickle.loads(spec.pickled)

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        rows: Any = batch
        if self._spec.kind == MAP_PANDAS:
            rows = _series(batch.to_struct_array(), self._spec.conversion)
        with USER_CODE:
            for result in self._results(rows):
                fitting = self._batch(result)
                if fitting.num_rows:
                    yield fitting

    def _results(self, rows: Any) -> Iterator[Any]:
        results = self._function(iter((rows,)))
        if isinstance(results, str | bytes) or not isinstance(results, Iterable):
            raise OptionError(
                f"the function {name_of(self._function)} returned {type(results).__name__}. It "
                f"must return an iterator, or be a generator."
            )
        return iter(results)

    def _batch(self, result: Any) -> pa.RecordBatch:
        schema = self._spec.schema
        if self._spec.kind == MAP_PANDAS:
            wrapped = spark.StructType([spark.StructField("_0", self._type)])
            column: Any = to_arrow(result, wrapped, self._spec.conversion).column(0)
            arrays, rows = column.flatten(), len(column)
        else:
            if not isinstance(result, pa.RecordBatch):
                raise OptionError(
                    f"the function {name_of(self._function)} yielded {type(result).__name__}, not "
                    f"pyarrow.RecordBatch."
                )
            arrays, rows = [_column(result, name) for name in schema.names], result.num_rows
        pairs = zip(arrays, schema.types, strict=True)
        return batch_of([column_of(column, rows, kind) for column, kind in pairs], schema, rows)


def to_arrow(result: Any, schema: spark.StructType, conversion: Conversion) -> pa.RecordBatch:
    """Convert a Series or DataFrame of a user to Arrow, as Spark's workers do."""
    from pyspark.sql.conversion import PandasToArrowConversion

    batch: pa.RecordBatch = PandasToArrowConversion.convert(
        [result],
        schema,
        timezone=conversion.timezone,
        safecheck=conversion.safe,
        arrow_cast=True,
        prefers_large_types=False,
        assign_cols_by_name=True,
        int_to_decimal_coercion_enabled=conversion.int_to_decimal,
    )
    return batch


def _series(column: pa.Array[Any], conversion: Conversion) -> Any:
    """A pandas Series of a column; a DataFrame if it is a struct."""
    from pyspark.sql.conversion import ArrowBatchTransformer

    zoned = _zoned(column.type, conversion.timezone)
    if zoned != column.type:
        column = column.cast(zoned)
    return ArrowBatchTransformer.to_pandas(
        batch_of([column], ["_0"], len(column)),
        timezone=conversion.timezone,
        struct_in_pandas="dict",
        ndarray_as_list=False,
        prefer_int_ext_dtype=conversion.int_extension,
        df_for_struct=True,
    )[0]


def _zoned(kind: Any, zone: str) -> Any:
    """A type whose timestamps have the session's time zone, as in the batches that Spark sends."""
    types = pa.types
    if types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, zone)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_zoned(field.type, zone)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_zoned(kind.value_type, zone)))
    if types.is_map(kind):
        return pa.map_(_zoned(kind.key_type, zone), _zoned(kind.item_type, zone))
    return kind


def _row_converter(kind: spark.DataType) -> Converter | None:
    from pyspark.sql.conversion import ArrowTableToRowsConversion

    converter: Converter | None = ArrowTableToRowsConversion._create_converter(
        kind, none_on_identity=True, binary_as_bytes=True
    )
    return converter


def _by_row(
    function: Callable[..., Any], positional: list[Any], keywords: dict[str, Any], rows: int
) -> list[Any]:
    if not positional and not keywords:
        return [function() for _ in range(rows)]
    if not keywords:
        return [function(*values) for values in zip(*positional, strict=True)]
    names, count = list(keywords), len(positional)
    return [
        function(*values[:count], **dict(zip(names, values[count:], strict=True)))
        for values in zip(*positional, *keywords.values(), strict=True)
    ]


def _array(values: list[Any], kind: spark.DataType, *, safe: bool = False) -> Any:
    target = _arrow_type(kind)
    try:
        return pa.array(values, type=target)
    except pa.ArrowInvalid:
        return pa.array(values).cast(target, safe=safe)


def _arrow_type(kind: spark.DataType) -> Any:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, timezone="UTC")


def _column(batch: pa.RecordBatch, name: str) -> pa.Array[Any]:
    if name not in batch.schema.names:
        raise OptionError(
            f"mapInArrow: the result lacks the column {name} of the schema. It has "
            f"{', '.join(batch.schema.names) or 'none'}."
        )
    return batch.column(name)


def jvm_result(kind: spark.DataType) -> Converter:
    """A function that converts a result for the type `kind`; null stays null."""
    convert = _converter(kind)
    return lambda value: None if value is None else convert(value)


def _converter(kind: spark.DataType) -> Converter:
    if wanted := _CLASSES.get(type(kind)):
        return lambda value: value if isinstance(value, wanted) else None
    match kind:
        case spark.ByteType() | spark.ShortType() | spark.IntegerType() | spark.LongType():
            return java_integer(_BITS[type(kind)])
        case spark.DecimalType():
            return _decimal(kind)
        case spark.StringType():
            return java_text
        case spark.BinaryType():
            return java_bytes
        case spark.TimestampType():
            return lambda value: (  # without a zone it is a local time
                value.astimezone(datetime.UTC) if isinstance(value, datetime.datetime) else None
            )
        case spark.ArrayType():
            element = jvm_result(kind.elementType)
            return lambda value: (
                [element(item) for item in value] if isinstance(value, list | tuple) else None
            )
        case spark.MapType():
            key, item = jvm_result(kind.keyType), jvm_result(kind.valueType)
            return lambda value: (
                [(key(entry), item(value[entry])) for entry in value]
                if isinstance(value, dict)
                else None
            )
        case spark.StructType():
            return _struct(kind)
    return lambda value: value


def _decimal(kind: spark.DecimalType) -> Converter:
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


def _struct(kind: spark.StructType) -> Converter:
    converters = [jvm_result(field.dataType) for field in kind.fields]
    names = kind.names

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            value = tuple(value.get(name) for name in names)
        if not isinstance(value, tuple | list):
            return None
        return {name: form(item) for name, form, item in zip(names, converters, value, strict=True)}

    return convert
