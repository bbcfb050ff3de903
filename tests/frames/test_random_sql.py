"""Random expressions, plans and programs have Spark's results; `make fuzz-sql` runs many more."""

from __future__ import annotations

import json
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
from epochal.continuous.operators.aggregation.aggregate import Groups
from epochal.continuous.operators.aggregation.session_windows import Sessions
from epochal.continuous.operators.deduplication import DropDuplicates
from epochal.continuous.operators.joins.stream_join import StreamJoin
from epochal.continuous.operators.stateless.row_operators import Project
from epochal.epoch import durable

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


STATEFUL = (Groups, Sessions, StreamJoin, DropDuplicates)


def _plant(fault: str, patch: pytest.MonkeyPatch, *operators: Any) -> None:
    """Let the rows that operators return have a fault."""
    for operator in operators:
        for method in ("process", "expire"):
            if hasattr(operator, method):
                faulty = _faulty(getattr(operator, method), FAULTS[fault])
                patch.setattr(operator, method, faulty)


def _faulty(method: Any, fault: Callable[[pa.RecordBatch], pa.RecordBatch]) -> Any:
    return lambda *arguments: [fault(batch) for batch in method(*arguments)]


@pytest.mark.parametrize("fault", FAULTS)
def test_random_expressions_find_a_planted_fault(
    expressions: ExpressionSearch, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _plant(fault, monkeypatch, Project)
    for seed in range(5):
        tally = Tally()
        expressions.run(seed, tally, count=30, depth=1)
        if tally.differences:
            return
    raise AssertionError(f"{fault} was not found")


@pytest.mark.parametrize("operators", [(Project,), STATEFUL], ids=["rows", "state"])
@pytest.mark.parametrize("fault", FAULTS)
def test_random_plans_find_a_planted_fault(
    plans: PlanSearch, fault: str, operators: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    _plant(fault, monkeypatch, *operators)
    assert any(plans.run(seed, shrinks=False) for seed in range(60)), fault


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
    assert any(programs.run(seed, shrinks=False) for seed in range(20)), fault


def _moved(position: str, records: int) -> str:
    """A position of a source some records further, or earlier."""
    match json.loads(position):
        case int(row):
            return str(max(row + records, 0))
        case {"next": number, "step": step} as at:
            return json.dumps(at | {"next": max(number + records * step, 0)})
        case {"batch": batch, "row": 0} as at if records < 0:
            return json.dumps(at | {"batch": max(batch - 1, 0)})
        case {"row": row} as at:
            return json.dumps(at | {"row": row + records})
    raise AssertionError(position)


@pytest.fixture(params=[1, -1], ids=["a record is left out", "a record is read again"])
def wrong_restart(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in the positions at which a restart begins."""
    start_positions = durable._start_positions

    def faulty(resources: Any, plan: Any, offsets: Any) -> Any:
        positions = start_positions(resources, plan, offsets)
        if plan.manifest is None:
            return positions
        return tuple(
            {partition: _moved(at, request.param) for partition, at in source.items()}
            for source in positions
        )

    monkeypatch.setattr(durable, "_start_positions", faulty)


@pytest.mark.usefixtures("wrong_restart")
def test_random_plans_find_a_fault_in_a_restart(plans: PlanSearch) -> None:
    assert any(plans.run(seed, shrinks=False) for seed in range(20))


@pytest.mark.usefixtures("wrong_restart")
def test_random_programs_find_a_fault_in_a_restart(programs: ProgramSearch) -> None:
    assert any(programs.run(seed, shrinks=False) for seed in range(20))
