"""Few rows become the same batch in one step as column by column."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from epochal.continuous.operators.cells import StoredBatches, arrow_column
from epochal.continuous.operators.processor.row_api import RowApi
from epochal.record_batches import FEW_ROWS

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
