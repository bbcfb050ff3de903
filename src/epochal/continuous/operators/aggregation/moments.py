"""Variance, skewness, covariance and correlation, with the buffers that Spark keeps for them. Pure.

Buffers hold the number of values, their mean, and sums of powers of their distance from it. Rows
and buffers are combined by the formulas of Spark, in the same order of operations, so that equal
input in equal order gives equal bits. Another order of rows may change the last bits, as it does in
Spark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.continuous.operators.aggregation.calls import AggregateCall, Fold
from epochal.errors import StateValueError
from epochal.state.rows.types import AtomicType, StructField

Moments: TypeAlias = tuple[float, ...]
"""n, avg, m2, m3, m4: as many as the function needs."""
Maker: TypeAlias = Callable[[AggregateCall, Sequence[pa.DataType]], Fold]

_DOUBLE = AtomicType("double")
_COVARIANCE = ("n", "xAvg", "yAvg", "ck")
_CORRELATION = (*_COVARIANCE, "xMk", "yMk")
_VARIANCE = ("n", "avg", "m2")


def variance(*, samples: bool, root: bool) -> Maker:
    """Variance or standard deviation, of samples or of everything there is."""

    def result(call: AggregateCall, kept: Moments) -> float | None:
        n, _, m2 = kept
        if n == 0.0:
            return None
        if samples and n == 1.0:
            return _of_single(call)
        found = m2 / (n - 1.0 if samples else n)
        return _sqrt(found) if root else found

    return _moments(_VARIANCE, result)


def _skewness(call: AggregateCall, kept: Moments) -> float | None:
    n, _, m2, m3 = kept
    if n == 0.0:
        return None
    if m2 == 0.0:
        return _of_single(call)
    return _divided(call, _sqrt(n) * m3, _sqrt(m2 * m2 * m2))


def _kurtosis(call: AggregateCall, kept: Moments) -> float | None:
    n, _, m2, _, m4 = kept
    if n == 0.0:
        return None
    if m2 == 0.0:
        return _of_single(call)
    found = _divided(call, n * m4, m2 * m2)
    return None if found is None else found - 3.0


def _sum_of_squares(call: AggregateCall, kept: Moments) -> float | None:
    return None if kept[0] == 0.0 else kept[2]


def _covariance_of_all(call: AggregateCall, kept: Moments) -> float | None:
    return None if kept[0] == 0.0 else kept[3] / kept[0]


def _covariance_of_samples(call: AggregateCall, kept: Moments) -> float | None:
    if kept[0] == 0.0:
        return None
    return _of_single(call) if kept[0] == 1.0 else kept[3] / (kept[0] - 1.0)


def _sum_of_products(call: AggregateCall, kept: Moments) -> float | None:
    return None if kept[0] == 0.0 else kept[3]


def _correlation(call: AggregateCall, kept: Moments) -> float | None:
    n, _, _, ck, x, y = kept
    if n == 0.0:
        return None
    if n == 1.0:
        return _of_single(call)
    return None if x == 0.0 or y == 0.0 else _divided(call, ck, _sqrt(x * y))


def _determination(call: AggregateCall, kept: Moments) -> float | None:
    """The square of the correlation. The dependent variable comes first."""
    _, _, _, ck, x, y = kept
    if y == 0.0:
        return None
    if x == 0.0:
        return 1.0
    found = _divided(call, ck, _sqrt(x * y))
    return None if found is None else found * found


def _slope(call: AggregateCall, kept: Moments) -> float | None:
    ck, m2 = kept[3], kept[6]
    return None if m2 == 0.0 else ck / m2


def _intercept(call: AggregateCall, kept: Moments) -> float | None:
    _, x_avg, y_avg, ck, _, _, m2 = kept
    return None if m2 == 0.0 else y_avg - ck / m2 * x_avg


def _moments(
    names: Sequence[str], result: Callable[[AggregateCall, Moments], float | None]
) -> Maker:
    order = len(names) - 1

    def update(kept: Moments, value: Any) -> Moments:
        return kept if value is None else _with_value(kept, float(value), order)

    def merge(a: Moments, b: Moments) -> Moments:
        return _merged(a, b, order)

    return _doubles(names, update, merge, result)


def _with_value(kept: Moments, value: float, order: int) -> Moments:
    n = kept[0] + 1.0
    delta = value - kept[1]
    delta_n = delta / n
    m2 = kept[2] + delta * (delta - delta_n)
    if order == 2:
        return (n, kept[1] + delta_n, m2)
    delta2, delta_n2 = delta * delta, delta_n * delta_n
    m3 = kept[3] - 3.0 * delta_n * m2 + delta * (delta2 - delta_n2)
    if order == 3:
        return (n, kept[1] + delta_n, m2, m3)
    m4 = (
        kept[4]
        - 4.0 * delta_n * m3
        - 6.0 * delta_n2 * m2
        + delta * (delta * delta2 - delta_n * delta_n2)
    )
    return (n, kept[1] + delta_n, m2, m3, m4)


def _merged(a: Moments, b: Moments, order: int) -> Moments:
    n1, n2 = a[0], b[0]
    n, delta, delta_n, avg = _joint(n1, n2, a[1], b[1])
    m2 = a[2] + b[2] + delta * delta_n * n1 * n2
    if order == 2:
        return (n, avg, m2)
    m3 = (
        a[3]
        + b[3]
        + delta_n * delta_n * delta * n1 * n2 * (n1 - n2)
        + 3.0 * delta_n * (n1 * b[2] - n2 * a[2])
    )
    if order == 3:
        return (n, avg, m2, m3)
    m4 = (
        a[4]
        + b[4]
        + delta_n * delta_n * delta_n * delta * n1 * n2 * (n1 * n1 - n1 * n2 + n2 * n2)
        + 6.0 * delta_n * delta_n * (n1 * n1 * b[2] + n2 * n2 * a[2])
        + 4.0 * delta_n * (n1 * b[3] - n2 * a[3])
    )
    return (n, avg, m2, m3, m4)


def _joint(n1: float, n2: float, avg1: float, avg2: float) -> tuple[float, float, float, float]:
    """Number and mean of two sets together, the distance of their means, and that per value."""
    n = n1 + n2
    # The distance counts as 0 if one set is empty. Otherwise it could overflow, and infinity
    # times the number 0 is NaN.
    delta = 0.0 if n1 == 0.0 or n2 == 0.0 else avg2 - avg1
    delta_n = 0.0 if n == 0.0 else delta / n
    if n1 == 0.0:
        return n, delta, delta_n, avg2
    return n, delta, delta_n, avg1 if n2 == 0.0 else avg1 + delta_n * n2


def _pairs(names: Sequence[str], result: Callable[[AggregateCall, Moments], float | None]) -> Maker:
    both = len(names) > len(_COVARIANCE)

    def update(kept: Moments, pair: tuple[Any, Any]) -> Moments:
        return kept if None in pair else _with_pair(kept, pair[0], pair[1], both=both)

    def merge(a: Moments, b: Moments) -> Moments:
        return _merged_pairs(a, b, both=both)

    return _doubles(names, update, merge, result)


def _with_pair(kept: Moments, x: float, y: float, *, both: bool) -> Moments:
    n = kept[0] + 1.0
    dx, dy = x - kept[1], y - kept[2]
    x_avg, y_avg = kept[1] + dx / n, kept[2] + dy / n
    ck = kept[3] + dx * (y - y_avg)
    if not both:
        return (n, x_avg, y_avg, ck)
    return (n, x_avg, y_avg, ck, kept[4] + dx * (x - x_avg), kept[5] + dy * (y - y_avg))


def _merged_pairs(a: Moments, b: Moments, *, both: bool) -> Moments:
    n1, n2 = a[0], b[0]
    n, dx, dx_n, x_avg = _joint(n1, n2, a[1], b[1])
    _, dy, dy_n, y_avg = _joint(n1, n2, a[2], b[2])
    ck = a[3] + b[3] + dx * dy_n * n1 * n2
    if not both:
        return (n, x_avg, y_avg, ck)
    x_mk = a[4] + b[4] + dx * dx_n * n1 * n2
    y_mk = a[5] + b[5] + dy * dy_n * n1 * n2
    return (n, x_avg, y_avg, ck, x_mk, y_mk)


def _regression(result: Callable[[AggregateCall, Moments], float | None]) -> Maker:
    """The line through pairs of y and x: their covariance, and the variance of x."""

    def update(kept: Moments, pair: tuple[Any, Any]) -> Moments:
        y, x = pair
        if y is None or x is None:
            return kept
        return (*_with_pair(kept[:4], x, y, both=False), *_with_value(kept[4:], x, 2))

    def merge(a: Moments, b: Moments) -> Moments:
        return (*_merged_pairs(a[:4], b[:4], both=False), *_merged(a[4:], b[4:], 2))

    return _doubles((*_COVARIANCE, *_VARIANCE), update, merge, result)


def _doubles(
    names: Sequence[str],
    update: Callable[[Moments, Any], Moments],
    merge: Callable[[Moments, Moments], Moments],
    result: Callable[[AggregateCall, Moments], float | None],
) -> Maker:
    fields = tuple(StructField(name, _DOUBLE) for name in names)
    empty = (0.0,) * len(fields)

    def fold(call: AggregateCall, kinds: Sequence[pa.DataType]) -> Fold:
        return Fold(
            fields=fields,
            new=lambda: empty,
            update=update,
            merge=merge,
            results=lambda kept: [result(call, each) for each in kept],
        )

    return fold


def _of_single(call: AggregateCall) -> float | None:
    """The result for values whose number or distance does not allow a division."""
    return None if call.extra.get("nullOnDivideByZero", True) else math.nan


def _sqrt(value: float) -> float:
    return math.nan if value < 0 else math.sqrt(value)


def _divided(call: AggregateCall, above: float, below: float) -> float | None:
    if below != 0.0:
        return above / below
    if call.mode == "ansi":
        raise StateValueError(call.arguments[0], "double", f"{call.function} divides by zero")
    return None


FUNCTIONS: dict[str, Maker] = {
    "StddevSamp": variance(samples=True, root=True),
    "StddevPop": variance(samples=False, root=True),
    "VarianceSamp": variance(samples=True, root=False),
    "VariancePop": variance(samples=False, root=False),
    "RegrReplacement": _moments(_VARIANCE, _sum_of_squares),
    "Skewness": _moments((*_VARIANCE, "m3"), _skewness),
    "Kurtosis": _moments((*_VARIANCE, "m3", "m4"), _kurtosis),
    "CovPopulation": _pairs(_COVARIANCE, _covariance_of_all),
    "CovSample": _pairs(_COVARIANCE, _covariance_of_samples),
    "RegrSXY": _pairs(_COVARIANCE, _sum_of_products),
    "Corr": _pairs(_CORRELATION, _correlation),
    "RegrR2": _pairs(_CORRELATION, _determination),
    "RegrSlope": _regression(_slope),
    "RegrIntercept": _regression(_intercept),
}
