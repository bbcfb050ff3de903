"""Functions of maps. Pure.

A key must not be null and must not occur twice: both are errors in Spark, in every mode. Maps that
are made of entries or of other maps get the key 0.0 for -0.0; other maps keep -0.0.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.lists_of import (
    Array,
    Flags,
    Ints,
    Kind,
    all_on_columns,
    arrow,
    interleaved,
    list_column,
    lists_of,
    retyped,
    taken,
    without_negative_zero,
)
from epochal.continuous.operators.expressions.nested.ranks import NULL, ranks
from epochal.errors import OptionError

LAST_WINS = "lastWins"
"""The field of a call that is true if a repeated key is no error."""


def map_column(call: Call, keys: Array, items: Array, counts: Ints, nulls: Flags) -> Array:
    """A column of maps of the call's type; OptionError for a null key, and for a repeated one
    unless the session lets the last one win."""
    kind: Kind = call.type
    keys, items = retyped(keys, kind.key_type), retyped(items, kind.item_type)
    (values,) = ranks(keys)
    if (values == NULL).any():
        raise OptionError("NULL_MAP_KEY: a key of a map is null.")
    rows = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((values, rows))
    same = (np.diff(rows[order]) == 0) & (np.diff(values[order]) == 0)
    if same.any() and not call.extra.get(LAST_WINS):
        key = keys[int(order[np.flatnonzero(same)[0]])]
        raise OptionError(
            f"DUPLICATED_MAP_KEY: the key {key} occurs twice in a map. Remove the duplicate "
            f"first, or set spark.sql.mapKeyDedupPolicy to LAST_WIN."
        )
    if same.any():
        # The first occurrence of a key keeps its place, and gets the value of the last one.
        starts = np.flatnonzero(np.concatenate([[True], ~same]))
        firsts, lasts = order[starts], order[np.append(starts[1:], len(order)) - 1]
        places = np.argsort(firsts)
        keys, items = taken(keys, firsts[places]), taken(items, lasts[places])
        counts = np.bincount(rows[firsts], minlength=len(counts))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    return arrow.MapArray.from_arrays(offsets, keys, items, type=kind, mask=pa.array(nulls))


def _create(call: Call, *values: Value) -> Value:
    kind: Kind = call.type
    rows = len(values[0])
    keys = interleaved([retyped(each, kind.key_type) for each in values[0::2]])
    items = interleaved([retyped(each, kind.item_type) for each in values[1::2]])
    counts = np.full(rows, len(values) // 2)
    return map_column(call, keys, items, counts, np.zeros(rows, bool))


def _from_arrays(call: Call, keys: Value, items: Value) -> Value:
    one, other = lists_of(keys), lists_of(items)
    nulls = one.nulls | other.nulls
    if (~nulls & (one.counts != other.counts)).any():
        raise OptionError("map_from_arrays: the arrays of keys and values differ in length.")
    kept, others = ~nulls[one.row_of], ~nulls[other.row_of]
    return map_column(
        call,
        taken(one.elements, np.flatnonzero(kept)),
        taken(other.elements, np.flatnonzero(others)),
        np.where(nulls, 0, one.counts),
        nulls,
    )


def _from_entries(call: Call, value: Value) -> Value:
    lists = lists_of(value)
    nulls = lists.nulls | lists.any(lists.element_nulls)
    kept = taken(lists.elements, np.flatnonzero(~nulls[lists.row_of]))
    counts = np.where(nulls, 0, lists.counts)
    keys = without_negative_zero(kept.field(0))
    return map_column(call, keys, kept.field(1), counts, nulls)


def _part(index: int) -> Function:
    def apply(call: Call, value: Value) -> Value:
        lists = lists_of(value)
        return list_column(lists.elements.field(index), lists.counts, lists.nulls, call.type)

    return apply


def _entries(call: Call, value: Value) -> Value:
    return retyped(value, call.type)


def _concat(call: Call, *values: Value) -> Value:
    lists = [lists_of(each) for each in values]
    nulls = np.logical_or.reduce([each.nulls for each in lists])
    rows = np.concatenate([each.row_of for each in lists])
    order = np.argsort(rows, kind="stable")
    order = order[~nulls[rows[order]]]
    kind: Kind = call.type
    keys = pa.concat_arrays([retyped(each.elements.field(0), kind.key_type) for each in lists])
    items = pa.concat_arrays([retyped(each.elements.field(1), kind.item_type) for each in lists])
    counts = np.where(nulls, 0, np.sum([each.counts for each in lists], axis=0))
    keys = without_negative_zero(taken(keys, order))
    return map_column(call, keys, taken(items, order), counts, nulls)


FUNCTIONS: dict[str, Function] = all_on_columns(
    {
        "CreateMap": _create,
        "MapFromArrays": _from_arrays,
        "MapFromEntries": _from_entries,
        "MapEntries": _entries,
        "MapKeys": _part(0),
        "MapValues": _part(1),
        "MapConcat": _concat,
    }
)
