"""Functions that take lambdas, such as `transform` and `filter`. Pure.

The body of a lambda is evaluated once for the elements of all rows: the batch is repeated for every
element, and the parameters become further columns of it. `aggregate` is evaluated once for each
position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import (
    Call,
    Column,
    Expr,
    Lambda,
    Literal,
    Value,
    columns_in,
)
from epochal.continuous.operators.expressions.nested.arrays import (
    element_at_each,
    sorted_nulls_last,
)
from epochal.continuous.operators.expressions.nested.lists_of import (
    Array,
    Flags,
    Ints,
    Lists,
    bool_column,
    list_column,
    lists_of,
    retyped,
    taken,
)
from epochal.continuous.operators.expressions.nested.maps import map_column
from epochal.continuous.operators.expressions.nested.ranks import ranks
from epochal.continuous.operators.expressions.values_of import as_column
from epochal.errors import OptionError
from epochal.record_batches import batch_of

Evaluate: TypeAlias = Callable[[Expr, pa.RecordBatch], Value]
BatchFunction: TypeAlias = Callable[[Call, pa.RecordBatch, Evaluate], Value]
"""Takes a call, the batch, and the function that evaluates the call's arguments."""

MAX_PAIRS = 1_000_000
"""How many pairs of elements are compared at once."""


def _apply(
    function: Expr,
    batch: pa.RecordBatch,
    rows: Ints,
    parameters: Sequence[Array],
    evaluate: Evaluate,
) -> Array:
    """The values of a lambda for some rows of the batch, and its parameters there."""
    assert isinstance(function, Lambda)
    used = columns_in(function.body)
    outer = [
        taken(batch.column(index), rows) if index in used else pa.nulls(len(rows))
        for index in range(function.first)
    ]
    columns = [*outer, *parameters[: function.parameters]]
    inner = batch_of(columns, [str(i) for i in range(len(columns))], len(rows))
    return as_column(evaluate(function.body, inner), len(rows))


def _lists(call: Call, batch: pa.RecordBatch, evaluate: Evaluate, index: int = 0) -> Lists:
    return lists_of(as_column(evaluate(call.arguments[index], batch), batch.num_rows))


def _positions(lists: Lists) -> Array:
    return pa.array(lists.position_of.astype(np.int32))


def _transform(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    lists = _lists(call, batch, evaluate)
    parameters = [lists.elements, _positions(lists)]
    made = _apply(call.arguments[1], batch, lists.row_of, parameters, evaluate)
    return list_column(made, lists.counts, lists.nulls, call.type)


def _filter(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    lists = _lists(call, batch, evaluate)
    parameters = [lists.elements, _positions(lists)]
    met = _apply(call.arguments[1], batch, lists.row_of, parameters, evaluate)
    return lists.kept(_true(met), call.type)


def _true(flags: Array) -> Flags:
    found: Flags = flags.fill_null(False).to_numpy(zero_copy_only=False)
    return found


def _exists(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    lists = _lists(call, batch, evaluate)
    met = _apply(call.arguments[1], batch, lists.row_of, [lists.elements], evaluate)
    found = lists.any(_true(met))
    unknown = np.zeros(len(found), bool)
    if call.extra.get("followThreeValuedLogic", True):
        unknown = ~found & lists.any(met.is_null().to_numpy(zero_copy_only=False))
    return bool_column(found, lists.nulls | unknown)


def _for_all(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    lists = _lists(call, batch, evaluate)
    met = _apply(call.arguments[1], batch, lists.row_of, [lists.elements], evaluate)
    missed = lists.any(~met.fill_null(True).to_numpy(zero_copy_only=False))
    unknown = ~missed & lists.any(met.is_null().to_numpy(zero_copy_only=False))
    return bool_column(~missed, lists.nulls | unknown)


def _aggregate(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    _, zero, merge, finish = call.arguments
    lists = _lists(call, batch, evaluate)
    everything = np.arange(batch.num_rows)
    state = as_column(evaluate(zero, batch), batch.num_rows)
    for position in range(int(lists.counts.max(initial=0))):
        rows = np.flatnonzero(lists.counts > position)
        elements = taken(lists.elements, lists.starts[rows] + position)
        merged = _apply(merge, batch, rows, [taken(state, rows), elements], evaluate)
        places = everything.copy()
        places[rows] = len(state) + np.arange(len(rows))
        state = taken(pa.concat_arrays([state, retyped(merged, state.type)]), places)
    made = _apply(finish, batch, everything, [state], evaluate)
    return taken(made, everything, lists.nulls)


def _zip_with(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    left, right = _lists(call, batch, evaluate), _lists(call, batch, evaluate, 1)
    nulls = left.nulls | right.nulls
    counts = np.where(nulls, 0, np.maximum(left.counts, right.counts))
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    pairs = [element_at_each(each, rows, positions) for each in (left, right)]
    made = _apply(call.arguments[2], batch, rows, pairs, evaluate)
    return list_column(made, counts, nulls, call.type)


def _map_filter(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    lists = _lists(call, batch, evaluate)
    parameters = [lists.elements.field(0), lists.elements.field(1)]
    met = _apply(call.arguments[1], batch, lists.row_of, parameters, evaluate)
    return lists.kept(_true(met), call.type)


def _transform_keys(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    lists = _lists(call, batch, evaluate)
    keys, items = lists.elements.field(0), lists.elements.field(1)
    made = _apply(call.arguments[1], batch, lists.row_of, [keys, items], evaluate)
    return map_column(call, made, items, lists.counts, lists.nulls)


def _transform_values(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    lists = _lists(call, batch, evaluate)
    keys, items = lists.elements.field(0), lists.elements.field(1)
    made = _apply(call.arguments[1], batch, lists.row_of, [keys, items], evaluate)
    return map_column(call, keys, made, lists.counts, lists.nulls)


def _map_zip_with(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    left, right = _lists(call, batch, evaluate), _lists(call, batch, evaluate, 1)
    nulls = left.nulls | right.nulls
    one, other = ranks(left.elements.field(0), right.elements.field(0))
    rows = np.concatenate([left.row_of, right.row_of])
    pairs = np.column_stack([rows, np.concatenate([one, other])])
    unique, firsts = np.unique(pairs, axis=0, return_index=True)
    # The keys of the left map in its order, then the new ones of the right map.
    order = np.lexsort((firsts, unique[:, 0]))
    order = order[~nulls[unique[order, 0]]]
    unique, firsts = unique[order], firsts[order]
    keys = taken(pa.concat_arrays([left.elements.field(0), right.elements.field(0)]), firsts)
    values = [
        _values_of_keys(lists, codes, unique) for lists, codes in ((left, one), (right, other))
    ]
    made = _apply(call.arguments[2], batch, unique[:, 0], [keys, *values], evaluate)
    counts = np.bincount(unique[:, 0], minlength=batch.num_rows)
    return map_column(call, keys, made, counts, nulls)


def _values_of_keys(lists: Lists, codes: Ints, wanted: Ints) -> Array:
    places = {
        pair: place
        for place, pair in enumerate(zip(lists.row_of.tolist(), codes.tolist(), strict=True))
    }
    found = np.array([places.get((row, code), -1) for row, code in wanted.tolist()], np.int64)
    return taken(lists.elements.field(1), np.maximum(found, 0), found < 0)


def _array_sort(call: Call, batch: pa.RecordBatch, evaluate: Evaluate) -> Value:
    lists, function = _lists(call, batch, evaluate), call.arguments[1]
    if _is_natural(function):
        return sorted_nulls_last(lists, call.type)
    if int((lists.counts**2).sum()) > MAX_PAIRS and len(lists.counts) > 1:
        middle = batch.num_rows // 2
        parts = (batch.slice(0, middle), batch.slice(middle))
        return pa.concat_arrays([_array_sort(call, part, evaluate) for part in parts])
    order: list[int] = []
    compared = _compared(function, batch, lists, evaluate)
    first = 0
    for start, count in zip(lists.starts.tolist(), lists.counts.tolist(), strict=True):
        table = compared[first : first + count * count].reshape(count, count)
        order.extend(start + place for place in _sorted(table))
        first += count * count
    return lists.reordered(np.array(order, np.int64), call.type)


def _sorted(table: Any) -> list[int]:
    def compare(left: int, right: int) -> int:
        return int(table[left, right])

    return sorted(range(len(table)), key=cmp_to_key(compare))


def _compared(function: Expr, batch: pa.RecordBatch, lists: Lists, evaluate: Evaluate) -> Any:
    """The comparator's results for all pairs of elements of the same row."""
    squares = lists.counts**2
    rows = np.repeat(np.arange(len(squares)), squares)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(squares) - squares, squares)
    left = lists.starts[rows] + place // lists.counts[rows]
    right = lists.starts[rows] + place % lists.counts[rows]
    differ = left != right  # Spark never compares an element with itself
    pairs = [taken(lists.elements, left[differ]), taken(lists.elements, right[differ])]
    made = _apply(function, batch, rows[differ], pairs, evaluate)
    if made.null_count:
        raise OptionError(
            "COMPARATOR_RETURNS_NULL: the comparator of array_sort returned null. It must return "
            "a negative number, zero or a positive number."
        )
    found = np.zeros(len(rows), np.int64)
    found[differ] = made.fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _is_natural(function: Expr) -> bool:
    """Whether a comparator is the one Spark adds to `array_sort` without a comparator."""
    if not isinstance(function, Lambda):
        return False
    left, right = Column(function.first), Column(function.first + 1)
    shape = (
        ("And", ("IsNull", left), ("IsNull", right)), 0,
        ("IsNull", left), 1, ("IsNull", right), -1,
        ("LessThan", left, right), -1, ("GreaterThan", left, right), 1, 0,
    )  # fmt: skip
    return bool(_flat(function.body) == shape)


def _flat(expr: Expr) -> Any:
    """A chain of IF as one tuple of conditions and results."""
    match expr:
        case Call("If", (condition, result, otherwise)):
            rest = _flat(otherwise)
            rest = rest if isinstance(otherwise, Call) and otherwise.function == "If" else (rest,)
            return (_flat(condition), _flat(result), *rest)
        case Call(function, arguments):
            return (function, *map(_flat, arguments))
        case Literal(value):
            return value.as_py()
    return expr


FUNCTIONS: dict[str, BatchFunction] = {
    "ArrayTransform": _transform,
    "ArrayFilter": _filter,
    "ArrayExists": _exists,
    "ArrayForAll": _for_all,
    "ArrayAggregate": _aggregate,
    "ArraySort": _array_sort,
    "ZipWith": _zip_with,
    "MapFilter": _map_filter,
    "TransformKeys": _transform_keys,
    "TransformValues": _transform_values,
    "MapZipWith": _map_zip_with,
}
