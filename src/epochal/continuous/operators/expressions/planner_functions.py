"""Functions that users cannot call: Spark's analyser and optimiser write them into plans. Pure."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name


def _precise_timestamp(call: Call, value: Value) -> Value:
    """Microseconds of a timestamp, or the timestamp of microseconds: windows are computed so."""
    if pa.types.is_timestamp(value.type):
        value = value.cast(pa.timestamp("us", value.type.tz))
    if pa.types.is_timestamp(call.type):
        return value.cast(pa.int64()).cast(call.type)
    return value.cast(pa.int64())


def _normalized(call: Call, value: Value) -> Value:
    """One form of NaN, and 0.0 for -0.0, so that equal keys have equal bytes."""
    kind = value.type
    zero = pc.if_else(pc.equal(value, pa.scalar(0.0, kind)), pa.scalar(0.0, kind), value)
    return pc.if_else(pc.is_nan(zero), pa.scalar(float("nan"), kind), zero)


def _unscaled(call: Call, value: Value) -> Value:
    """The digits of a decimal as a long: 1.25 is 125."""
    scale = value.type.scale
    if isinstance(value, pa.Scalar):
        found = value.as_py()
        return pa.scalar(None if found is None else int(found.scaleb(scale)), pa.int64())
    wide = value.cast(pa.decimal128(38, scale))
    # Arrow stores the digits as 128 bits. The optimiser uses this function for at most 18 digits.
    words = np.frombuffer(wide.buffers()[1], np.int64)[2 * wide.offset :: 2][: len(wide)]
    return pa.array(words, mask=wide.is_null().to_numpy(zero_copy_only=False))


def _decimal_of_unscaled(call: Call, value: Value) -> Value:
    """The decimal with these digits. Null if there are too many, or an error in ANSI mode."""
    kind: Any = call.type
    limit = 10**kind.precision
    fits = pc.and_(
        pc.less(value, pa.scalar(min(limit, 2**63 - 1), pa.int64())),
        pc.greater(value, pa.scalar(max(-limit, -(2**63)), pa.int64())),
    )
    if call.extra.get("nullOnOverflow") is False and pc.any(pc.invert(fits)).as_py():
        raise pa.ArrowInvalid(f"[NUMERIC_VALUE_OUT_OF_RANGE] a sum does not fit into {kind}")
    kept = pc.if_else(fits, value, pa.scalar(None, pa.int64()))
    whole = kept.cast(pa.decimal128(19, 0)).cast(pa.decimal256(38, 19))
    factor = pa.scalar(Decimal(1).scaleb(-kind.scale), pa.decimal256(19, kind.scale))
    return pc.multiply(whole, factor).cast(kind)


FUNCTIONS: dict[str, Function] = {
    "PreciseTimestampConversion": _precise_timestamp,
    "NormalizeNaNAndZero": _normalized,
    "UnscaledValue": _unscaled,
    "MakeDecimal": _decimal_of_unscaled,
}
