"""How much less CPU time Arrow needs for each of its functions than Spark's own code does.

The expressions are those that `tests/frames/test_arrow_functions.py` compares on odd rows. Here the
rows are plain, so that Arrow never asks Spark. A function counts with the expression in which it
is fastest to Spark's advantage: the lowest factor decides whether it stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from tests.frames.many_expressions import both_forms, frame_of
from tests.frames.test_arrow_functions import DDL, names_in, texts

from epochal.continuous.operators.expressions.evaluate import evaluate
from epochal.continuous.operators.expressions.expr import AskSpark, Expr

ROUNDS = 3

Cpu = Callable[[], float]


def factors(spark: SparkSession, cpu: Cpu, rows: int) -> dict[str, float]:
    """The CPU time of Spark's own code by that of Arrow, by the function's name in plans.

    `cpu` is that of this process and of the evaluator. While Arrow works, the evaluator may still
    compile, so only this process counts.
    """
    batch = plain_rows(rows)
    measured: list[tuple[set[str], float]] = []
    for arrow, in_spark in both_forms(spark, frame_of(spark, batch, DDL), texts()).values():
        if arrow is None:
            continue
        try:
            ours = seconds(arrow, batch, time.process_time)
        except (AskSpark, pa.ArrowException):
            continue
        measured.append((names_in(arrow, batch.schema.types), seconds(in_spark, batch, cpu) / ours))
    found: dict[str, float] = {}
    # What is measured alone says more than what is measured with others.
    for names, factor in sorted(measured, key=lambda each: (len(each[0]), each[1])):
        alone = names - set(found)
        for name in alone if len(names) > 1 else names:
            found[name] = min(factor, found.get(name, factor))
    return found


def seconds(expr: Expr, batch: pa.RecordBatch, cpu: Cpu) -> float:
    """The least CPU time of a few evaluations, after one that warms up."""
    taken = []
    for _ in range(ROUNDS + 1):
        before = cpu()
        evaluate(expr, batch)
        taken.append(cpu() - before)
    return max(1e-5, min(taken[1:]))


def plain_rows(rows: int) -> pa.RecordBatch:
    """Values of which Arrow is sure, in the columns of `DDL`."""
    small = [1 + number % 9 for number in range(rows)]
    micros = [1_767_225_600_000_000 + 100_000 * number for number in range(rows)]
    words = [f"ab{number % 1_000}" for number in range(rows)]
    decimals = [Decimal(number) / 4 for number in small]
    kinds: dict[str, Any] = {
        **dict.fromkeys("ij", pa.int32()),
        **dict.fromkeys("lm", pa.int64()),
        "b": pa.int8(),
        "h": pa.int16(),
        **dict.fromkeys("fg", pa.float64()),
        "r": pa.float32(),
    }
    stamps = pa.array(micros, pa.timestamp("us", "UTC"))
    texts_of = pa.array(words)
    columns: dict[str, Any] = {
        **{name: pa.array(small).cast(kind) for name, kind in kinds.items()},
        "d9": pa.array(decimals, pa.decimal128(12, 2)),
        "e9": pa.array(decimals, pa.decimal128(9, 4)),
        "d38": pa.array(decimals, pa.decimal128(38, 10)),
        "s": texts_of,
        "t": texts_of,
        "w": pa.array([str(number) for number in small]),
        "bin": texts_of.cast(pa.binary()),
        "bl": pa.array([number % 2 == 0 for number in small]),
        "c": pa.array([number % 3 == 0 for number in small]),
        "ts": stamps,
        "tu": stamps,
        "n": pa.array(micros, pa.timestamp("us")),
        "d": stamps.cast(pa.date32(), safe=False),
        "e": pa.array(small, pa.int32()).cast(pa.date32()),
        "st": pa.StructArray.from_arrays([pa.array(small, pa.int32()), texts_of], names=["x", "y"]),
    }
    return pa.RecordBatch.from_pydict(columns)
