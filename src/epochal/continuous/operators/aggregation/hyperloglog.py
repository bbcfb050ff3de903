"""`approx_count_distinct`: HyperLogLog++ with the registers that Spark keeps. Pure.

A value's hash chooses a register, and the register keeps the largest number of leading zeros seen
in the rest of the hash. Each long of the state holds ten registers of six bits. In memory, the
registers are an array of bytes.

Note: the estimate needs tables of measured biases, two hundred numbers for each precision. The plan
carries those of its precision, as Spark has them (`extra["biases"]`, see `bias_tables`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.continuous.operators.aggregation.calls import AggregateCall, Fold
from epochal.errors import OptionError
from epochal.state.rows.arrow_types import spark_schema
from epochal.state.rows.types import AtomicType, StructField
from epochal.state.rows.xxhash64 import xxhash64_columns

Registers: TypeAlias = npt.NDArray[np.uint8]
Biases: TypeAlias = tuple[Sequence[float], Sequence[float]]
"""Raw estimates in ascending order, and the bias at each."""

DEFAULT_DEVIATION = 0.05
MIN_PRECISION, MAX_TABLE_PRECISION = 4, 18

_BITS = 6
_PER_WORD = 64 // _BITS
_NEIGHBOURS = 6
"""How many measured biases around an estimate are averaged."""
_THRESHOLDS = (
    *(10, 20, 40, 80, 220, 400, 900, 1800, 3100, 6500),
    *(15500, 20000, 50000, 120000, 350000),
)
"""For each precision from 4 on, up to which number of values empty registers are counted."""


def precision_of(deviation: float) -> int:
    """How many bits of the hash choose the register, for a relative standard deviation."""
    found = math.ceil(2.0 * math.log(1.106 / deviation) / math.log(2.0))
    if found < MIN_PRECISION:
        raise OptionError(
            f"approx_count_distinct has a relative standard deviation of {deviation}, but at most "
            f"0.39 is possible"
        )
    return found


def bias_tables(jvm: Any, deviation: float) -> Biases | None:
    """Read the tables of Spark for a plan (`extra["biases"]`). `jvm` is py4j's view of its JVM."""
    precision = precision_of(deviation)
    if precision > MAX_TABLE_PRECISION:
        return None
    util = jvm.org.apache.spark.sql.catalyst.util
    helper = getattr(getattr(util, "HyperLogLogPlusPlusHelper$"), "MODULE$")
    place = precision - MIN_PRECISION
    estimates, biases = helper.RAW_ESTIMATE_DATA()[place], helper.BIAS_DATA()[place]
    return tuple(map(float, estimates)), tuple(map(float, biases))


def approximate_distinct(call: AggregateCall, kinds: Sequence[pa.DataType]) -> Fold:
    """The approximate number of different values."""
    precision = precision_of(float(call.extra.get("relativeSD", DEFAULT_DEVIATION)))
    size = 1 << precision
    words = size // _PER_WORD + 1
    biases: Biases | None = call.extra.get("biases")
    if biases is None and precision <= MAX_TABLE_PRECISION:
        raise OptionError(
            f"{call.function} needs Spark's bias tables in extra['biases']; see bias_tables"
        )
    schema = spark_schema(pa.schema([pa.field("value", kinds[0])]))

    def values(columns: Sequence[Any]) -> Sequence[Any]:
        (column,) = columns
        hashes = xxhash64_columns([column], schema).view(np.uint64)
        places, zeros = _registers(hashes, precision)
        pairs = list(zip(places.tolist(), zeros.tolist(), strict=True))
        if not column.null_count:
            return pairs
        valid = column.is_valid().to_pylist()
        return [pair if there else None for pair, there in zip(pairs, valid, strict=True)]

    def update(kept: Registers, value: tuple[int, int] | None) -> Registers:
        if value is not None and value[1] > kept[value[0]]:
            kept[value[0]] = value[1]
        return kept

    def merge(a: Registers, b: Registers) -> Registers:
        return np.maximum(a, b, out=a)

    return Fold(
        fields=tuple(StructField(f"MS[{i}]", AtomicType("long")) for i in range(words)),
        new=lambda: np.zeros(size, np.uint8),
        update=update,
        merge=merge,
        results=lambda kept: [_estimate(each, precision, biases) for each in kept],
        store=lambda kept: _packed(kept, words),
        load=lambda row: _unpacked(row, size),
        values=values,
    )


def _registers(
    hashes: npt.NDArray[np.uint64], precision: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """For each hash its register, and one more than the leading zeros of the remaining bits."""
    places = hashes >> np.uint64(64 - precision)
    rest = hashes << np.uint64(precision) | np.uint64(1 << (precision - 1))
    zeros = np.zeros(len(hashes), np.int64)
    for shift in (32, 16, 8, 4, 2, 1):
        empty = rest >> np.uint64(64 - shift) == 0
        zeros[empty] += shift
        rest[empty] <<= np.uint64(shift)
    return places, zeros + 1


def _packed(registers: Registers, words: int) -> tuple[int, ...]:
    padded = np.zeros(words * _PER_WORD, np.uint64)
    padded[: len(registers)] = registers
    shifts = np.arange(_PER_WORD, dtype=np.uint64) * np.uint64(_BITS)
    found = np.bitwise_or.reduce(padded.reshape(words, _PER_WORD) << shifts, axis=1)
    return tuple(found.view(np.int64).tolist())


def _unpacked(row: Sequence[int], size: int) -> Registers:
    words = np.array(row, np.int64).view(np.uint64)
    shifts = np.arange(_PER_WORD, dtype=np.uint64) * np.uint64(_BITS)
    found = words[:, None] >> shifts & np.uint64((1 << _BITS) - 1)
    return found.astype(np.uint8).ravel()[:size].copy()


def _estimate(registers: Registers, precision: int, biases: Biases | None) -> int:
    size = 1 << precision
    inverse = 0.0
    for zeros in registers.tolist():  # one by one, because the order decides the last bits
        inverse += 1.0 / (1 << zeros)
    raw = _alpha(precision, size) * size * size / inverse
    empty = float(np.count_nonzero(registers == 0))
    if empty > 0:
        counted = size * math.log(size / empty)
        has_table = precision <= MAX_TABLE_PRECISION
        if (has_table and counted <= _THRESHOLDS[precision - MIN_PRECISION]) or raw <= 2.5 * size:
            return math.floor(counted + 0.5)
    if biases is not None and raw < 5.0 * size:
        raw -= _bias(raw, biases)
    return math.floor(raw + 0.5)


def _alpha(precision: int, size: int) -> float:
    return {4: 0.673, 5: 0.697, 6: 0.709}.get(precision, 0.7213 / (1.0 + 1.079 / size))


def _bias(raw: float, biases: Biases) -> float:
    """The mean of the biases measured at the nearest raw estimates."""
    estimates, measured = biases
    nearest = bisect_left(estimates, raw)
    low = max(nearest - _NEIGHBOURS + 1, 0)
    high = min(low + _NEIGHBOURS, len(estimates))
    while high < len(estimates) and (raw - estimates[high]) ** 2 < (raw - estimates[low]) ** 2:
        low += 1
        high += 1
    total = 0.0
    for each in measured[low:high]:
        total += each
    return total / (high - low)
