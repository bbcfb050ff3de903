"""Evaluates column expressions over record batches with Spark's semantics. Pure.

Spark parses and resolves the text (`spark_columns.py`). This module gets a tree in which all casts
are explicit, and evaluates it with pyarrow kernels. Where Arrow and Spark differ, the result is
Spark's: nulls follow three-valued logic, NaN equals itself and is larger than any number, a
remainder has the sign of its dividend. In ANSI mode, overflow and division by zero are errors.

Note: branches of CASE and IF are evaluated only for the rows that take them. `CASE WHEN x <> 0 THEN
1 / x END` must not fail on rows where x is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.stateless.casts import cast
from epochal.errors import OptionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

Value: TypeAlias = Any
"""An Arrow array of the batch's length, or a scalar."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the batch, by its index."""

    index: int


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: pa.Scalar[Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A Spark function, by its class name, with further fields of that class in `extra`."""

    function: str
    arguments: tuple[Expr, ...]
    ansi: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)


Expr: TypeAlias = Column | Literal | Call


def evaluate(expr: Expr, batch: pa.RecordBatch) -> Value:
    """Evaluate an expression for each row of a batch."""
    match expr:
        case Column(index):
            return batch.column(index)
        case Literal(value):
            return value
        case Call("CaseWhen" | "If"):
            return _choose(expr, batch)
        case Call(function, arguments):
            values = [evaluate(each, batch) for each in arguments]
            return FUNCTIONS[function](expr, *values)


def column_of(value: Value, rows: int, kind: pa.DataType) -> Value:
    """Convert a value to a column of the type `kind` with `rows` rows."""
    value = _column(value, rows)
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    return value if value.type == kind else value.cast(kind)


def check_supported(expr: Expr, text: str) -> None:
    """Reject an unsupported function while the user still builds the query."""
    if not isinstance(expr, Call):
        return
    if expr.function not in FUNCTIONS and expr.function not in ("CaseWhen", "If"):
        raise OptionError(
            f"{text!r} uses {expr.function}, which column expressions do not support. Compute it "
            f"in map_in_arrow or map_in_pandas instead."
        )
    for each in expr.arguments:
        check_supported(each, text)


def _choose(expr: Call, batch: pa.RecordBatch) -> Value:
    arguments = expr.arguments
    pairs = list(zip(arguments[0::2], arguments[1::2], strict=False))
    otherwise = arguments[-1] if len(arguments) % 2 else None
    remaining = np.arange(batch.num_rows)  # rows that no branch has taken yet
    indexes: list[Any] = []
    parts: list[Value] = []
    for condition, result in pairs:
        subset = batch.take(remaining)
        met = _column(evaluate(condition, subset), len(remaining)).fill_null(False)
        chosen = met.to_numpy(zero_copy_only=False).astype(bool)
        _add(indexes, parts, remaining[chosen], result, batch)
        remaining = remaining[~chosen]
    if otherwise is not None:
        _add(indexes, parts, remaining, otherwise, batch)
        remaining = remaining[:0]
    if not parts:
        return pa.nulls(batch.num_rows)
    kind = next((part.type for part in parts if not pa.types.is_null(part.type)), parts[0].type)
    indexes.append(remaining)
    parts.append(pa.nulls(len(remaining), kind))
    # The parts are grouped by branch: bring the rows back into the batch's order.
    order = np.argsort(np.concatenate(indexes), kind="stable")
    return pa.concat_arrays([part.cast(kind) for part in parts]).take(order)


def _add(
    indexes: list[Any], parts: list[Value], rows: Any, result: Expr, batch: pa.RecordBatch
) -> None:
    subset = batch.take(rows)
    indexes.append(rows)
    parts.append(_column(evaluate(result, subset), len(rows)))


def _column(value: Value, rows: int) -> Value:
    repeat: Any = pa.repeat
    return repeat(value, rows) if isinstance(value, pa.Scalar) else value


def _arithmetic(checked: str, unchecked: str) -> Function:
    def apply(call: Call, *values: Value) -> Value:
        return pc.call_function(checked if call.ansi else unchecked, list(values))

    return apply


def _divide(call: Call, left: Value, right: Value) -> Value:
    if call.ansi:
        return pc.divide_checked(left, right)
    return pc.divide(left, _null_if_zero(right))


def _remainder(call: Call, left: Value, right: Value) -> Value:
    if not call.ansi:
        right = _null_if_zero(right)
    if pa.types.is_integer(left.type):
        return pc.subtract(left, pc.multiply(right, pc.divide_checked(left, right)))
    return pc.subtract(left, pc.multiply(right, pc.trunc(pc.divide_checked(left, right))))


def _null_if_zero(value: Value) -> Value:
    zero = pa.scalar(0, value.type)
    return pc.if_else(pc.equal(value, zero), pa.scalar(None, value.type), value)


def _equal(call: Call, left: Value, right: Value) -> Value:
    same = pc.equal(left, right)
    if not pa.types.is_floating(left.type):
        return same
    return pc.or_kleene(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))


def _null_safe_equal(call: Call, left: Value, right: Value) -> Value:
    same = pc.fill_null(_equal(call, left, right), pa.scalar(False))
    return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(right)))


def _greater(call: Call, left: Value, right: Value) -> Value:
    more = pc.greater(left, right)
    if not pa.types.is_floating(left.type):
        return more
    return pc.or_kleene(more, pc.and_(pc.is_nan(left), pc.invert(pc.is_nan(right))))


def _less(call: Call, left: Value, right: Value) -> Value:
    return _greater(call, right, left)


def _greater_or_equal(call: Call, left: Value, right: Value) -> Value:
    return pc.invert(_greater(call, right, left))


def _less_or_equal(call: Call, left: Value, right: Value) -> Value:
    return pc.invert(_greater(call, left, right))


def _in(call: Call, value: Value, *options: Value) -> Value:
    found: Value = pa.scalar(False)
    for option in options:
        found = pc.or_kleene(found, _equal(call, value, option))
    return found


def _between(call: Call, value: Value, lower: Value, upper: Value) -> Value:
    return pc.and_kleene(_greater_or_equal(call, value, lower), _less_or_equal(call, value, upper))


def _like(call: Call, value: Value, pattern: Value) -> Value:
    return pc.match_like(value, _constant(call, pattern))


def _regex(call: Call, value: Value, pattern: Value) -> Value:
    return pc.match_substring_regex(value, _constant(call, pattern))


def _substring(call: Call, value: Value, position: Value, length: Value) -> Value:
    start, count = int(_constant(call, position)), int(_constant(call, length))
    if pa.types.is_binary(value.type):
        cut: Any = pc.binary_slice
        if start < 0:
            raise OptionError(
                "substring of binary with a negative position is not supported. Use map_in_arrow."
            )
    else:
        cut = pc.utf8_slice_codeunits
    if start >= 0:
        first = max(start - 1, 0)
        # Spark counts positions from 1, and 0 means the same as 1.
        return cut(value, first, max(first, first + count))
    if count <= 0:
        return cut(value, 0, 0)
    return cut(value, start, start + count if start + count < 0 else None)


def _concat(call: Call, *values: Value) -> Value:
    kind = values[0].type
    empty = b"" if pa.types.is_binary(kind) else ""
    return pc.binary_join_element_wise(*values, pa.scalar(empty, kind), null_handling="emit_null")


def _round(call: Call, value: Value, digits: Value) -> Value:
    scale = int(_constant(call, digits))
    if pa.types.is_integer(value.type) and scale >= 0:
        return value
    return pc.round(value, ndigits=scale, round_mode="half_towards_infinity")


def _field(call: Call, value: Value) -> Value:
    return pc.struct_field(value, [call.extra["ordinal"]])


def _item(call: Call, value: Value, ordinal: Value) -> Value:
    index = int(_constant(call, ordinal))
    shortest = pc.min(pc.list_value_length(value)).as_py()
    if shortest is not None and not 0 <= index < shortest:
        if call.ansi:
            raise OptionError(
                f"Array index {index} is out of bounds: an array has only {shortest} elements. "
                f"Set spark.sql.ansi.enabled to false to get null instead."
            )
        rows = [row[index] if row and 0 <= index < len(row) else None for row in value.to_pylist()]
        return pa.array(rows, value.type.value_type)
    return pc.list_element(value, index)


def _lookup(call: Call, value: Value, key: Value) -> Value:
    return pc.map_lookup(value, pa.scalar(_constant(call, key), value.type.key_type), "first")


def _struct(call: Call, *values: Value) -> Value:
    names = [_constant(call, name) for name in values[0::2]]
    members = values[1::2]
    rows = next((len(each) for each in members if not isinstance(each, pa.Scalar)), 1)
    return pc.make_struct(*(_column(each, rows) for each in members), field_names=names)


def _truncate(call: Call, unit: Value, value: Value) -> Value:
    names = {"mm": "month", "mon": "month", "yyyy": "year", "yy": "year", "dd": "day"}
    unit_name = str(_constant(call, unit)).lower()
    truncated = pc.floor_temporal(_local(call, value), unit=names.get(unit_name, unit_name))
    return pc.cast(truncated, pa.timestamp("us", "UTC"))


def _since_epoch(divisor: int) -> Function:
    def apply(call: Call, value: Value) -> Value:
        micros = pc.cast(pc.cast(value, pa.timestamp("us", "UTC")), pa.int64())
        if divisor == 1:
            return micros
        whole = pc.divide(micros, divisor)
        # Arrow rounds towards zero, but Spark rounds down.
        return pc.if_else(
            pc.less(micros, pc.multiply(whole, divisor)), pc.subtract(whole, 1), whole
        )

    return apply


def _from_epoch(factor: int) -> Function:
    def apply(call: Call, value: Value) -> Value:
        micros = pc.multiply_checked(pc.cast(value, pa.int64()), factor)
        return pc.cast(micros, pa.timestamp("us", "UTC"))

    return apply


def _shift(call: Call, value: Value, interval: Value) -> Value:
    return pc.add_checked(value, pc.cast(interval, pa.duration("us")))


def _constant(call: Call, value: Value) -> Any:
    if isinstance(value, pa.Scalar):
        return value.as_py()
    raise OptionError(
        f"{call.function} needs a constant, but was given a column. Use map_in_arrow instead."
    )


def _kernel(name: str) -> Function:
    def apply(call: Call, *values: Value) -> Value:
        return pc.call_function(name, list(values))

    return apply


def _as_int(name: str) -> Function:
    def apply(call: Call, value: Value) -> Value:
        return pc.cast(pc.call_function(name, [_local(call, value)]), pa.int32())

    return apply


def _local(call: Call, value: Value) -> Value:
    """A timestamp in the session's time zone."""
    zone = call.extra.get("zone")
    return pc.cast(value, pa.timestamp("us", zone)) if zone else value


def _whole(name: str) -> Function:
    def apply(call: Call, value: Value) -> Value:
        if pa.types.is_integer(value.type):
            return pc.cast(value, pa.int64())
        return pc.cast(pc.call_function(name, [value]), pa.int64())

    return apply


Function: TypeAlias = Callable[..., Value]

FUNCTIONS: dict[str, Function] = {
    "Add": _arithmetic("add_checked", "add"),
    "Subtract": _arithmetic("subtract_checked", "subtract"),
    "Multiply": _arithmetic("multiply_checked", "multiply"),
    "UnaryMinus": _arithmetic("negate_checked", "negate"),
    "Abs": _arithmetic("abs_checked", "abs"),
    "Divide": _divide,
    "IntegralDivide": _divide,
    "Remainder": _remainder,
    "EqualTo": _equal,
    "EqualNullSafe": _null_safe_equal,
    "GreaterThan": _greater,
    "LessThan": _less,
    "GreaterThanOrEqual": _greater_or_equal,
    "LessThanOrEqual": _less_or_equal,
    "And": _kernel("and_kleene"),
    "Or": _kernel("or_kleene"),
    "Not": _kernel("invert"),
    "IsNull": lambda _, value: pc.is_null(value),
    "IsNotNull": lambda _, value: pc.is_valid(value),
    "IsNaN": lambda _, value: pc.fill_null(pc.is_nan(value), pa.scalar(False)),
    "In": _in,
    "Between": _between,
    "Like": _like,
    "RLike": _regex,
    "StartsWith": lambda call, value, part: pc.starts_with(value, _constant(call, part)),
    "EndsWith": lambda call, value, part: pc.ends_with(value, _constant(call, part)),
    "Contains": lambda call, value, part: pc.match_substring(value, _constant(call, part)),
    "Cast": lambda call, value: cast(
        value, call.extra["type"], ansi=call.ansi, zone=call.extra.get("zone", "UTC")
    ),
    "Nvl": lambda _, value: value,  # Spark has already replaced it by its child, a Coalesce
    "Coalesce": lambda _, *values: pc.coalesce(*values),
    "Greatest": lambda _, *values: pc.max_element_wise(*values, skip_nulls=True),
    "Least": lambda _, *values: pc.min_element_wise(*values, skip_nulls=True),
    "Concat": _concat,
    "Upper": _kernel("utf8_upper"),
    "Lower": _kernel("utf8_lower"),
    "Length": lambda _, value: pc.cast(
        pc.binary_length(value) if pa.types.is_binary(value.type) else pc.utf8_length(value),
        pa.int32(),
    ),
    "StringTrim": lambda _, value: pc.utf8_trim(value, " "),
    "StringTrimLeft": lambda _, value: pc.utf8_ltrim(value, " "),
    "StringTrimRight": lambda _, value: pc.utf8_rtrim(value, " "),
    "Substring": _substring,
    "Round": _round,
    "Floor": _whole("floor"),
    "Ceil": _whole("ceil"),
    "Sqrt": _kernel("sqrt"),
    "Exp": _kernel("exp"),
    "Log": lambda _, value: pc.ln(pc.if_else(pc.less_equal(value, 0.0), None, value)),
    "Pow": lambda _, base, power: pc.power(base, power),
    "GetStructField": _field,
    "GetArrayItem": _item,
    "GetMapValue": _lookup,
    "CreateNamedStruct": _struct,
    "Year": _as_int("year"),
    "Month": _as_int("month"),
    "DayOfMonth": _as_int("day"),
    "Hour": _as_int("hour"),
    "Minute": _as_int("minute"),
    "Second": _as_int("second"),
    "TruncTimestamp": _truncate,
    "UnixMicros": _since_epoch(1),
    "UnixMillis": _since_epoch(1_000),
    "UnixSeconds": _since_epoch(1_000_000),
    "SecondsToTimestamp": _from_epoch(1_000_000),
    "MillisToTimestamp": _from_epoch(1_000),
    "MicrosToTimestamp": _from_epoch(1),
    "TimestampAddInterval": _shift,
}
