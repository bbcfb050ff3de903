"""Spark's CAST of one value, for each pair of types. Pure.

`caster` returns a function of one Python value, in the form of `row_values`. The function raises
`NoValue` for a value that ANSI mode makes an error; it returns None for one that becomes null.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from decimal import ROUND_DOWN, Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Mode
from epochal.continuous.operators.expressions.row_values import Kind
from epochal.continuous.operators.spark_values.number_texts import (
    BLANKS,
    EXACT,
    decimal_of,
    decimal_of_double,
    double_of,
    fit_decimal,
    java_text,
    long_of,
    round_to_single,
)
from epochal.continuous.operators.spark_values.timestamp_texts import (
    DAY,
    SECOND,
    date_text,
    days_of,
    local_micros_of,
    local_of_utc,
    micros_of,
    timestamp_text,
    utc_of_local,
)
from epochal.errors import OptionError

types = pa.types
Cast: TypeAlias = Callable[[Any], Any]

_TRUE = ("t", "true", "y", "yes", "1")
_FALSE = ("f", "false", "n", "no", "0")
_LONG = 2**63


class NoValue(Exception):
    """A value has no counterpart in the other type, and ANSI mode makes that an error."""


def caster(source: Kind, target: Kind, mode: Mode, zone: str) -> Cast:
    """The cast from one type to another. Local times are in `zone`."""
    ansi = mode != "legacy"
    if source == target:
        return lambda value: value
    if types.is_null(source):
        return lambda value: None
    if types.is_nested(target):
        return _nested(source, target, mode, zone)
    if types.is_string(target):
        return text_of(source, zone, plain=ansi)
    for is_target, make in _MAKERS:
        if is_target(target):
            made = make(source, target, ansi, zone)
            if made is not None:
                return made
    raise OptionError(
        f"A cast from {source} to {target} is not supported. Compute it in map_in_arrow instead."
    )


def _strict(function: Cast, *, ansi: bool) -> Cast:
    """In ANSI mode, a result of None is an error."""
    if not ansi:
        return function

    def apply(value: Any) -> Any:
        found = function(value)
        if found is None:
            raise NoValue(value)
        return found

    return apply


def _to_integer(source: Kind, target: Kind, ansi: bool, zone: str) -> Cast | None:
    bits: int = target.bit_width
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def fit(number: int) -> int | None:
        return number if low <= number <= high else None

    def wrap(number: int) -> int:
        return (number - low) % (1 << bits) + low

    if types.is_string(source):

        def parse(text: str) -> int | None:
            number = long_of(text, fraction=not ansi)
            return None if number is None else fit(number)

        return _strict(parse, ansi=ansi)
    if types.is_boolean(source):
        return int
    if types.is_date(source):
        return lambda value: None
    if types.is_timestamp(source):
        return _strict(lambda micros: fit(micros // SECOND), ansi=ansi)
    if types.is_integer(source):
        return _strict(fit, ansi=True) if ansi else wrap
    if types.is_decimal(source):
        if ansi:
            return _strict(lambda value: fit(int(value)), ansi=True)
        return lambda value: wrap(int(value))
    if types.is_floating(source):
        if ansi:
            return _strict(lambda value: whole_of(value, low, high), ansi=True)
        return lambda value: wrap(saturated(value, max(bits, 32)))
    return None


def whole_of(value: float, low: int, high: int) -> int | None:
    """The whole part of a double; None if it is not between two numbers."""
    if not math.isfinite(value) or math.floor(value) > float(high) or math.ceil(value) < low:
        return None
    return min(int(value), high)


def saturated(value: float, bits: int) -> int:
    """Java's conversion of a double: NaN is 0, and what is too large becomes the largest number."""
    if math.isnan(value):
        return 0
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    if math.isinf(value):
        return high if value > 0 else low
    return max(low, min(high, int(value)))


def _to_floating(source: Kind, target: Kind, ansi: bool, zone: str) -> Cast | None:
    narrow = round_to_single if target == pa.float32() else float
    if types.is_string(source):

        def parse(text: str) -> float | None:
            number = double_of(text)
            return None if number is None else narrow(number)

        return _strict(parse, ansi=ansi)
    if types.is_date(source):
        return lambda value: None
    if types.is_timestamp(source):
        return lambda micros: narrow(micros / 1e6)
    return lambda value: narrow(float(value))


def _to_decimal(source: Kind, target: Kind, ansi: bool, zone: str) -> Cast | None:
    def fit(number: Decimal) -> Decimal | None:
        return fit_decimal(number, target.precision, target.scale)

    if types.is_string(source):

        def parse(text: str) -> Decimal | None:
            number = decimal_of(text)
            return None if number is None else fit(number)

        return _strict(parse, ansi=ansi)
    if types.is_date(source):
        return lambda value: None
    if types.is_timestamp(source):
        return _strict(lambda micros: fit(Decimal(micros).scaleb(-6, EXACT)), ansi=ansi)
    if types.is_floating(source):
        strict = _strict(fit, ansi=ansi)

        def convert(value: float) -> Decimal | None:
            number = decimal_of_double(value)
            return None if number is None else strict(number)

        return convert
    return _strict(lambda value: fit(Decimal(value)), ansi=ansi)


def _to_boolean(source: Kind, target: Kind, ansi: bool, zone: str) -> Cast | None:
    if types.is_string(source):

        def parse(text: str) -> bool | None:
            word = text.strip(BLANKS).lower()
            return True if word in _TRUE else False if word in _FALSE else None

        return _strict(parse, ansi=ansi)
    if types.is_date(source):
        return lambda value: None
    return lambda value: value != 0


def _to_date(source: Kind, target: Kind, ansi: bool, zone: str) -> Cast | None:
    if types.is_string(source):
        return _strict(days_of, ansi=ansi)
    if types.is_timestamp(source):
        if source.tz is None:
            return lambda micros: micros // DAY
        return lambda micros: local_of_utc(micros, zone) // DAY
    return None


def _to_timestamp(source: Kind, target: Kind, ansi: bool, zone: str) -> Cast | None:
    if target.tz is None:
        return _to_local_timestamp(source, zone, ansi=ansi)
    if types.is_string(source):
        return _strict(lambda text: _in_range(micros_of(text, zone)), ansi=ansi)
    if types.is_boolean(source):
        return int
    if types.is_date(source):
        return lambda days: utc_of_local(days * DAY, zone)
    if types.is_timestamp(source):
        return lambda local: utc_of_local(local, zone)
    if types.is_integer(source):
        return lambda seconds: max(-_LONG, min(_LONG - 1, seconds * SECOND))
    if types.is_decimal(source):
        return lambda seconds: _wrapped(
            int(EXACT.multiply(seconds, Decimal(SECOND)).to_integral_value(ROUND_DOWN, EXACT))
        )
    if types.is_floating(source):
        if ansi:
            return _strict(lambda seconds: whole_of(seconds * 1e6, -_LONG, _LONG - 1), ansi=True)
        return lambda s: saturated(s * 1e6, 64) if math.isfinite(s) else None
    return None


def _wrapped(number: int) -> int:
    return (number + _LONG) % (2 * _LONG) - _LONG


def _in_range(micros: int | None) -> int | None:
    return micros if micros is not None and -_LONG <= micros < _LONG else None


def _to_local_timestamp(source: Kind, zone: str, *, ansi: bool) -> Cast | None:
    if types.is_string(source):
        return _strict(lambda text: _in_range(local_micros_of(text)), ansi=ansi)
    if types.is_date(source):
        return lambda days: days * DAY
    if types.is_timestamp(source):
        return lambda micros: local_of_utc(micros, zone)
    return None


def _to_binary(source: Kind, target: Kind, ansi: bool, zone: str) -> Cast | None:
    if types.is_string(source):
        return str.encode
    if types.is_integer(source):
        return lambda value: value.to_bytes(source.bit_width // 8, "big", signed=True)
    return None


_MAKERS: list[tuple[Callable[[Kind], bool], Callable[..., Cast | None]]] = [
    (types.is_integer, _to_integer),
    (types.is_floating, _to_floating),
    (types.is_decimal, _to_decimal),
    (types.is_boolean, _to_boolean),
    (types.is_date, _to_date),
    (types.is_timestamp, _to_timestamp),
    (types.is_binary, _to_binary),
]


def text_of(source: Kind, zone: str, *, plain: bool) -> Cast:
    """The cast to text. Without `plain`, a small decimal prints as `1E-7`."""
    inner = functools.partial(text_of, zone=zone, plain=plain)
    if types.is_floating(source):
        return functools.partial(java_text, single=source == pa.float32())
    if types.is_boolean(source):
        return lambda value: "true" if value else "false"
    if types.is_date(source):
        return date_text
    if types.is_timestamp(source):
        if source.tz is None:
            return timestamp_text
        return lambda micros: timestamp_text(local_of_utc(micros, zone))
    if types.is_decimal(source):
        return (lambda value: f"{value:f}") if plain else str
    if types.is_binary(source):
        return lambda value: value.decode(errors="replace")
    if types.is_list(source):
        return functools.partial(_list_text, inner(source.value_type))
    if types.is_map(source):
        return functools.partial(_map_text, inner(source.key_type), inner(source.item_type))
    if types.is_struct(source):
        casts = [inner(source.field(i).type) for i in range(source.num_fields)]
        return functools.partial(_struct_text, casts)
    if types.is_string(source) or types.is_integer(source):
        return str
    if types.is_null(source):
        return lambda value: "null"
    raise OptionError(
        f"A cast from {source} to string is not supported. Compute it in map_in_arrow instead."
    )


def _list_text(cast: Cast, values: list[Any]) -> str:
    return "[" + ", ".join("null" if v is None else cast(v) for v in values) + "]"


def _map_text(key: Cast, item: Cast, pairs: list[tuple[Any, Any]]) -> str:
    texts = (f"{key(k)} -> {'null' if v is None else item(v)}" for k, v in pairs)
    return "{" + ", ".join(texts) + "}"


def _struct_text(casts: list[Cast], row: dict[str, Any]) -> str:
    texts = ("null" if v is None else c(v) for c, v in zip(casts, row.values(), strict=True))
    return "{" + ", ".join(texts) + "}"


def or_null(function: Cast) -> Cast:
    """The cast with null instead of an error, as try_cast has it."""

    def apply(value: Any) -> Any:
        try:
            return function(value)
        except NoValue:
            return None

    return apply


def _nested(source: Kind, target: Kind, mode: Mode, zone: str) -> Cast:
    inner = functools.partial(caster, mode=mode, zone=zone)

    def member(source: Kind, target: Kind) -> Cast:
        cast = inner(source, target)
        safe = or_null(cast) if mode == "try" else cast
        return lambda value: None if value is None else safe(value)

    if types.is_map(target):
        key = inner(source.key_type, target.key_type)
        item = member(source.item_type, target.item_type)
        return lambda pairs: [(key(k), item(v)) for k, v in pairs]
    if types.is_list(target):
        element = member(source.value_type, target.value_type)
        return lambda values: [element(v) for v in values]
    casts = [member(source.field(i).type, target.field(i).type) for i in range(target.num_fields)]
    names = [target.field(i).name for i in range(target.num_fields)]

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        values = (c(v) for c, v in zip(casts, row.values(), strict=True))
        return dict(zip(names, values, strict=True))

    return convert
