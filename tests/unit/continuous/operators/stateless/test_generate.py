"""Generators repeat each row for every row that they make of it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Column
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
