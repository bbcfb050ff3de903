"""The table of our own aggregate functions, by the names of Spark's classes. Pure.

Arrow computes all of them, and many times faster than Spark's code. What is not in this table, or
not for a type, runs in Spark's code: see `spark_buffers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from epochal.continuous.operators.aggregation import extremes, sums
from epochal.continuous.operators.aggregation.calls import AggregateCall, Fold
from epochal.errors import OptionError

FUNCTIONS: dict[str, Callable[[AggregateCall, Sequence[pa.DataType]], Fold]] = {
    "Count": sums.count,
    "Sum": sums.sum_,
    "Average": sums.average,
    "Min": extremes.minimum,
    "Max": extremes.maximum,
    "First": extremes.first,
    "Last": extremes.last,
}
"""Each takes the call and the types of its arguments."""


def fold_of(call: AggregateCall, schema: pa.Schema) -> Fold:
    """The fold of an aggregate over input of this schema."""
    needed = [*call.arguments, *([] if call.filter is None else [call.filter])]
    unknown = [each for each in needed if each not in schema.names]
    if unknown:
        raise OptionError(
            f"{call.function} uses column {unknown[0]!r}, which does not exist. The columns are "
            f"{schema.names}"
        )
    if call.function not in FUNCTIONS:
        raise OptionError(
            f"{call.alias!r} is computed by {call.function}, which is not an aggregate function "
            f"here. Use one of {sorted(FUNCTIONS)}"
        )
    return FUNCTIONS[call.function](call, [schema.field(each).type for each in call.arguments])
