"""Functions that have a value of their own for each row: random ones, and errors.

Spark seeds random functions anew for every batch, so their values are not the same in two runs.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Value
from epochal.continuous.operators.expressions.nested.higher_order import BatchFunction, Evaluate
from epochal.continuous.operators.expressions.nested.lists_of import arrow
from epochal.continuous.operators.expressions.values_of import as_column
from epochal.errors import OptionError

_random = np.random.default_rng()


def _rand(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    return pa.array(_random.random(batch.num_rows))


def _randn(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    return pa.array(_random.standard_normal(batch.num_rows))


def _uuid(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    data = _random.integers(0, 256, (batch.num_rows, 16), np.uint8)
    data[:, 6] = data[:, 6] & 0x0F | 0x40  # version 4
    data[:, 8] = data[:, 8] & 0x3F | 0x80
    texts = [row.tobytes().hex() for row in data]
    parts = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    return pa.array(["-".join(text[a:b] for a, b in parts) for text in texts], pa.string())


def _raise(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    if not batch.num_rows:
        return arrow.nulls(0, call.type)
    name, parameters = (
        as_column(evaluate(argument, batch), batch.num_rows)[0].as_py()
        for argument in call.arguments
    )
    message = dict(parameters or []).get("errorMessage", parameters)
    raise OptionError(f"{name}: {message}")


FUNCTIONS: dict[str, BatchFunction] = {
    "Rand": _rand,
    "Randn": _randn,
    "RaiseError": _raise,
    "Uuid": _uuid,
}
