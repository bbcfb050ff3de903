"""Searches for plans whose rows here differ from Spark's, and shrinks what it finds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, get_args
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from tests.fuzz_sql.both_sides import Failure, cells, failure_of, spark_rows
from tests.fuzz_sql.plan_steps import Inputs, table_of
from tests.fuzz_sql.plans import FLUSH, SCHEMA, Plan, Planner, rows_of

from epochal import testing
from epochal.continuous.catalyst import expression_reader
from epochal.testing.driver.histories import CrashStep
from epochal.testing.driver.staged_sink import visible_tables
from epochal.testing.files import Crash

FIXED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "Europe/Berlin",
    # Spark's batch is one task.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}


STORED = SCHEMA.replace("q decimal(18,4)", "q double")
"""The columns of a file. Decimals are computed from it."""


@contextmanager
def only_sparks_code() -> Iterator[None]:
    """Let Arrow evaluate no function, as if none were proven."""
    with (
        patch.object(expression_reader, "FUNCTIONS", {}),
        patch.object(expression_reader, "CHOICES", ()),
    ):
        yield


@dataclass(frozen=True, slots=True)
class History:
    """How rows reach the query: pieces, epochs without rows, restarts."""

    pieces: tuple[int, ...]
    """The number of rows of each epoch."""
    stops: tuple[CrashStep | None, ...] = ()
    """Before which step of each epoch the query is killed, to be started again."""
    tasks: int = 1
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """A plan with rows that differ."""

    seed: int
    plan: Plan
    rows: pa.Table
    history: History
    wanted: Any
    found: Any

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.plan}; rows: {self.rows.to_pylist()}; {self.history}; "
            f"Spark has {str(self.wanted)[:500]}, we have {str(self.found)[:500]}"
        )


REFUSALS = ("UnsupportedPlanError", "PLAN_VALIDATION_FAILED_RULE_IN_BATCH")
"""How a plan ends that cannot run. The second is from Spark's optimizer, which fails for its own
streams, too, such as a rollup of a union of a stream with itself."""


class PlanSearch:
    """Compares plans that follow from a seed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        for key, value in FIXED.items():
            spark.conf.set(key, value)
        self._stream = stream_inputs(spark)
        self.refused: list[str] = []
        """Plans that Spark or we refuse."""
        self.compared = 0
        self.streamed = 0
        """Plans for which Spark had to run a stream."""

    def run(self, seed: int, *, shrinks: bool = True) -> PlanDifference | None:
        """Compare the plan of a seed; of one that differs return the smallest that does."""
        plan, rows, history = self._of(seed)
        found = self._difference(seed, plan, rows, history)
        self.compared += 1
        return self._shrunk(found) if found and shrinks else found

    def run_both_forms(self, seed: int) -> PlanDifference | None:
        """Compare the rows and the state of a plan that Arrow or only Spark's code evaluates."""
        plan, rows, history = self._of(seed)
        rows = _with_flush(plan, rows)
        frame = plan.apply(self._stream)
        with_arrow: dict[str, bytes] = {}
        without: dict[str, bytes] = {}
        one = in_any_order(self._ours(frame, plan, rows, history, with_arrow))
        with only_sparks_code():
            other = in_any_order(self._ours(frame, plan, rows, history, without))
        self.compared += 1
        if (one, with_arrow) == (other, without):
            return None
        paths = with_arrow.keys() | without.keys()
        state = [path for path in paths if with_arrow.get(path) != without.get(path)]
        return PlanDifference(seed, plan, rows, history, (other, state), one)

    def _of(self, seed: int) -> tuple[Plan, pa.Table, History]:
        chance = random.Random(seed)
        plan = Planner(chance).plan()
        rows = rows_of(chance, chance.randint(0, 40))
        return plan, rows, _history(chance, rows.num_rows)

    def _difference(
        self, seed: int, plan: Plan, rows: pa.Table, history: History
    ) -> PlanDifference | None:
        rows = _with_flush(plan, rows)
        batch = with_decimals(self._spark.createDataFrame(rows).coalesce(1))
        try:
            wanted = spark_rows(closed(plan, plan.apply(Inputs(batch, batch, self._stream.table))))
            frame = plan.apply(self._stream)
        except Exception as error:  # noqa: BLE001  Spark refuses the plan
            self.refused.append(f"{plan}: {failure_of(error)}")
            return None
        found = self._ours(frame, plan, rows, history)
        if isinstance(found, Failure) and found.condition in REFUSALS:
            self.refused.append(f"{plan}: {found.message}")
            return None
        theirs, ours = in_any_order(wanted), in_any_order(found)
        if theirs != ours and plan.times and isinstance(found, pa.Table):
            # Spark's optimiser may drop the flush below the watermark. Then no window is closed.
            self.streamed += 1
            theirs = in_any_order(streamed(self._spark, plan, rows, found.schema))
        if theirs == ours:
            return None
        return PlanDifference(seed, plan, rows, history, theirs, ours)

    def _ours(
        self,
        frame: DataFrame,
        plan: Plan,
        rows: pa.Table,
        history: History,
        state: dict[str, bytes] | None = None,
    ) -> Any:
        """Our rows, or how the query failed. `state` takes the files of the state."""
        try:
            with testing.Driver(
                frame, output_mode=plan.mode, tasks=history.tasks, partitions=history.partitions
            ) as driver:
                _feed(driver, rows, history, len(driver._fed))
                tables = [t for t in visible_tables(driver.files).values() if t.num_rows]
                empty = driver._query.tree.schema.empty_table()
                if state is not None:
                    kept = driver.files.at("checkpoint/state")
                    state |= {path: kept.read(path) for path, _ in kept.walk()}
        except Exception as error:  # noqa: BLE001  an error is a result
            return failure_of(error)
        return _shown(plan, tables, empty)

    def _shrunk(self, found: PlanDifference) -> PlanDifference:
        """Leave out whatever is not needed for a difference."""
        smaller: PlanDifference | None = found
        while smaller is not None:
            found, smaller = smaller, None
            for plan, rows, history in _smaller(found):
                smaller = self._difference(found.seed, plan, rows, history)
                if smaller is not None:
                    break
        return found


def _shown(plan: Plan, tables: list[pa.Table], empty: pa.Table) -> pa.Table:
    """What a plan shows in the end, of the rows of its epochs; without those of the flush."""
    shown = pa.concat_tables((tables or [empty])[-1 if plan.mode == "complete" else 0 :])
    if plan.mode == "update":
        shown = newest(shown, plan.keys)
    return before_flush(plan, shown)


def stream_inputs(spark: SparkSession) -> Inputs:
    """Two streams that a driver feeds."""
    one, other = (testing.frame(STORED, name, spark=spark) for name in ("rows", "other"))
    return Inputs(with_decimals(one), with_decimals(other), table_of(spark))


def streamed(spark: SparkSession, plan: Plan, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """What Spark shows for a stream in micro-batches."""
    frame = plan.apply(stream_inputs(spark))
    with testing.SparkDriver(frame, output_mode=plan.mode) as driver:
        for number in range(len(driver._fed)):
            driver.feed(number, rows)
        driver.epoch()
        tables = [table for table in driver._epochs().values() if table.num_rows]
    return _shown(plan, tables, schema.empty_table())


def _smaller(found: PlanDifference) -> Any:
    plan, history = found.plan, found.history
    rows = found.rows.slice(0, found.rows.num_rows - bool(plan.times))
    simple = History((rows.num_rows,))
    if history != simple:
        yield plan, rows, simple
    for less in plan.smaller():
        yield less, rows, history
    half = rows.num_rows // 2
    for start, size in ((0, half), (half, rows.num_rows - half)):
        if half:
            piece = rows.slice(start, size)
            yield plan, piece, History((size,))


def _feed(driver: testing.Driver, rows: pa.Table, history: History, sources: int) -> None:
    at = 0
    pieces = [*history.pieces, max(0, rows.num_rows - sum(history.pieces)), 0, 0]
    for size, stop in zip_longest(pieces, history.stops):
        piece = rows.slice(at, size)
        at += size
        for number in range(sources):
            driver.feed(number, piece)
        if stop is not None:
            driver._running().die_before(stop)
            with suppress(Crash):
                driver._running().end_epoch()
            driver.restart()
        driver._running().end_epoch()


def _history(chance: random.Random, rows: int) -> History:
    pieces: list[int] = []
    while sum(pieces) < rows:
        pieces.append(chance.choice((0, 1, 3, 10, 40)))
    steps = get_args(CrashStep)
    stops = tuple(chance.choice(steps) if chance.random() < 0.2 else None for _ in pieces)
    return History(tuple(pieces), stops, chance.choice((1, 2)), chance.choice((1, 3)))


def with_decimals(frame: DataFrame) -> DataFrame:
    """The columns of a plan, from those of a file."""
    return frame.withColumn("q", frame["q"].cast("decimal(18,4)"))


def _with_flush(plan: Plan, rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, flush(rows.schema)]) if plan.times else rows


def flush(schema: pa.Schema) -> pa.Table:
    """A row far in the future, which closes the windows of all others. It meets all conditions."""
    row = dict.fromkeys(schema.names) | {"n": 1, "k": 3, "s": "a", "d": 1.0, "q": 1.0, "ts": FLUSH}
    row |= {"bo": True, "ai": [1, 1], "st": {"a": 2, "b": "a"}}
    return pa.Table.from_pylist([row], schema)


def closed(plan: Plan, frame: DataFrame) -> DataFrame:
    """The rows of a result that are older than the flush."""
    if not plan.times:
        return frame
    return frame.where(f"coalesce({', '.join(plan.times)}) < timestamp'2029-06-01'")


def before_flush(plan: Plan, table: pa.Table) -> pa.Table:
    """The same for our rows."""
    if not plan.times:
        return table
    columns = [_column(table, name).to_pylist() for name in plan.times]
    times = [next(filter(None, row), None) for row in zip(*columns, strict=True)]
    kept = [time is not None and (time.year, time.month) < (2029, 6) for time in times]
    return table.filter(pa.array(kept, pa.bool_()))


def _column(table: pa.Table, path: str) -> Any:
    name, _, member = path.partition(".")
    column = table.column(name)
    return pc.struct_field(column, member) if member else column


def newest(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Of each key the last row."""
    columns = [cells(table.column(name)) for name in keys]
    last = {repr([c[row] for c in columns]): row for row in range(table.num_rows)}
    return table.take(pa.array(sorted(last.values()), pa.int64()))


def in_any_order(table: Any) -> Any:
    if isinstance(table, Failure):
        return f"{table.condition}: {table.message}"
    return sorted(map(repr, zip(*map(cells, table.columns), strict=True)))
