"""Finds the columns of a source that a query uses, so that readers can skip the others. Pure.

Note: skipped columns stay in the batch as nulls, which cost nothing. Expressions refer to columns
by index, so no column may be removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import pyarrow as pa

from epochal.connectors.contract import ReaderFactory
from epochal.continuous.operators.contract import OperatorSpec
from epochal.continuous.operators.expressions.expr import Expr, columns_in
from epochal.continuous.operators.stateless.expand import ExpandSpec
from epochal.continuous.operators.stateless.generate import GenerateSpec
from epochal.continuous.operators.stateless.row_operators import FilterSpec, ProjectSpec
from epochal.continuous.operators.watermark import ObserveEventTimeSpec


def narrowed(
    readers: ReaderFactory, branches: Sequence[Sequence[OperatorSpec]], schema: pa.Schema
) -> ReaderFactory:
    """Return readers that fill only the columns that a branch uses, if the factory can do that.

    `branches` are the operators of each place in the query that the source feeds.
    """
    wanted: frozenset[str] = frozenset()
    for operators in branches:
        used = wanted_columns(operators, schema)
        if used is None:
            return readers
        wanted |= used
    return readers.only(wanted)


def wanted_columns(operators: Sequence[OperatorSpec], schema: pa.Schema) -> frozenset[str] | None:
    """Return the columns that these operators use; None if they may use all of them."""
    found: set[str] = set()
    for operator in operators:
        match operator:
            case FilterSpec(condition):
                found |= _names_in([condition], schema)
            case ObserveEventTimeSpec(column=name):
                found.add(name)
            case ProjectSpec(columns):
                return frozenset(found | _names_in(columns, schema))
            case ExpandSpec(projections):
                return frozenset(found | _names_in(chain(*projections), schema))
            case GenerateSpec(arguments=arguments, kept=kept):
                found |= {schema.names[index] for index in kept}
                return frozenset(found | _names_in(arguments, schema))
            case _:
                return None  # a user's function: it may look at any column
    return None  # no projection: all columns leave the last operator


def _names_in(exprs: Iterable[Expr], schema: pa.Schema) -> set[str]:
    return {schema.names[index] for each in exprs for index in columns_in(each)}
