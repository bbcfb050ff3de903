"""Arrow batches in and out of a store are the same rows as one at a time."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.state.stores import content, content_at, provider, put, temp_files_in

from epochal.errors import StateUsageError, StateValueError

pytestmark = pytest.mark.usefixtures("rows_in")


def keys(*rows: tuple[str | None, int]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array([row[0] for row in rows], pa.string()), pa.array([row[1] for row in rows])],
        names=["key1", "key2"],
    )


def values(*rows: int | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(rows, pa.int32())], names=["value"])


def test_a_batch_put_is_read_row_by_row_and_the_other_way_round(tmp_path: Path) -> None:
    states = provider(tmp_path)
    store = states.get_store(0)
    store.put_batch(keys(("a", 0), ("b", 1), ("ü" * 9, 2)), values(1, 2, 3))
    store.put(("c", 3), (4,))
    assert store.get(("ü" * 9, 2)) == (3,)
    found, there = store.get_batch(keys(("c", 3), ("zz", 0), ("a", 0)))
    assert found.to_pydict() == {"value": [4, None, 1]}
    assert there.to_pylist() == [True, False, True]
    store.commit()
    assert content_at(provider(tmp_path), 1) == {
        ("a", 0): 1,
        ("b", 1): 2,
        ("ü" * 9, 2): 3,
        ("c", 3): 4,
    }


def test_large_batches_equal_small_ones(tmp_path: Path) -> None:
    rows = [(f"key-{n % 700}", n) for n in range(2000)]
    store = provider(tmp_path / "batch").get_store(0)
    store.put_batch(keys(*rows), values(*range(2000)))
    store.remove_batch(keys(*rows[::3]))
    one_by_one = provider(tmp_path / "rows").get_store(0)
    for n, row in enumerate(rows):
        one_by_one.put(row, (n,))
    for row in rows[::3]:
        one_by_one.remove(row)
    assert dict(store.items_raw()) == dict(one_by_one.items_raw())
    store.commit()
    one_by_one.commit()
    assert (tmp_path / "batch" / "1.delta").read_bytes() == (
        tmp_path / "rows" / "1.delta"
    ).read_bytes()


def test_a_null_value_in_a_row_is_not_a_missing_row(tmp_path: Path) -> None:
    store = provider(tmp_path).get_store(0)
    store.put_batch(keys(("a", 0)), values(None))
    found, there = store.get_batch(keys(("a", 0), ("b", 0)))
    assert found.to_pydict() == {"value": [None, None]}
    assert there.to_pylist() == [True, False]
    store.abort()


def test_batches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    store = provider(tmp_path).get_store(0)
    with pytest.raises(StateUsageError):
        store.put_batch(keys(("a", 0)), values(1, 2))
    with pytest.raises(StateValueError):
        store.put_batch(values(1), values(1))
    assert content(store) == {}
    store.abort()
    assert temp_files_in(tmp_path) == []
    with pytest.raises(StateUsageError):
        store.put_batch(keys(("a", 0)), values(1))


def test_a_prefix_scan_over_many_keys_finds_them_all(tmp_path: Path) -> None:
    states = provider(tmp_path, prefix=1)
    put(states, 0, *((f"p{n % 10}", n, n) for n in range(500)))
    store = provider(tmp_path, prefix=1).get_read_store(1)
    assert dict(store.prefix_scan(("p3",))) == {("p3", n): (n,) for n in range(3, 500, 10)}
