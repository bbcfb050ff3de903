"""Random expressions and plans have the results of Spark. `make fuzz-sql` runs many more seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.fuzz_sql.both_sides import quiet
from tests.fuzz_sql.expression_search import ExpressionSearch, Tally
from tests.fuzz_sql.plan_search import PlanSearch
from tests.spark.sessions import session_with

from epochal.continuous.operators.stateless.row_operators import Project

EVERYDAY_SECONDS = 30.0
"""For how long new seeds are begun."""


@pytest.fixture(scope="module")
def expressions() -> Iterator[ExpressionSearch]:
    with quiet():
        yield ExpressionSearch(session_with({}))


@pytest.fixture(scope="module")
def plans() -> Iterator[PlanSearch]:
    with quiet():
        yield PlanSearch(session_with({}))


def test_random_expressions_have_the_values_of_spark(expressions: ExpressionSearch) -> None:
    tally = Tally()
    for seed in _until(EVERYDAY_SECONDS):
        expressions.run(seed, tally)
    assert [str(difference) for difference in tally.differences] == []
    assert tally.equal > 50


def test_random_plans_have_the_rows_of_spark(plans: PlanSearch) -> None:
    for seed in _until(EVERYDAY_SECONDS):
        found = plans.run(seed)
        assert found is None, str(found)
    assert plans.refused == []


def _until(seconds: float) -> Iterator[int]:
    """Seeds, until the time is over."""
    end = time.monotonic() + seconds
    seed = 0
    while time.monotonic() < end:
        yield seed
        seed += 1


def _rounded(column: Any) -> Any:
    """Numbers that are one bit too large."""
    if not pa.types.is_float64(column.type):
        return column
    values = column.to_numpy(zero_copy_only=False)
    return pa.array(np.nextafter(values, np.inf), pa.float64(), mask=np.asarray(column.is_null()))


def _without_nulls(column: Any) -> Any:
    return column.fill_null(0) if pa.types.is_integer(column.type) else column


def _swapped(columns: list[Any]) -> list[Any]:
    """Two columns of one type in each other's place."""
    for number in range(1, len(columns)):
        if columns[number].type == columns[number - 1].type:
            columns[number - 1 : number + 1] = columns[number], columns[number - 1]
            break
    return columns


FAULTS: dict[str, Callable[[pa.RecordBatch], pa.RecordBatch]] = {
    "a wrong rounding": lambda batch: _with(batch, [_rounded(c) for c in batch.columns]),
    "a dropped null": lambda batch: _with(batch, [_without_nulls(c) for c in batch.columns]),
    "a swapped column": lambda batch: _with(batch, _swapped(list(batch.columns))),
    "a lost row": lambda batch: batch.slice(0, max(batch.num_rows - 1, 0)),
}


def _with(batch: pa.RecordBatch, columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema) if columns else batch


@pytest.fixture
def planted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fault in the operator that computes columns."""
    fault, process = FAULTS[request.param], Project.process

    def faulty(self: Project, *arguments: Any) -> Any:
        return [fault(batch) for batch in process(self, *arguments)]

    monkeypatch.setattr(Project, "process", faulty)
    return str(request.param)


@pytest.mark.parametrize("planted", FAULTS, indirect=True)
def test_random_expressions_find_a_planted_fault(
    expressions: ExpressionSearch, planted: str
) -> None:
    for seed in range(5):
        tally = Tally()
        expressions.run(seed, tally, count=30, depth=1)
        if tally.differences:
            return
    raise AssertionError(f"{planted} was not found")


@pytest.mark.parametrize("planted", FAULTS, indirect=True)
def test_random_plans_find_a_planted_fault(plans: PlanSearch, planted: str) -> None:
    assert any(plans.run(seed) for seed in range(60)), planted
