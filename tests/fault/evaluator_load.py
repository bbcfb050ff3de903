"""A process that has Spark's own code evaluate batches, as a task does, until it is killed.

    python -m tests.fault.evaluator_load CALL [once|forever]

CALL is a file with a pickled call. It prints `ready` after the first batch, and `wrong` for a batch
with other rows than expected.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from epochal.continuous.operators.expressions.evaluate import evaluate
from epochal.continuous.operators.expressions.spark_calls import spark_values


def batch_of(rows: int, start: int = 0) -> pa.RecordBatch:
    values = range(start, start + rows)
    return pa.record_batch({"value": pa.array(values), "text": pa.array(list(map(str, values)))})


def is_right(call: Any, batch: pa.RecordBatch) -> bool:
    """Whether Spark's code computes what `INCREMENT` says."""
    (found,) = spark_values([call], batch, evaluate)
    values: list[Any] = batch.column("value").to_pylist()
    expected = [f"{value}:{value + 1}" for value in values]
    return bool(found.to_pylist() == expected)


def main(path: str, how: str) -> None:
    call = pickle.loads(Path(path).read_bytes())
    start, said = 0, False
    while True:
        if not is_right(call, batch_of(1 + start % 3_000, start)):
            sys.stdout.write("wrong\n")
        if not said:
            sys.stdout.write("ready\n")
            said = True
        sys.stdout.flush()
        start += 1
        if how == "once":
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
