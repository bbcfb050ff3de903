"""Runs the examples of Spark's functions as streams, and says how each compares with Spark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from tests.fuzz_sql.both_sides import (
    Failure,
    Result,
    cells,
    differing,
    failure_of,
    layout,
    our_rows,
    results,
    shown,
    spark_results,
    spark_rows,
)
from tests.fuzz_sql.examples import Columns, Example, with_columns
from tests.fuzz_sql.expressions import CHANGING

from epochal import testing

EQUAL, FAILS, BY_SPARK = "equal", "fails equally", "refused by Spark"
CHANGES, DIFFERENT, BY_US = "changes each time", "different", "refused by us"
NO_STREAM = "has no stream in it"

BADNESS = (NO_STREAM, CHANGES, BY_SPARK, FAILS, EQUAL, BY_US, DIFFERENT)
"""A function counts as the last of these that one of its examples is."""

KEPT = ",".join(
    f"org.apache.spark.sql.catalyst.optimizer.{rule}"
    for rule in ("ConvertToLocalRelation", "ConstantFolding")
)
"""Rules of the optimiser that would compute the examples when the query is planned."""

SETTINGS = {
    "spark.sql.timeType.enabled": "true",
    "spark.sql.optimizer.excludedRules": KEPT,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an example compares."""

    example: Example
    verdict: str
    detail: str = ""


@dataclass(slots=True)
class Report:
    """How all examples compare."""

    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def by_function(self) -> dict[str, str]:
        """The verdict on each function."""
        found: dict[str, str] = {}
        for outcome in self.outcomes:
            name = outcome.example.function
            worst = max(found.get(name, BADNESS[0]), outcome.verdict, key=BADNESS.index)
            found[name] = worst
        return found

    def lines(self, *verdicts: str) -> list[str]:
        return [
            f"{o.example.function}: {o.example.sql}: {o.detail}"
            for o in self.outcomes
            if o.verdict in verdicts
        ]

    def __str__(self) -> str:
        verdicts = list(self.by_function.values())
        counts = {verdict: verdicts.count(verdict) for verdict in reversed(BADNESS)}
        parts = [f"{count} {verdict}" for verdict, count in counts.items() if count]
        return f"{len(verdicts)} functions: {', '.join(parts)}"


def run_expressions(
    spark: SparkSession, examples: Sequence[Example], *, literal: bool = True
) -> list[Outcome]:
    """Compare examples without a relation, all in one projection.

    With `literal` they are compared in their literal form as well.
    """
    texts = list(dict.fromkeys(example.columns for example in examples))
    columns, forms = with_columns(spark, texts)
    batch, stream, fed = _row(spark, columns)
    wanted = list(dict.fromkeys(form for form, _ in forms.values()))
    wanted += [text for text in forms if literal and text not in wanted]
    theirs = spark_results(batch, wanted)
    valid = [text for text in wanted if not isinstance(theirs[text], Failure)]

    def run(frame: DataFrame) -> Any:
        return our_rows(frame, [fed])

    ours = results(stream, valid, run)
    for text in wanted:
        if text not in ours:
            ours |= results(stream, [text], run)
    outcomes = []
    for example in examples:
        if example.columns not in forms:
            outcomes.append(run_statement(spark, example))
            continue
        form, kind = forms[example.columns]
        for text in dict.fromkeys((form, example.columns) if literal else (form,)):
            verdict, detail = _verdict(theirs[text], ours[text])
            if verdict == DIFFERENT and not _has_schema(batch, text):
                verdict = BY_SPARK
            if verdict == DIFFERENT and _changes(example, kind, theirs[text], ours[text]):
                verdict = CHANGES
            outcomes.append(Outcome(example, verdict, f"{text}: {detail}"))
    return outcomes


def _row(spark: SparkSession, columns: Columns) -> tuple[DataFrame, DataFrame, pa.Table]:
    batch = columns.row(spark)
    fed = spark_rows(batch)
    assert isinstance(fed, pa.Table), fed
    return batch, testing.frame(batch.schema, spark=spark), fed


def _verdict(wanted: Result, found: Result) -> tuple[str, str]:
    row = differing(wanted, found)
    if row is None:
        return (FAILS if isinstance(wanted, Failure) else EQUAL), ""
    detail = f"Spark has {shown(wanted, row)}, we have {shown(found, row)}"
    if not isinstance(found, Failure) or found.condition != "UnsupportedPlanError":
        return DIFFERENT, detail
    # Spark itself refuses some of them in a stream, such as numbers of rows.
    return (BY_SPARK if "not supported with streaming" in found.message else BY_US), detail


def _has_schema(frame: DataFrame, text: str) -> bool:
    """Whether PySpark knows the type of an expression: it has no nanoseconds."""
    try:
        return frame.selectExpr(text).schema is not None
    except Exception:  # noqa: BLE001  PySpark cannot read the type
        return False


def _changes(example: Example, kind: str, wanted: Result, found: Result) -> bool:
    """Whether values may differ because they do so each time. Types may not."""
    if isinstance(wanted, Failure) or isinstance(found, Failure):
        return False
    changing = kind.startswith("?") or any(word in example.sql for word in CHANGING)
    return changing and layout(wanted.type) == layout(found.type)


def run_statement(spark: SparkSession, example: Example) -> Outcome:
    """Compare an example as a query of its own. Its relation becomes a stream."""
    columns, rest = example.columns, example.rest
    relation = example.relation or "(SELECT 1 AS one)"
    if re.fullmatch(r"\w+\(.*\)", relation, re.DOTALL):
        # A table of what a generator makes: as the rows that it makes of a stream's row.
        columns, rest = "made.*", f"LATERAL VIEW {re.sub(r'[a-z]+ => ', '', relation)} made {rest}"
        relation = "(SELECT 1 AS one) AS relation"
    try:
        if not re.match(r"VALUES\b|\(", relation, re.IGNORECASE):
            spark.sql(example.sql).collect()
            return Outcome(example, NO_STREAM)
        rows = spark.sql(f"SELECT * FROM {relation}").coalesce(1)
        fed = spark_rows(rows)
        text = f"SELECT {columns} FROM {relation} {rest}"
        theirs = spark_rows(spark.sql(text).coalesce(1))
    except Exception as error:  # noqa: BLE001  Spark itself refuses it, stream or not
        return Outcome(example, BY_SPARK, str(error).split("\n")[0])
    assert isinstance(fed, pa.Table), fed
    name = re.search(r"(\w+)\s*(\([\w\s,]*\))?$", relation)
    view = name[1] if name else "relation"
    try:
        testing.frame(rows.schema, spark=spark).createOrReplaceTempView(view)
        stream = spark.sql(f"SELECT {columns} FROM {view} {rest}")
        mode = "complete" if "Aggregate [" in _plan(stream).toString() else "append"
        if refusal := _refusal(spark, stream, mode):
            return Outcome(example, BY_SPARK, refusal)
    except Exception as error:  # noqa: BLE001  Spark refuses it in a stream
        return Outcome(example, BY_SPARK, str(error).split("\n")[0])
    ours = our_rows(stream, [fed], mode=mode)
    if isinstance(theirs, pa.Table) and isinstance(ours, pa.Table):
        verdict, detail = _same_rows(theirs, ours)
        if verdict == DIFFERENT and mode == "complete":
            # A batch and a stream of Spark's differ in the last digit of sums.
            verdict, detail = _same_rows(_streamed(stream, fed, mode), ours)
        return Outcome(example, verdict, detail)
    wanted: Any = theirs.column(0) if isinstance(theirs, pa.Table) else theirs
    found: Any = ours.column(0) if isinstance(ours, pa.Table) else ours
    return Outcome(example, *_verdict(wanted, found))


def _same_rows(wanted: pa.Table, found: pa.Table) -> tuple[str, str]:
    """Compare rows without their order."""
    theirs, ours = (
        sorted(repr(row) for row in zip(*map(cells, table.columns), strict=True))
        for table in (wanted, found)
    )
    kinds = [[layout(kind) for kind in table.schema.types] for table in (wanted, found)]
    if theirs == ours and kinds[0] == kinds[1]:
        return EQUAL, ""
    return DIFFERENT, f"Spark has {theirs[:3]} {kinds[0]}, we have {ours[:3]} {kinds[1]}"


def _streamed(stream: DataFrame, fed: pa.Table, mode: str) -> pa.Table:
    """The rows that Spark has for a stream in micro-batches."""
    with testing.SparkDriver(stream, output_mode=mode) as driver:
        driver.feed(fed)
        driver.epoch()
        return list(driver._epochs().values())[-1]


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _refusal(spark: SparkSession, stream: DataFrame, mode: str) -> str | None:
    """How Spark refuses a query because it is a stream."""
    jvm: Any = spark._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    wanted = modes.Complete() if mode == "complete" else modes.Append()
    try:
        checker.checkForStreaming(_plan(stream), wanted)
    except Exception as error:  # noqa: BLE001  its own error is the answer
        return failure_of(error).message.split("\n")[0]
    return None


def run_all(
    spark: SparkSession, examples: Sequence[Example], *, literal: bool = True, chunk: int = 60
) -> Report:
    """Compare examples: many in one query where that is possible."""
    report = Report()
    together = [e for e in examples if _is_expression(e)]
    for start in range(0, len(together), chunk):
        report.outcomes += run_expressions(spark, together[start : start + chunk], literal=literal)
    report.outcomes += [run_statement(spark, e) for e in examples if not _is_expression(e)]
    return report


def _is_expression(example: Example) -> bool:
    plain = not (example.relation or example.rest or example.columns.startswith("*"))
    return plain and example.group not in ("generator_funcs", "agg_funcs", "window_funcs")
