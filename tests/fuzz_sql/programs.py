"""Random programs: a source, a plan, a sink, a trigger, stops and restarts while input arrives.

A program runs as `epochal.write_stream` runs it, with files and checkpoints on disk. Spark reads
the same input as a batch, applies the same plan, and writes what the sink must have in the end.
"""

from __future__ import annotations

import csv
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from tests.fuzz_sql.both_sides import Failure, failure_of, new_folder, spark_rows
from tests.fuzz_sql.plan_search import (
    FIXED,
    STORED,
    before_flush,
    closed,
    flush,
    in_any_order,
    newest,
    streamed,
    with_decimals,
)
from tests.fuzz_sql.plan_steps import Inputs, table_of
from tests.fuzz_sql.plans import Plan, Planner, rows_of
from tests.waiting import eventually

import epochal
from epochal.continuous.api.query_handle import StreamingQuery

PATIENCE_SECONDS = 120.0
HASTE_SECONDS = 0.5
"""How long a query runs that does not wait until all is processed."""

MOST_RUNS = 5
"""How many smaller programs of one that differs are tried."""

SOURCES = ("json", "parquet", "csv", "rate")
TRIGGERS: tuple[dict[str, Any], ...] = (
    {"availableNow": True},
    {"processingTime": "0 seconds"},
    {"epoch": "20 milliseconds"},
)
TEXTS = STORED.replace("array<int>", "string").replace("struct<a:int,b:string>", "string")
"""The columns of a CSV file, which cannot have nested values."""

RATE_ROWS = 60
"""How many rows of the rate source count."""
FROM_VALUE = (
    "value AS n",
    "if(value % 7 = 0, null, int(value % 5)) AS k",
    "if(value % 6 = 0, null, substring('aBé ', int(value % 4), 1)) AS s",
    "if(value % 8 = 0, null, value / 4D) AS d",
    "if(value % 9 = 0, null, value / 4D) AS q",
    f"if(value = {RATE_ROWS - 1}, timestamp'2030-01-01', "
    "timestamp_seconds(1711843200 + 120 * value)) AS ts",
    "if(value % 5 = 0, null, value % 3 = 0) AS bo",
    "if(value % 11 = 0, null, sequence(0, int(value % 3))) AS ai",
    "if(value % 10 = 0, null, named_struct('a', int(value % 4), 'b', string(value % 3))) AS st",
)
"""The columns of a plan, computed from the numbers of the rate source."""


@dataclass(frozen=True, slots=True)
class Program:
    """What a user would write, and when input arrives."""

    source: str
    plan: Plan
    sink: str
    trigger: dict[str, Any]
    pieces: tuple[int, ...]
    """The number of rows that arrive at a time."""
    stops: tuple[bool | None, ...]
    """Whether the query is stopped after a piece: None leaves it running, False does not wait."""

    def __str__(self) -> str:
        arrival = f"pieces {self.pieces}, stops {self.stops}"
        return f"{self.source} → {self.plan} → {self.sink}, {self.trigger}, {arrival}"


@dataclass(slots=True)
class ProgramRun:
    """One run of a program, in a directory of its own."""

    spark: SparkSession
    program: Program
    table: DataFrame
    place: Path = field(default_factory=new_folder)
    batches: dict[int, pa.Table] = field(default_factory=dict)
    """What the function of `foreachBatch` got."""

    def frame(self, *, stream: bool) -> DataFrame:
        """The result of the program, as a stream or a batch."""
        one, other = (with_decimals(self._input(stream=stream)) for _ in range(2))
        return self.program.plan.apply(Inputs(one, other, self.table))

    def _input(self, *, stream: bool) -> DataFrame:
        """The rows of the source."""
        source, reader = self.program.source, self.spark.readStream if stream else self.spark.read
        if source == "rate":
            values = self.spark.range(RATE_ROWS).withColumnRenamed("id", "value")
            if stream:
                values = reader.format("rate").option("rowsPerSecond", 1000).load()
            return values.where(f"value < {RATE_ROWS}").selectExpr(*FROM_VALUE)
        if source != "csv":
            raw = reader.schema(STORED).format(source).load(str(self.place / "in"))
        else:
            raw = reader.schema(TEXTS).csv(str(self.place / "in"))
            nested = {name: f"from_json({name}, '{kind}')" for name, kind in
                      (("ai", "array<int>"), ("st", "a int, b string"))}  # fmt: skip
            raw = raw.selectExpr(*(f"{nested.get(n, n)} AS {n}" for n in raw.columns))
        return raw if stream else raw.coalesce(1)

    def wanted(self) -> Any:
        """Spark's rows, as the sink would show them."""
        return self._as_written(closed(self.program.plan, self.frame(stream=False)))

    def wanted_of_stream(self, schema: pa.Schema) -> Any:
        """The same for a query over which the row in the future may have no power."""
        rows = spark_rows(self._input(stream=False))
        assert isinstance(rows, pa.Table)
        shown = streamed(self.spark, self.program.plan, rows, schema)
        return self._as_written(self.spark.createDataFrame(shown).coalesce(1))

    def _as_written(self, frame: DataFrame) -> Any:
        if self.program.sink not in ("json", "parquet"):
            return spark_rows(frame)
        frame.write.mode("overwrite").format(self.program.sink).save(str(self.place / "wanted"))
        return spark_rows(self._written("wanted", frame))

    def run(self, rows: pa.Table) -> Any:
        """Our rows when all of them have arrived, or how the query failed."""
        (self.place / "in").mkdir()
        query: StreamingQuery | None = None
        at = 0
        try:
            for number, size in enumerate(self.program.pieces):
                self._add(number, rows.slice(at, size))
                at += size
                stop = self.program.stops[number] if at < rows.num_rows else True
                query = query or self._start()
                if stop is False:
                    time.sleep(HASTE_SECONDS)  # the query may be anywhere then
                else:
                    self._settle(query)
                if stop is not None or "availableNow" in self.program.trigger:
                    query.stop()
                    query = None
            return self._shown()
        except Exception as error:  # noqa: BLE001  an error is a result
            return failure_of(error)
        finally:
            if query:
                query.stop()

    def _start(self) -> StreamingQuery:
        program = self.program
        writer = epochal.write_stream(self.frame(stream=True)).outputMode(program.plan.mode)
        writer.option("checkpointLocation", str(self.place / "ck")).trigger(**program.trigger)
        match program.sink:
            case "foreachBatch":
                return writer.foreachBatch(self._keep).start()
            case "memory":
                return writer.format("memory").queryName(self._view).start()
        return writer.format(program.sink).start(str(self.place / "out"))

    @property
    def _view(self) -> str:
        return self.place.name.replace("-", "_")

    def _keep(self, frame: DataFrame, epoch: int) -> None:
        table = spark_rows(frame)
        if isinstance(table, Failure):
            raise AssertionError(table.message)
        self.batches[epoch] = table

    def _settle(self, query: StreamingQuery) -> None:
        """Wait until the query has processed what there is."""
        if "availableNow" in self.program.trigger:
            assert query.awaitTermination(PATIENCE_SECONDS), "the query does not end"
            return
        if self.program.source != "rate":
            query.process_all_available(PATIENCE_SECONDS)
            return

        def seconds() -> int:
            progress = query.last_progress
            return int(json.loads(progress.sources[0].endOffset or "0")) if progress else 0

        eventually(lambda: seconds() >= 2, seconds=PATIENCE_SECONDS)

    def _add(self, number: int, rows: pa.Table) -> None:
        """A file with rows, which appears at once."""
        if self.program.source == "rate":
            return
        part = self.place / f"part-{number}"
        match self.program.source:
            case "parquet":
                pq.write_table(rows, part, write_statistics=False)  # they leave out NaN
            case "json":
                part.write_text("".join(f"{json.dumps(row, default=str)}\n" for row in
                                        rows.to_pylist()))  # fmt: skip
            case _:
                with part.open("w", newline="") as file:
                    csv.writer(file).writerows(
                        [_as_text(value) for value in row.values()] for row in rows.to_pylist()
                    )
        part.rename(self.place / "in" / f"{number}.{self.program.source}")

    def _shown(self) -> Any:
        plan = self.program.plan
        shown: Any
        match self.program.sink:
            case "foreachBatch":
                tables = [self.batches[epoch] for epoch in sorted(self.batches)]
                empty: Any = spark_rows(self.frame(stream=False).limit(0))
                shown = pa.concat_tables(
                    tables[-1:] if plan.mode == "complete" else tables or [empty]
                )
            case "memory":
                shown = spark_rows(self.spark.table(self._view))
            case _:
                shown = spark_rows(self._written("out", self.frame(stream=False)))
        if plan.mode == "update":
            shown = newest(shown, plan.keys)
        return before_flush(plan, shown)

    def _written(self, folder: str, frame: DataFrame) -> DataFrame:
        reader = self.spark.read.schema(frame.schema).format(self.program.sink)
        return reader.load(str(self.place / folder))


def _as_text(value: Any) -> Any:
    """A value of a CSV file. Spark reads an empty one as null."""
    return json.dumps(value) if isinstance(value, list | dict) else value


@dataclass(frozen=True, slots=True)
class ProgramDifference:
    """A program whose rows differ."""

    seed: int
    program: Program
    rows: pa.Table
    wanted: Any
    found: Any

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.program}; rows: {self.rows.to_pylist()}; "
            f"Spark has {str(self.wanted)[:500]}, we have {str(self.found)[:500]}"
        )


class ProgramSearch:
    """Compares programs that follow from a seed."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        for key, value in FIXED.items():
            spark.conf.set(key, value)
        self._table = table_of(spark)
        self.compared = Counter[str]()
        """How many programs there were of each source, sink and trigger."""

    def run(self, seed: int, *, shrinks: bool = True) -> ProgramDifference | None:
        """Compare the program of a seed; of one that differs return a smaller one that does."""
        program, rows = random_program(random.Random(seed))
        self.compared.update([program.source, program.sink, *program.trigger])
        smallest = self._difference(seed, program, rows)
        runs, candidates = 0, _smaller(program)
        while shrinks and smallest and runs < MOST_RUNS and (less := next(candidates, None)):
            runs += 1
            if found := self._difference(seed, less, rows):
                smallest, candidates = found, _smaller(less)
        return smallest

    def _difference(self, seed: int, program: Program, rows: pa.Table) -> ProgramDifference | None:
        run = ProgramRun(self._spark, program, self._table)
        result, wanted = run.run(rows), run.wanted()
        ours, theirs = in_any_order(result), in_any_order(wanted)
        if ours != theirs and program.plan.times and isinstance(result, pa.Table):
            theirs = in_any_order(run.wanted_of_stream(result.schema))
        return None if ours == theirs else ProgramDifference(seed, program, rows, theirs, ours)


def random_program(chance: random.Random) -> tuple[Program, pa.Table]:
    """A program, and the rows that arrive."""
    plan = Planner(chance).plan()
    source = chance.choice(SOURCES)
    sinks = ["foreachBatch"]
    sinks += ["parquet", "json"] if plan.mode == "append" else []
    sinks += ["memory"] if plan.mode != "update" else []
    sink = chance.choice(sinks)
    # A rate source never ends, and rows in memory end with their query.
    endless = source == "rate" or sink == "memory"
    trigger = chance.choice(TRIGGERS[1:] if endless else TRIGGERS)
    rows = rows_of(chance, chance.randint(5, 60))
    cuts = [0, *sorted(chance.sample(range(1, rows.num_rows), chance.randint(1, 4))), rows.num_rows]
    pieces = [end - start for start, end in pairwise(cuts)]
    if plan.times:
        rows, pieces = pa.concat_tables([rows, flush(rows.schema)]), [*pieces, 1]
    stops = tuple(None if sink == "memory" else chance.choice((None, True, False)) for _ in pieces)
    return Program(source, plan, sink, trigger, tuple(pieces), stops), rows


def _smaller(program: Program) -> Iterator[Program]:
    never = (None,) * len(program.stops)
    if program.stops != never:
        yield replace(program, stops=never)
    for plan in program.plan.smaller():
        yield replace(program, plan=plan)
