"""Dates and times. Pure."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.values_of import constant

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


def _truncate(call: Call, unit: Value, value: Value) -> Value:
    names = {"mm": "month", "mon": "month", "yyyy": "year", "yy": "year", "dd": "day"}
    unit_name = str(constant(call, unit)).lower()
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


def _as_int(name: str) -> Function:
    def apply(call: Call, value: Value) -> Value:
        return pc.cast(pc.call_function(name, [_local(call, value)]), pa.int32())

    return apply


def _local(call: Call, value: Value) -> Value:
    """A timestamp in the session's time zone."""
    zone = call.extra.get("zone")
    return pc.cast(value, pa.timestamp("us", zone)) if zone else value


FUNCTIONS: dict[str, Function] = {
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
