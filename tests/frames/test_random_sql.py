"""Random expressions, plans and programs have Spark's results; `make fuzz-sql` runs many more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.fuzz_sql.both_sides import quiet
from tests.fuzz_sql.expression_search import ExpressionSearch, Tally
from tests.fuzz_sql.plan_search import PlanSearch
from tests.fuzz_sql.programs import ProgramSearch
from tests.spark.sessions import session_with

from epochal.connectors.file.file_sink import FileSink
from epochal.connectors.file.staged_batches import StagedBatchSink
from epochal.continuous.operators.stateless.row_operators import Project

PARTS = range(10)
"""Seeds are split into so many parts. Every day the first of them is run."""


@pytest.fixture(scope="module")
def expressions() -> Iterator[ExpressionSearch]:
    with quiet():
        yield ExpressionSearch(session_with({}))


@pytest.fixture(scope="module")
def plans() -> Iterator[PlanSearch]:
    with quiet():
        yield PlanSearch(session_with({}))


@pytest.fixture(scope="module")
def programs() -> Iterator[ProgramSearch]:
    with quiet():
        yield ProgramSearch(session_with({}))


@pytest.mark.parametrize("part", PARTS)
def test_random_expressions_have_the_values_of_spark(
    expressions: ExpressionSearch, part: int
) -> None:
    tally = Tally()
    expressions.run(part, tally, count=150)
    assert [str(difference) for difference in tally.differences] == []
    assert tally.equal > 50


@pytest.mark.parametrize("part", PARTS)
def test_random_plans_have_the_rows_of_spark(plans: PlanSearch, part: int) -> None:
    for seed in range(6 * part, 6 * part + 6):
        found = plans.run(seed) or plans.run_both_forms(seed)
        assert found is None, str(found)
    assert plans.refused == []


@pytest.mark.parametrize("part", PARTS)
def test_random_programs_have_the_rows_of_spark(programs: ProgramSearch, part: int) -> None:
    for seed in range(2 * part, 2 * part + 2):
        found = programs.run(seed)
        assert found is None, str(found)


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


SINKS: dict[str, Any] = {"a lost epoch": StagedBatchSink, "lost files": FileSink}


@pytest.mark.parametrize("fault", SINKS)
def test_random_programs_find_a_planted_fault(
    programs: ProgramSearch, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = SINKS[fault].commit

    def faulty(self: Any, epoch: int, messages: Any) -> None:
        if epoch % 2 == 0:
            commit(self, epoch, messages)

    monkeypatch.setattr(SINKS[fault], "commit", faulty)
    assert any(programs.run(seed) for seed in range(20)), fault
