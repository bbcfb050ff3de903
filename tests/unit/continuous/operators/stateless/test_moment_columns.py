"""Functions of time and chance become columns before expressions are evaluated."""

from __future__ import annotations

import datetime

import pyarrow as pa

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Call, Column
from epochal.continuous.operators.stateless.moment_columns import MomentColumnsSpec, lifted

STAMP = pa.timestamp("us", "UTC")
NOW = Call("CurrentBatchTimestamp", (), STAMP)
TODAY = Call("CurrentBatchTimestamp", (), pa.date32(), extra={"zone": "America/New_York"})


def rand() -> Call:
    return Call("Rand", (), pa.float64())


def test_calls_for_the_time_share_a_column_and_random_calls_do_not() -> None:
    first, second = rand(), rand()
    found = lifted((NOW, Call("Add", (first, second)), NOW, TODAY), 2)
    assert found.calls == (NOW, first, second, TODAY)
    assert found.columns == (Column(2), Call("Add", (Column(3), Column(4))), Column(2), Column(5))


def test_expressions_without_such_calls_stay_as_they_are() -> None:
    exprs = (Call("Add", (Column(0), Column(1))), Column(1))
    assert lifted(exprs, 2).columns is exprs


def test_all_rows_of_a_batch_have_the_moments_time_and_their_own_chance() -> None:
    batch = pa.RecordBatch.from_pydict({"_Rand2": pa.array([1, 2, 3])})
    uuid = Call("Uuid", (), pa.string())
    spec = MomentColumnsSpec.plan((NOW, TODAY, rand(), uuid), batch.schema)
    at = datetime.datetime(2024, 3, 1, 2, 0, 0, 5000, tzinfo=datetime.UTC)
    moment = Moment(int(at.timestamp() * 1000), -1, 0, -1)
    (found,) = spec.open().process(batch, moment)
    times, days, chances, ids = (each.to_pylist() for each in found.columns[1:])
    assert times == [at] * 3
    assert days == [datetime.date(2024, 2, 29)] * 3
    assert len(set(chances)) == 3
    assert all(isinstance(each, float) and 0 <= each < 1 for each in chances)
    assert len(set(ids)) == 3
    assert len(set(found.schema.names)) == 5
