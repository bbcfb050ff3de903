"""Rows are merged by key: the last one counts, and nulls are values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors.tables.table_epochs import last_per_key, without_keys


def table(*rows: tuple[Any, Any, Any]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    kinds = (pa.int64(), pa.string(), pa.int64())
    arrays: list[Any] = [pa.array(c, k) for c, k in zip(columns, kinds, strict=True)]
    return pa.table(arrays, names=["a", "b", "x"])


def xs(found: pa.Table) -> list[Any]:
    return found["x"].to_pylist()


@pytest.mark.parametrize(
    ("keys", "kept"), [(["a"], [3, 5]), (["a", "b"], [2, 3, 5]), (["b"], [3, 5])]
)
def test_the_last_row_of_each_key_stays_in_its_place(keys: list[str], kept: list[int]) -> None:
    rows = table((1, "p", 1), (1, "q", 2), (1, "p", 3), (None, "q", 4), (None, "q", 5))
    assert xs(last_per_key(rows, keys)) == kept


def test_rows_whose_key_is_replaced_go_and_others_stay() -> None:
    rows = table((1, "p", 1), (1, "q", 2), (2, "p", 3), (None, "p", 4), (None, None, 5))
    new = table((1, "q", 9), (None, "p", 9), (3, "p", 9))
    assert xs(without_keys(rows, new, ["a", "b"])) == [1, 3, 5]
    assert xs(without_keys(rows, new, ["a"])) == [3]


def test_keys_of_different_widths_are_compared_by_value() -> None:
    kinds: list[tuple[str, Any]] = [("a", pa.int32()), ("b", pa.large_string()), ("x", pa.int64())]
    new = table((1, "q", 9)).cast(pa.schema(kinds))
    assert xs(without_keys(table((1, "q", 1), (2, "q", 2)), new, ["a", "b"])) == [2]


def test_tables_without_rows_are_merged_too() -> None:
    assert xs(without_keys(table((1, "p", 1)), table(), ["a"])) == [1]
    assert xs(without_keys(table(), table((1, "p", 1)), ["a"])) == []
    assert xs(last_per_key(table(), ["a"])) == []


def test_many_key_columns_do_not_overflow() -> None:
    names = [f"k{n}" for n in range(12)]
    columns = {name: list(range(2000)) for name in names}
    rows = pa.table(columns)
    assert last_per_key(rows, names).num_rows == 2000
    assert without_keys(rows, rows.slice(0, 1999), names).num_rows == 1
