"""Functions that look for values in arrays, or treat arrays as sets. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.arrays import concat_arrays
from epochal.continuous.operators.expressions.nested.lists_of import (
    Flags,
    Ints,
    Lists,
    all_on_columns,
    bool_column,
    list_column,
    lists_of,
    null_flags_of,
    taken,
    without_negative_zero,
)
from epochal.continuous.operators.expressions.nested.ranks import NULL, ranks


def _equal(lists: Lists, value: Value) -> Flags:
    """Which elements equal the value of their row. Null equals nothing."""
    elements, wanted = ranks(lists.elements, value)
    found: Flags = (elements == np.repeat(wanted, lists.counts)) & (elements != NULL)
    return found


def _contains(call: Call, value: Value, wanted: Value) -> Value:
    lists = lists_of(value)
    found = lists.any(_equal(lists, wanted))
    unknown = ~found & lists.any(lists.element_nulls)
    return bool_column(found, lists.nulls | null_flags_of(wanted) | unknown)


def _position(call: Call, value: Value, wanted: Value) -> Value:
    lists = lists_of(value)
    places = np.flatnonzero(_equal(lists, wanted))[::-1]
    found = np.zeros(len(value), np.int64)
    found[lists.row_of[places]] = lists.position_of[places] + 1  # the first place is assigned last
    return pa.array(found, mask=lists.nulls | null_flags_of(wanted))


def _remove(call: Call, value: Value, unwanted: Value) -> Value:
    lists = lists_of(value)
    nulls = lists.nulls | null_flags_of(unwanted)
    kept = ~_equal(lists, unwanted) & ~nulls[lists.row_of]
    counts = np.bincount(lists.row_of[kept], minlength=len(value))
    return list_column(taken(lists.elements, np.flatnonzero(kept)), counts, nulls, call.type)


def _first_ones(rows: Ints, values: Ints) -> Flags:
    """Which elements are the first ones with their value in their row."""
    width = values.max(initial=0) + 2  # ranks start at -1
    firsts = np.unique(rows * width + values + 1, return_index=True)[1]
    flags = np.zeros(len(rows), bool)
    flags[firsts] = True
    return flags


def _distinct(call: Call, value: Value) -> Value:
    lists = lists_of(value)
    (values,) = ranks(lists.elements)
    firsts = _first_ones(lists.row_of, values)
    counts = np.bincount(lists.row_of[firsts], minlength=len(value))
    elements = taken(without_negative_zero(lists.elements), np.flatnonzero(firsts))
    return list_column(elements, counts, lists.nulls, call.type)


def _union(call: Call, left: Value, right: Value) -> Value:
    return _distinct(call, concat_arrays(call, left, right))


def _selected(wanted: bool) -> Function:
    """The distinct elements of the left array that the right one has, or has not."""

    def apply(call: Call, left: Value, right: Value) -> Value:
        one, other = lists_of(left), lists_of(right)
        values, others = ranks(one.elements, other.elements)
        is_there = _in_same_row(one.row_of, values, other.row_of, others)
        nulls = one.nulls | other.nulls
        kept = _first_ones(one.row_of, values) & (is_there == wanted) & ~nulls[one.row_of]
        counts = np.bincount(one.row_of[kept], minlength=len(left))
        elements = taken(without_negative_zero(one.elements), np.flatnonzero(kept))
        return list_column(elements, counts, nulls, call.type)

    return apply


def _in_same_row(rows: Ints, values: Ints, other_rows: Ints, others: Ints) -> Flags:
    width = max(values.max(initial=0), others.max(initial=0)) + 2  # ranks start at -1
    return np.isin(rows * width + values + 1, other_rows * width + others + 1)


def _overlap(call: Call, left: Value, right: Value) -> Value:
    one, other = lists_of(left), lists_of(right)
    values, others = ranks(one.elements, other.elements)
    common = _in_same_row(one.row_of, values, other.row_of, others) & (values != NULL)
    found = one.any(common)
    has_null = one.any(one.element_nulls) | other.any(other.element_nulls)
    unknown = ~found & has_null & (one.counts > 0) & (other.counts > 0)
    return bool_column(found, one.nulls | other.nulls | unknown)


FUNCTIONS: dict[str, Function] = all_on_columns(
    {
        "ArrayContains": _contains,
        "ArrayPosition": _position,
        "ArrayRemove": _remove,
        "ArrayDistinct": _distinct,
        "ArrayUnion": _union,
        "ArrayIntersect": _selected(wanted=True),
        "ArrayExcept": _selected(wanted=False),
        "ArraysOverlap": _overlap,
    }
)
