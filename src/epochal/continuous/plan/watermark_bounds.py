"""Derives the watermark of each stage's input from the watermark of the query. Pure.

The rules are those of Spark's WatermarkPropagator. A watermark operator passes on the query's
watermark, whatever its own delay. A stage takes the lowest of what its inputs pass on; an input
without a watermark does not count. A stateful operator passes on what it takes, unless it keeps
rows longer than that: its spec then has a method `output_watermark_ms(input_ms) -> int | None`.
A join, for example, may still return rows of the time range that its condition allows. None means
that the operator's rows have no watermark at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from epochal.continuous.operators.contract import OperatorSpec, StatefulSpec
from epochal.continuous.operators.stateless.row_operators import ObserveEventTimeSpec
from epochal.continuous.plan.stages import QueryPlan
from epochal.epoch.event_time.query_watermark import NO_WATERMARK, NOT_ADVANCED


def input_watermarks(plan: QueryPlan, watermark_ms: int) -> tuple[int, ...]:
    """Return the watermark of each stage's input, at least 0; -1 if the query declares none."""
    if not plan.watermarks:
        return (NO_WATERMARK,) * len(plan.stages)
    if watermark_ms <= NOT_ADVANCED:
        return (NOT_ADVANCED,) * len(plan.stages)
    arriving: list[list[int | None]] = [[] for _ in range(len(plan.stages) + 1)]
    for source in plan.sources:
        for branch in source.branches:
            arriving[branch.to.stage].append(_after(branch.operators, None, watermark_ms))
    bounds = []
    for number, stage in enumerate(plan.stages):  # a stage only feeds later ones
        taken = _lowest(arriving[number])
        bounds.append(max(NOT_ADVANCED, taken or NOT_ADVANCED))
        passed = None if taken is None else _passed_on(stage.stateful, taken)
        arriving[stage.to.stage].append(_after(stage.operators, passed, watermark_ms))
    return tuple(bounds)


def _after(operators: Sequence[OperatorSpec], passed: int | None, watermark_ms: int) -> int | None:
    observed = any(isinstance(operator, ObserveEventTimeSpec) for operator in operators)
    return watermark_ms if observed else passed


def _lowest(bounds: Iterable[int | None]) -> int | None:
    return min((bound for bound in bounds if bound is not None), default=None)


def _passed_on(spec: StatefulSpec, input_ms: int) -> int | None:
    rule = getattr(spec, "output_watermark_ms", None)
    return input_ms if rule is None else cast("int | None", cast(Any, rule)(input_ms))
