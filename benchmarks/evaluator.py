"""Expressions in Spark's own code and in Arrow: latency and CPU time by the number of rows.

Both ways take turns in one process, over the same batches. The CPU time of Spark's way is that of
this process and of the evaluator. Then come each function that Arrow evaluates, for the page of
functions, the evaluator's memory after many batches, and the time from `start()` to the first
commit: in a fresh session and in a warm one, of a query that needs the evaluator and of one that
does not. Each of those sessions is a process of its own.

    python -m benchmarks.evaluator [--quick] [--busy] [KIND ... | functions | memory | start]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from benchmarks.arrow_functions import factors
from benchmarks.harness import Report, arguments, child_environment, cpu_seconds, percentile
from pyspark.sql import SparkSession

from epochal.continuous.catalyst.expression_reader import (
    ExpressionReader,
    NotInArrow,
    SparkExpressions,
)
from epochal.continuous.catalyst.releases import with_replacements
from epochal.continuous.catalyst.spark_objects import arrow_type_of, items
from epochal.continuous.operators.expressions.evaluate import evaluate_all
from epochal.continuous.operators.expressions.expr import Expr
from epochal.evaluator.evaluator_client import CLIENT

KINDS = {
    "integers": "n * 3 + 1",
    "CASE of numbers": "CASE WHEN n % 3 = 0 THEN n WHEN n % 5 = 0 THEN -n ELSE 0 END",
    "date_format": "date_format(t, 'yyyy-MM-dd')",
    "text": "upper(concat(s, '!'))",
    "initcap": "initcap(s)",
    "regexp_replace": "regexp_replace(s, '[aeiou]+', '_')",
    "from_json": "from_json(j, 'a LONG, b STRING')",
    "higher-order": "transform(sequence(1, 4), x -> x + n)",
    "soundex": "soundex(s)",
}
FIVE = ("text", "integers", "regexp_replace", "date_format", "initcap")
NEEDS = "to_csv(struct(value, 'a' AS text)) AS x"
"""An expression that only Spark's own code can evaluate."""


@dataclass(frozen=True, slots=True)
class Size:
    rounds: tuple[tuple[int, int], ...] = ((1, 3_000), (1_000, 300), (100_000, 15))
    """Rows of a batch, and how many batches are measured."""
    memory_batches: int = 200
    starts: int = 5


QUICK = Size(((1, 100), (1_000, 20)), 10, 1)


def main() -> None:
    parser = arguments("evaluator")
    parser.add_argument("parts", nargs="*", help="kinds of expressions, functions, memory, start")
    parser.add_argument("--child", help=SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        sys.stdout.write(json.dumps(starts(asked.child)) + "\n")
        return
    report = Report("evaluator", busy=asked.busy, quick=asked.quick)
    size = QUICK if asked.quick else Size()
    parts = asked.parts or [*KINDS, "functions", "memory", "start"]
    if "start" in parts:
        measure_starts(report, size.starts)
    if set(parts) - {"start"}:
        bench = Bench(session(), report)
        for kind in KINDS:
            if kind in parts:
                bench.measure(kind, size)
        if "functions" in parts:
            bench.measure_functions(size.rounds[-1][0])
        if "memory" in parts:
            bench.measure_memory(size.memory_batches)


def session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    made = builder.config("spark.log.level", "ERROR").getOrCreate()
    return made


def batch_of(rows: int) -> pa.RecordBatch:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.record_batch(
        {
            "n": pa.array(range(rows)),
            "s": pa.array([f"hello world {number} abc" for number in range(rows)]),
            "t": pa.array(
                [start + timedelta(seconds=number) for number in range(rows)],
                pa.timestamp("us", "UTC"),
            ),
            "j": pa.array([f'{{"a": {number}, "b": "x{number}"}}' for number in range(rows)]),
        }
    )


class Bench:
    """Expressions of one session, by either way."""

    def __init__(self, spark: SparkSession, report: Report) -> None:
        self._spark, self._report = spark, report
        self._in_spark = SparkExpressions(spark)

    def measure(self, kind: str, size: Size) -> None:
        arrow, spark = self._exprs(KINDS[kind])
        ways = {"spark": spark} if arrow is None else {"arrow": arrow, "spark": spark}
        for rows, rounds in size.rounds:
            batch, values = batch_of(rows), dict[str, float]()
            times: dict[str, list[float]] = {way: [] for way in ways}
            cpu = dict.fromkeys(ways, 0.0)
            for turn in range(-(rounds // 3), rounds):
                for way, expr in ways.items():
                    cpu_of = _cpu if way == "spark" else time.process_time
                    seconds, used = timed(lambda: evaluate_all([expr], batch), cpu_of)  # noqa: B023
                    if turn >= 0:
                        times[way].append(seconds)
                        cpu[way] += used
            for way, taken in times.items():
                values[f"{way}_p50_ms"] = 1e3 * percentile(taken, 50)
                values[f"{way}_p99_ms"] = 1e3 * percentile(taken, 99)
                values[f"{way}_rows_per_cpu_second"] = rows * rounds / max(0.01, cpu[way])
            self._report.row(f"{kind}, {rows} rows", kind=kind, rows=rows, **values)

    def measure_functions(self, rows: int) -> None:
        found = factors(self._spark, _cpu, rows)
        shown = {name: round(factor, 1) for name, factor in sorted(found.items())}
        self._report.row("functions", rows=rows, factors=shown)

    def measure_memory(self, batches: int) -> None:
        exprs = [self._exprs(KINDS[kind])[1] for kind in FIVE]
        batch = batch_of(10_000)
        for _ in range(batches):
            evaluate_all(exprs, batch)
        self._report.row(
            "memory", batches=batches, resident_mebibytes=resident_mib(evaluator_pid())
        )

    def _exprs(self, text: str) -> tuple[Expr | None, Expr]:
        """The expression for Arrow, if it can, and for Spark's own code."""
        columns = "n LONG, s STRING, t TIMESTAMP, j STRING"
        frame: Any = self._spark.createDataFrame([], columns).selectExpr(f"{text} AS x")
        analyzed = frame._jdf.queryExecution().analyzed()
        ids = {
            int(column.exprId().id()): number
            for number, column in enumerate(items(analyzed.child().output()))
        }
        expr = next(items(with_replacements(self._spark, analyzed).projectList()))
        in_spark = self._in_spark.call(expr, ids)
        types = [arrow_type_of(column.dataType()) for column in items(analyzed.child().output())]
        try:
            return ExpressionReader(self._spark, ids, types).read(expr), in_spark
        except NotInArrow:
            return None, in_spark


def evaluator_pid() -> int:
    pid = CLIENT._connection().evaluator
    assert pid is not None
    return pid


def timed(call: Callable[[], object], cpu: Callable[[], float]) -> tuple[float, float]:
    """The wall time and the CPU time of a call."""
    used, began = cpu(), time.perf_counter()
    call()
    return time.perf_counter() - began, cpu() - used


def _cpu() -> float:
    """The CPU time of this process and the evaluator."""
    return time.process_time() + _evaluator_cpu(evaluator_pid())


def _evaluator_cpu(pid: int) -> float:
    """In nanoseconds where the scheduler counts them: ticks are too coarse for one batch."""
    try:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
    except OSError:
        return cpu_seconds(pid)


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def measure_starts(report: Report, rounds: int) -> None:
    """From `start()` to the first commit, by what the query needs and what it finds."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for needs in ("arrow", "spark"):
            command = [sys.executable, "-m", "benchmarks.evaluator", "--child", needs]
            run = subprocess.run(command, capture_output=True, text=True, env=child_environment())
            if run.returncode:
                raise SystemExit(run.stderr[-2000:])
            fresh, warm = json.loads(run.stdout.splitlines()[-1])
            found.setdefault(f"{needs}, fresh session", []).append(fresh)
            found.setdefault(f"{needs}, warm session", []).append(warm)
    for name, seconds in found.items():
        report.row(
            f"start: {name}",
            p50_seconds=percentile(seconds, 50),
            max_seconds=max(seconds),
            rounds=rounds,
        )


def starts(needs: str) -> Sequence[float]:
    """The seconds of the first and of the third start in a session."""
    import epochal

    spark = session()
    seconds = []
    for _ in range(3):
        rows = spark.readStream.format("rate").option("rowsPerSecond", 1_000).load()
        frame = rows.selectExpr("value", "value + 1 AS x" if needs == "arrow" else NEEDS)
        began = time.perf_counter()
        query = epochal.write_stream(frame).foreachBatch(lambda _rows, _epoch: None).start()
        while query.lastProgress is None:
            time.sleep(0.005)
            if query.exception():
                raise SystemExit(str(query.exception()))
        seconds.append(time.perf_counter() - began)
        query.stop()
    spark.stop()
    return seconds[0], seconds[2]


if __name__ == "__main__":
    main()
