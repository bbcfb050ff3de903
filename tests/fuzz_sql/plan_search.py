"""Searches for plans whose rows here differ from Spark's, and shrinks what it finds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from tests.fuzz_sql.both_sides import Failure, cells, failure_of, new_folder, spark_rows
from tests.fuzz_sql.plans import FLUSH, SCHEMA, Plan, Planner, rows_of, table_of

from epochal import testing
from epochal.continuous.catalyst import expression_reader
from epochal.testing.driver.staged_sink import visible_tables

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
    restarts: tuple[int, ...] = ()
    """Before which epochs the query is started again."""
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


class PlanSearch:
    """Compares plans that follow from a seed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        for key, value in FIXED.items():
            spark.conf.set(key, value)
        self._table = table_of(spark)
        self.refused: list[str] = []
        """Plans that Spark or we refuse."""
        self.compared = 0

    def run(self, seed: int) -> PlanDifference | None:
        """Compare the plan of a seed."""
        plan, rows, history = self._of(seed)
        found = self._difference(seed, plan, rows, history)
        self.compared += 1
        return None if found is None else self._shrunk(found)

    def run_both_forms(self, seed: int) -> PlanDifference | None:
        """Compare the rows and the state of a plan that Arrow or only Spark's code evaluates."""
        plan, rows, history = self._of(seed)
        if plan.has_windows:
            rows = pa.concat_tables([rows, flush(rows.schema)])
        frame = plan.apply(self._stream())
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
        plan = Planner(chance, self._table).plan()
        rows = rows_of(chance, chance.randint(0, 40))
        return plan, rows, _history(chance, rows.num_rows)

    def _stream(self) -> DataFrame:
        source = testing.frame(STORED, spark=self._spark)
        return source.withColumn("q", source["q"].cast("decimal(18,4)"))

    def _difference(
        self, seed: int, plan: Plan, rows: pa.Table, history: History
    ) -> PlanDifference | None:
        if plan.has_windows:
            rows = pa.concat_tables([rows, flush(rows.schema)])
        place = new_folder()
        pq.write_table(rows, place / "rows.parquet", write_statistics=False)  # they leave out NaN
        raw = self._spark.read.schema(STORED).parquet(str(place)).coalesce(1)
        batch = raw.withColumn("q", raw["q"].cast("decimal(18,4)"))
        stream = self._stream()
        try:
            wanted = spark_rows(closed(plan, plan.apply(batch)))
            frame = plan.apply(stream)
        except Exception as error:  # noqa: BLE001  Spark refuses the plan
            self.refused.append(f"{plan}: {failure_of(error)}")
            return None
        found = self._ours(frame, plan, rows, history)
        if isinstance(found, Failure) and found.condition == "UnsupportedPlanError":
            self.refused.append(f"{plan}: {found.message}")
            return None
        theirs, ours = in_any_order(wanted), in_any_order(found)
        if theirs != ours and plan.has_windows and isinstance(found, pa.Table):
            # Spark's optimiser may drop the flush below the watermark. Then no window is closed.
            theirs = in_any_order(_streamed(frame, plan, rows, found.slice(0, 0)))
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
    return shown.filter(before(shown)) if plan.has_windows else shown


def _streamed(frame: DataFrame, plan: Plan, rows: pa.Table, empty: pa.Table) -> pa.Table:
    """What Spark shows for a stream in micro-batches."""
    with testing.SparkDriver(frame, output_mode=plan.mode) as driver:
        driver.feed(rows)
        driver.epoch()
        tables = [table for table in driver._epochs().values() if table.num_rows]
    return _shown(plan, tables, empty)


def _smaller(found: PlanDifference) -> Any:
    plan, rows, history = found.plan, found.rows, found.history
    if plan.has_windows:
        rows = rows.slice(0, rows.num_rows - 1)
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
    pieces = [*history.pieces, max(0, rows.num_rows - sum(history.pieces))]
    for epoch, size in enumerate(pieces):
        if epoch in history.restarts:
            driver.restart()
        piece = rows.slice(at, size)
        at += size
        for number in range(sources):
            driver.feed(number, piece)
        driver._running().end_epoch()
    driver._running().end_epoch()
    driver._running().end_epoch()


def _history(chance: random.Random, rows: int) -> History:
    pieces: list[int] = []
    while sum(pieces) < rows:
        pieces.append(chance.choice((0, 1, 3, 10, 40)))
    restarts = tuple(n for n in range(len(pieces)) if chance.random() < 0.2)
    return History(tuple(pieces), restarts, chance.choice((1, 2)), chance.choice((1, 3)))


def flush(schema: pa.Schema) -> pa.Table:
    """A row far in the future, which closes the windows of all others."""
    row = dict.fromkeys(schema.names) | {"n": 1, "k": 1, "s": "a", "d": 1.0, "q": 1.0, "ts": FLUSH}
    row |= {"bo": True, "ai": [1, 1], "st": {"a": 2, "b": "a"}}
    return pa.Table.from_pylist([row], schema)


def closed(plan: Plan, frame: DataFrame) -> DataFrame:
    """The rows of windows before the flush; all rows of other plans."""
    return frame.where("w.start < timestamp'2029-12-01'") if plan.has_windows else frame


def before(table: pa.Table) -> Any:
    starts = [None if w is None else w["start"] for w in table.column("w").to_pylist()]
    return pa.array([start is not None and start.year < 2029 for start in starts], pa.bool_())


def newest(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Of each key the last row."""
    columns = [cells(table.column(name)) for name in keys]
    last = {repr([c[row] for c in columns]): row for row in range(table.num_rows)}
    return table.take(pa.array(sorted(last.values()), pa.int64()))


def in_any_order(table: Any) -> Any:
    if isinstance(table, Failure):
        return f"{table.condition}: {table.message}"
    return sorted(map(repr, zip(*map(cells, table.columns), strict=True)))
