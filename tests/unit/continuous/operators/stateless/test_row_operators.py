"""What users' functions of batches return, how constants, time and few rows become columns."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import Row

from epochal.connectors.user_code import is_users, report_of
from epochal.continuous.operators.cells import StoredBatches, arrow_column
from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Call, Column, Literal
from epochal.continuous.operators.processor.row_api import RowApi
from epochal.continuous.operators.stateless.row_operators import (
    MapInArrowSpec,
    MapInPandasSpec,
    MomentColumnsSpec,
    lifted,
)
from epochal.errors import OptionError
from epochal.record_batches import FEW_ROWS

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


INTERVAL = pa.month_day_nano_interval()


@pytest.mark.parametrize(
    "value",
    [
        pa.scalar((1, 2, 3_000), INTERVAL),
        pa.scalar(None, INTERVAL),
        pa.scalar(None, pa.null()),
        pa.scalar("text"),
        pa.scalar(Decimal("1.5"), pa.decimal128(38, 3)),
        pa.scalar({"a": [1, None]}),
    ],
    ids=str,
)
def test_a_constant_is_the_same_in_a_task(value: pa.Scalar[Any]) -> None:
    found = cloudpickle.loads(cloudpickle.dumps(Literal(value))).value
    assert found.equals(value)
    assert found.type == value.type


KINDS: dict[Any, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=4),
    pa.binary(): st.binary(max_size=4),
    pa.decimal128(10, 2): st.decimals(-9999, 9999, places=2),
    pa.timestamp("us", tz="UTC"): st.integers(0, 2**50),
    pa.date32(): st.integers(0, 20_000),
}
FLAT = [kind for kind in KINDS if not pa.types.is_temporal(kind)]


@st.composite
def rows_of(draw: st.DrawFn, kinds: list[Any]) -> tuple[pa.Schema, list[tuple[Any, ...]]]:
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(chosen)])
    row = st.tuples(*(st.none() | KINDS[kind] for kind in chosen))
    return schema, draw(st.lists(row, min_size=1, max_size=5))


@given(rows_of(list(KINDS)))
def test_values_of_a_store_become_the_same_batch(
    made: tuple[pa.Schema, list[tuple[Any, ...]]],
) -> None:
    schema, rows = made
    columns = list(zip(*rows, strict=True))
    expected = pa.RecordBatch.from_arrays(
        [arrow_column(column, kind) for column, kind in zip(columns, schema.types, strict=True)],
        schema=schema,
    )
    found = StoredBatches(schema).batch(columns, len(rows))
    assert found.schema.equals(schema)
    assert found.equals(expected)


@given(rows_of(FLAT))
def test_rows_of_a_processor_become_the_same_batch(
    made: tuple[pa.Schema, list[tuple[Any, ...]]],
) -> None:
    schema, rows = made
    columns = zip(*rows, strict=True)
    expected = pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)],
        schema=schema,
    )
    results = [Row(**dict(zip(schema.names, row, strict=True))) for row in rows]
    (found,) = RowApi([schema.names[0]], schema, schema).output(results)
    assert found.schema.equals(schema)
    assert found.equals(expected)


@pytest.mark.parametrize("count", [FEW_ROWS - 1, FEW_ROWS])
def test_any_number_of_values_keeps_its_order(count: int) -> None:
    kinds: list[Any] = [pa.int64(), pa.decimal128(10, 2)]
    schema = pa.schema(list(zip("nd", kinds, strict=True)))
    columns: list[list[Any]] = [list(range(count)), [Decimal(n) for n in range(count)]]
    assert StoredBatches(schema).batch(columns, len(columns[0])).to_pydict() == {
        "n": columns[0],
        "d": columns[1],
    }
