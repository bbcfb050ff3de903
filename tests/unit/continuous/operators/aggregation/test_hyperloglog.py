"""HyperLogLog++: registers, estimates and state, without Spark."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from epochal.continuous.operators.aggregation.calls import AggregateCall
from epochal.continuous.operators.aggregation.hyperloglog import (
    approximate_distinct,
    precision_of,
)
from epochal.errors import OptionError

# Without measured biases, as far from the estimates as possible: they only matter above 400 values.
NO_BIASES = ([1.0, 2.0], [0.0, 0.0])


def call(**extra: object) -> AggregateCall:
    found = {"biases": NO_BIASES, **extra}
    return AggregateCall("HyperLogLogPlusPlus", ("v",), "n", pa.int64(), extra=found)


def test_half_as_much_deviation_needs_four_times_the_registers() -> None:
    assert [precision_of(each) for each in (0.39, 0.2, 0.1, 0.05, 0.025)] == [4, 5, 7, 9, 11]
    with pytest.raises(OptionError, match=r"at most 0\.39"):
        precision_of(0.5)


def test_few_values_are_counted_almost_exactly_and_nulls_not_at_all() -> None:
    fold = approximate_distinct(call(), [pa.int64()])
    assert fold.values is not None
    column = pa.array([None, *range(100), *range(50)], pa.int64())
    kept = fold.new()
    for value in fold.values([column]):
        kept = fold.update(kept, value)
    assert abs(fold.results([kept])[0] - 100) <= 5
    assert fold.results([fold.new()]) == [0]


def test_registers_survive_state_and_merge_in_any_order() -> None:
    rng = random.Random(1)
    fold = approximate_distinct(call(), [pa.int64()])
    assert fold.values is not None
    assert fold.store is not None
    assert fold.load is not None
    column = pa.array([rng.randrange(10**9) for _ in range(3000)], pa.int64())
    values = fold.values([column])
    whole, parts = fold.new(), [fold.new() for _ in range(3)]
    for number, value in enumerate(values):
        whole = fold.update(whole, value)
        parts[number % 3] = fold.update(parts[number % 3], value)
    merged = fold.new()
    for part in reversed(parts):
        merged = fold.merge(merged, fold.load(fold.store(part)))
    assert np.array_equal(merged, whole)
    assert len(fold.store(whole)) == len(fold.fields) == 52
    assert abs(fold.results([whole])[0] - 3000) < 300


def test_the_plan_must_bring_the_tables() -> None:
    with pytest.raises(OptionError, match="bias tables"):
        approximate_distinct(call(biases=None), [pa.int64()])
