"""Translates a streaming DataFrame: the tree of our operators, or all reasons why it cannot run.

    analysed plan   Spark's own check; sources and their numbers
    optimised plan  the tree, node by node
    physical plan   ids and keys of stateful operators

Nothing is started and nothing is written. Spark runs a job only for the rows of static branches and
scalar subqueries, which are collected once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from epochal.continuous.catalyst.plan_reader import PlanReader
from epochal.continuous.catalyst.plan_sources import PlanSources
from epochal.continuous.catalyst.plan_steps import Findings, Steps
from epochal.continuous.catalyst.releases import Planner
from epochal.continuous.operators.expressions.expr import Column
from epochal.continuous.operators.stateless.row_operators import ProjectSpec
from epochal.continuous.plan.logical import Node, Step, unique_names
from epochal.errors import UnsupportedPlanError


@dataclass(frozen=True, slots=True)
class Translation:
    """A DataFrame as our engine runs it."""

    tree: Node
    occurrences: tuple[int, ...]
    """The number of the source at each leaf of the analysed plan. Spark's offset log has a line for
    each of them."""
    needs_evaluator: bool = False
    """Whether Spark's own code evaluates a part of it, beside the tasks."""


def read_plan(
    df: DataFrame,
    *,
    output_mode: str = "append",
    pinned: Mapping[str, str] | None = None,
    runs_jobs: bool = True,
) -> Translation:
    """Translate a DataFrame; UnsupportedPlanError with all refusals if it cannot run.

    `pinned` are the settings in the offset log of the checkpoint, which decide the layout of its
    state; None for a new checkpoint. Without `runs_jobs` static branches are empty, so the result
    shows the query but must not be run.
    """
    findings = Findings()
    found = _read(df, output_mode, pinned, findings, runs_jobs=runs_jobs)
    if found is None or findings.refusals:
        raise UnsupportedPlanError(findings.refusals)
    return found


def explain_plan(df: DataFrame, *, output_mode: str = "append") -> str:
    """Say where each operator of a DataFrame runs, and list all that cannot run."""
    findings = Findings()
    _read(df, output_mode, None, findings, runs_jobs=False)
    lines = [f"{'  ' * each.depth}{each.text}: {each.runs}" for each in findings.operators]
    if findings.notes:
        lines += ["", "Notes:", *(f"  - {each}" for each in findings.notes)]
    if findings.refusals:
        return "\n".join([str(UnsupportedPlanError(findings.refusals)), "", *lines])
    return "\n".join(["The DataFrame can run.", "", *lines])


def _read(
    df: DataFrame,
    output_mode: str,
    pinned: Mapping[str, str] | None,
    findings: Findings,
    *,
    runs_jobs: bool,
) -> Translation | None:
    frame: Any = df
    if type(frame).__module__.startswith("pyspark.sql.connect"):
        findings.refuse(
            "Spark Connect",
            "the DataFrame is of a Spark Connect session, whose plans are on the server",
            "use a classic session: SparkSession.builder.master(...)",
        )
        return None
    analyzed = frame._jdf.queryExecution().analyzed()
    planner = Planner(df.sparkSession, output_mode=output_mode, pinned=pinned, runs_jobs=runs_jobs)
    refused = planner.check(analyzed)
    if refused is not None:
        findings.refuse("Spark", refused, "change the query so that Spark accepts it")
        if not analyzed.isStreaming():
            return None
    steps = Steps(planner, findings)
    with findings.around("input_file_name", "select it, or _metadata.file_path, before"):
        analyzed = planner.with_files(analyzed)
    sources = PlanSources(steps, analyzed)
    optimized = planner.optimized(analyzed)
    physical = planner.physical(optimized) if refused is None else None
    found = PlanReader(steps, sources, physical, output_mode, refused).read(optimized)
    return Translation(
        tree=_renamed(found.tree, df.columns),
        occurrences=sources.occurrences,
        needs_evaluator=steps.in_spark.calls > 0,
    )


def _renamed(tree: Node, names: list[str]) -> Node:
    """The tree, whose columns have the names that the user gave them."""
    wanted = unique_names(names)
    if tree.schema.names == wanted:
        return tree
    schema = pa.schema(
        [field.with_name(name) for field, name in zip(tree.schema, wanted, strict=True)]
    )
    columns = tuple(Column(index) for index in range(len(wanted)))
    return Step(tree, ProjectSpec(columns, schema), schema)
