"""Makes several rows of each row, one per projection: sliding windows, `rollup` and `cube`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from epochal.continuous.operators.contract import Moment
from epochal.continuous.operators.expressions.expr import Expr
from epochal.continuous.operators.stateless.row_operators import Project


@dataclass(frozen=True, slots=True)
class ExpandSpec:
    """For each projection, the expressions of the columns of the result."""

    projections: tuple[tuple[Expr, ...], ...]
    schema: pa.Schema

    def open(self) -> Expand:
        return Expand(self)


class Expand:
    """Computes all projections of a batch, one after the other."""

    def __init__(self, spec: ExpandSpec) -> None:
        self._projects = [Project(each, spec.schema) for each in spec.projections]

    def process(self, batch: pa.RecordBatch, at: Moment) -> Iterable[pa.RecordBatch]:
        found = [made for project in self._projects for made in project.process(batch, at)]
        return pa.Table.from_batches(found).combine_chunks().to_batches()
