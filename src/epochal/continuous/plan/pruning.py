"""Which columns of a source a query looks at, so that its readers need not make the others. Pure.

What a reader would get wrong: columns keep their places. A projection is resolved to places, so a
column that nobody looks at is still there, as nulls, which cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pyarrow as pa

from epochal.connectors.contract import ReaderFactory
from epochal.continuous.operators.contract import OperatorSpec
from epochal.continuous.operators.stateless.expressions import Call, Column, Expr
from epochal.continuous.operators.stateless.row_operators import FilterSpec, ProjectSpec
from epochal.continuous.operators.watermark import ObserveEventTimeSpec


def narrowed(
    readers: ReaderFactory, operators: Sequence[OperatorSpec], schema: pa.Schema
) -> ReaderFactory:
    """The readers, told which columns are looked at, if they can be told and it is not all."""
    wanted = wanted_columns(operators, schema)
    if wanted is None or not hasattr(readers, "only"):
        return readers
    return cast(ReaderFactory, cast(Any, readers).only(wanted))


def wanted_columns(operators: Sequence[OperatorSpec], schema: pa.Schema) -> frozenset[str] | None:
    """The columns that decide about what comes out of these operators; None for all of them."""
    found: set[str] = set()
    for operator in operators:
        match operator:
            case FilterSpec(condition):
                found |= {schema.names[index] for index in _places(condition)}
            case ObserveEventTimeSpec(column=name):
                found.add(name)
            case ProjectSpec(columns):
                found |= {schema.names[at] for each in columns for at in _places(each)}
                return frozenset(found)
            case _:
                return None
    return None


def _places(expr: Expr) -> Iterator[int]:
    match expr:
        case Column(index):
            yield index
        case Call(arguments=arguments):
            for each in arguments:
                yield from _places(each)
