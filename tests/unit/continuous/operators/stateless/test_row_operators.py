"""What the user's functions of batches may return, and how time and chance become columns."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from epochal.connectors.user_code import is_users, report_of
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Call, Column
from epochal.continuous.operators.stateless.row_operators import (
    MapInArrowSpec,
    MapInPandasSpec,
    MomentColumnsSpec,
    lifted,
)
from epochal.errors import OptionError

SCHEMA = pa.schema([("n", pa.int64())])
BATCH = pa.RecordBatch.from_pydict({"n": [1, 2]}, schema=SCHEMA)
AT = Moment(0, -1, 0, -1)


def forgets(batches: Iterator[Any]) -> None:
    list(batches)


def passes_one(batches: Iterator[Any]) -> Any:
    return next(batches)


def says(batches: Iterator[Any]) -> str:
    return "done"


def counts(batches: Iterator[Any]) -> Iterator[int]:
    yield sum(len(batch) for batch in batches)


def mapped(function: Callable[[Any], Any], *, pandas: bool) -> list[pa.RecordBatch]:
    spec = MapInPandasSpec(function, SCHEMA) if pandas else MapInArrowSpec(function, SCHEMA)
    return list(spec.open().process(BATCH, AT))


@pytest.mark.parametrize(
    ("function", "what", "in_pandas"),
    [
        (forgets, "returned None", "returned None"),
        (passes_one, "returned a RecordBatch", "returned a DataFrame"),
        (says, "returned a str", "returned a str"),
        (counts, "yielded a int", "yielded a int"),
    ],
)
def test_a_function_that_returns_no_batches_is_named_with_what_it_must_return(
    function: Callable[[Any], Any], what: str, in_pandas: str
) -> None:
    for pandas, words, form in [
        (False, what, "pyarrow.RecordBatch"),
        (True, in_pandas, "pandas.DataFrame"),
    ]:
        with pytest.raises(OptionError) as refused:
            mapped(function, pandas=pandas)
        assert str(refused.value) == (
            f"map_in_{'pandas' if pandas else 'arrow'}: the function {function.__name__} {words}. "
            f"It must return an iterator of {form}, or be a generator that yields them."
        )
        assert is_users(refused.value)
        assert report_of(refused.value) == ""


def test_a_list_of_batches_is_as_good_as_an_iterator() -> None:
    assert mapped(lambda batches: list(batches), pandas=False) == [BATCH]
    assert mapped(lambda frames: [pd.concat(frames)], pandas=True) == [BATCH]


def test_the_report_of_a_users_error_begins_at_the_users_line() -> None:
    def deeper() -> None:
        raise KeyError("price")

    def broken(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            deeper()
            yield batch

    with pytest.raises(KeyError) as failed:
        mapped(broken, pandas=False)
    lines = [line.strip() for line in report_of(failed.value).splitlines()]
    places = [line.rpartition(", in ")[2] for line in lines if line.startswith("File ")]
    assert (places, lines[-1]) == (["broken", "deeper"], "KeyError: 'price'")


def test_the_report_of_our_own_error_is_the_whole_traceback() -> None:
    with pytest.raises(ValueError, match="ours") as raised:
        raise ValueError("ours")
    assert not is_users(raised.value)
    assert report_of(raised.value).startswith("Traceback (most recent call last):")


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
