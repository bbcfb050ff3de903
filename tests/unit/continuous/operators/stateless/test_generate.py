"""Generators repeat each row for every row that they make of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Column, Expr, Literal
from epochal.continuous.operators.stateless.expand import ExpandSpec
from epochal.continuous.operators.stateless.generate import GenerateSpec

AT = Moment(0, -1, 0, -1)
LISTS = pa.RecordBatch.from_pydict(
    {
        "k": pa.array([1, 2, 3, 4]),
        "v": pa.array([["a", None], [], None, ["b"]], pa.list_(pa.string())),
    }
)


def rows(
    batch: pa.RecordBatch, generator: str, made: dict[str, Any], *, outer: bool = False
) -> list[dict[str, Any]]:
    schema = pa.schema([("k", pa.int64()), *made.items()])
    spec = GenerateSpec(generator, (Column(1),), (0,), outer, schema)
    return [row for part in spec.open().process(batch, AT) for row in part.to_pylist()]


def test_a_row_without_elements_disappears() -> None:
    assert rows(LISTS, "Explode", {"e": pa.string()}) == [
        {"k": 1, "e": "a"},
        {"k": 1, "e": None},
        {"k": 4, "e": "b"},
    ]


def test_an_outer_generator_keeps_a_row_without_elements_in_its_place() -> None:
    assert rows(LISTS, "PosExplode", {"p": pa.int32(), "e": pa.string()}, outer=True) == [
        {"k": 1, "p": 0, "e": "a"},
        {"k": 1, "p": 1, "e": None},
        {"k": 2, "p": None, "e": None},
        {"k": 3, "p": None, "e": None},
        {"k": 4, "p": 0, "e": "b"},
    ]


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_a_slice_of_a_batch_has_its_own_elements(first: int) -> None:
    found = rows(LISTS.slice(first, 1), "Explode", {"e": pa.string()}, outer=True)
    expected = [["a", None], [None], [None], ["b"]]
    assert [row["e"] for row in found] == expected[first]


def test_a_map_has_a_column_of_keys_and_one_of_values() -> None:
    kind = pa.map_(pa.string(), pa.int32())
    batch = pa.RecordBatch.from_pydict(
        {"k": pa.array([1, 2]), "v": pa.array([[("a", 1), ("b", None)], None], kind)}
    )
    assert rows(batch, "Explode", {"key": pa.string(), "value": pa.int32()}) == [
        {"k": 1, "key": "a", "value": 1},
        {"k": 1, "key": "b", "value": None},
    ]


def test_a_null_struct_of_inline_is_a_row_of_nulls() -> None:
    kind = pa.list_(pa.struct([("p", pa.int32()), ("q", pa.string())]))
    batch = pa.RecordBatch.from_pydict(
        {"k": pa.array([1]), "v": pa.array([[{"p": 1, "q": "x"}, None]], kind)}
    )
    assert rows(batch, "Inline", {"p": pa.int32(), "q": pa.string()}) == [
        {"k": 1, "p": 1, "q": "x"},
        {"k": 1, "p": None, "q": None},
    ]


def test_a_stack_fills_its_last_row_with_nulls() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    values: tuple[Expr, ...] = (
        Literal(pa.scalar(2)),
        Column(0),
        Literal(pa.scalar(7)),
        Literal(pa.scalar(8)),
    )
    spec = GenerateSpec("Stack", values, (), False, schema)
    (found,) = spec.open().process(LISTS.slice(0, 2), AT)
    assert found.to_pylist() == [
        {"a": 1, "b": 7},
        {"a": 8, "b": None},
        {"a": 2, "b": 7},
        {"a": 8, "b": None},
    ]


def test_an_expansion_makes_a_row_for_each_projection() -> None:
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    spec = ExpandSpec(
        ((Column(0), Literal(pa.scalar(1))), (Column(0), Literal(pa.scalar(2)))), schema
    )
    (found,) = spec.open().process(LISTS.slice(0, 2), AT)
    assert sorted((row["k"], row["n"]) for row in found.to_pylist()) == [
        (1, 1), (1, 2), (2, 1), (2, 2),
    ]  # fmt: skip
