"""Functions of arrays: sizes, order, and new arrays out of old ones. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from epochal.continuous.operators.expressions.expr import Call, Function, Value
from epochal.continuous.operators.expressions.nested.lists_of import (
    Array,
    Flags,
    Ints,
    Kind,
    Lists,
    all_on_columns,
    interleaved,
    ints_of,
    list_column,
    lists_of,
    null_flags_of,
    retyped,
    struct_column,
    taken,
)
from epochal.continuous.operators.expressions.nested.ranks import NULL, ranks
from epochal.errors import OptionError

pc: Any = compute  # its stubs support neither scalars beside arrays nor calls by name

MAX_ELEMENTS = 2**31 - 1 - 15
"""Spark's limit for the elements of one array."""


def _element_kind(call: Call) -> Kind:
    kind: Kind = call.type
    return kind.value_type


def _create(call: Call, *values: Value) -> Value:
    columns = [retyped(each, _element_kind(call)) for each in values]
    rows = len(columns[0])
    counts = np.full(rows, len(columns))
    return list_column(interleaved(columns), counts, np.zeros(rows, bool), call.type)


def _size(call: Call, value: Value) -> Value:
    lists = lists_of(value)
    if call.extra.get("legacySizeOfNull"):
        return pa.array(np.where(lists.nulls, -1, lists.counts).astype(np.int32))
    return pa.array(lists.counts.astype(np.int32), mask=lists.nulls)


def _sort(call: Call, value: Value, ascending: Value) -> Value:
    lists = lists_of(value)
    (order,) = ranks(lists.elements)
    if len(ascending) and not ascending[0].as_py():
        order = -order
    return lists.reordered(np.lexsort((order, lists.row_of)), call.type)


def sorted_nulls_last(lists: Lists, kind: Kind) -> Array:
    """Arrays in ascending order with nulls at the end, as `array_sort` without a comparator."""
    (order,) = ranks(lists.elements)
    order = np.where(order == NULL, len(order), order)
    return lists.reordered(np.lexsort((order, lists.row_of)), kind)


def _extreme(last: bool) -> Function:
    def apply(call: Call, value: Value) -> Value:
        lists = lists_of(value)
        (order,) = ranks(lists.elements)
        valid = np.flatnonzero(order != NULL)
        keys = order[valid] if last else -order[valid]
        # Of equal ones, such as 0.0 and -0.0, the first counts.
        valid = valid[np.lexsort((-valid, keys, lists.row_of[valid]))]
        places = np.full(len(value), -1)
        places[lists.row_of[valid]] = valid  # the last assignment is the extreme one
        return taken(lists.elements, np.maximum(places, 0), places < 0)

    return apply


def _reverse(call: Call, value: Value) -> Value:
    if not pa.types.is_list(value.type):
        flip = pc.binary_reverse if pa.types.is_binary(value.type) else pc.utf8_reverse
        return flip(value)
    lists = lists_of(value)
    return lists.reordered(np.lexsort((-lists.position_of, lists.row_of)), call.type)


def concat_arrays(call: Call, *values: Value) -> Value:
    """Spark's `concat` for arrays: null if any of them is null."""
    lists = [lists_of(each) for each in values]
    nulls = np.logical_or.reduce([each.nulls for each in lists])
    rows = np.concatenate([each.row_of for each in lists])
    elements = pa.concat_arrays([retyped(each.elements, _element_kind(call)) for each in lists])
    order = np.argsort(rows, kind="stable")
    order = order[~nulls[rows[order]]]
    counts = np.where(nulls, 0, np.sum([each.counts for each in lists], axis=0))
    return list_column(taken(elements, order), counts, nulls, call.type)


def _flatten(call: Call, value: Value) -> Value:
    outer = lists_of(value)
    inner = lists_of(outer.elements)
    nulls = outer.nulls | outer.any(inner.nulls)
    counts = np.bincount(outer.row_of, weights=inner.counts, minlength=len(value)).astype(np.int64)
    kept = np.flatnonzero(~nulls[np.repeat(outer.row_of, inner.counts)])
    return list_column(taken(inner.elements, kept), np.where(nulls, 0, counts), nulls, call.type)


def _zip(call: Call, *values: Value) -> Value:
    lists = [lists_of(each) for each in values]
    nulls = np.logical_or.reduce([each.nulls for each in lists])
    counts = np.where(nulls, 0, np.maximum.reduce([each.counts for each in lists]))
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    members = [element_at_each(each, rows, positions) for each in lists]
    structs = struct_column(members, _element_kind(call))
    return list_column(structs, counts, nulls, call.type)


def element_at_each(lists: Lists, rows: Ints, positions: Ints) -> Array:
    """The elements at some positions of some rows; null behind the end of an array."""
    inside = (positions >= 0) & (positions < lists.counts[rows])
    return taken(lists.elements, np.where(inside, lists.starts[rows] + positions, 0), ~inside)


def _slice(call: Call, value: Value, start: Value, length: Value) -> Value:
    lists, first, count = lists_of(value), ints_of(start), ints_of(length)
    nulls = lists.nulls | null_flags_of(start) | null_flags_of(length)
    if (~nulls & (first == 0)).any():
        raise OptionError("slice: the start is 0, but positions count from 1.")
    if (~nulls & (count < 0)).any():
        raise OptionError(f"slice: the length is {count.min()}, but must not be negative.")
    begin = np.where(first > 0, first - 1, lists.counts + first)
    counts = np.where((begin < 0) | nulls, 0, np.clip(lists.counts - begin, 0, count))
    return list_column(_ranges(lists, begin, counts), counts, nulls, call.type)


def _ranges(lists: Lists, begin: Ints, counts: Ints) -> Array:
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return taken(lists.elements, lists.starts[rows] + begin[rows] + positions)


def _repeat(call: Call, value: Value, times: Value) -> Value:
    nulls = null_flags_of(times)
    counts = np.where(nulls, 0, np.maximum(ints_of(times), 0))
    _check_size(int(counts.max(initial=0)), "array_repeat")
    return list_column(
        taken(value, np.repeat(np.arange(len(value)), counts)), counts, nulls, call.type
    )


def _insert(call: Call, value: Value, position: Value, element: Value) -> Value:
    lists, given = lists_of(value), ints_of(position)
    nulls = lists.nulls | null_flags_of(position)
    if (~nulls & (given == 0)).any():
        raise OptionError("INVALID_INDEX_OF_ZERO: array_insert counts from 1, but was given 0.")
    legacy = 0 if call.extra.get("legacyNegativeIndex") else 1
    # From the end, -1 is the place behind the last element, or before it in legacy mode.
    place = np.where(given > 0, given - 1, lists.counts + given + legacy)
    gap = np.maximum(-place, 0)  # nulls between the new first element and the old ones
    place = np.maximum(place, 0)
    counts = np.maximum(lists.counts + gap, place) + 1
    counts = np.where(nulls, 0, counts)
    _check_size(int(counts.max(initial=0)), "array_insert")
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_new = positions == place[rows]
    source = positions - gap[rows] - (positions > place[rows])
    kind = _element_kind(call)
    old = element_at_each(lists, rows, source)
    both = pa.concat_arrays([retyped(old, kind), retyped(element, kind)])
    picks = np.where(is_new, len(rows) + rows, np.arange(len(rows)))
    return list_column(taken(both, picks), counts, nulls, call.type)


def _check_size(count: int, name: str) -> None:
    if count > MAX_ELEMENTS:
        raise OptionError(
            f"{name}: an array would have {count} elements. At most {MAX_ELEMENTS} are possible."
        )


def _join(call: Call, value: Value, separator: Value, replacement: Value | None = None) -> Value:
    lists = lists_of(value)
    missing = lists.element_nulls
    nulls = lists.nulls | null_flags_of(separator)
    if replacement is None:
        flags: Flags = ~missing
        value = lists.kept(flags, pa.list_(pa.string()))
    else:
        nulls = nulls | null_flags_of(replacement)
        filler = replacement.take(pa.array(lists.row_of))
        filled = pc.if_else(pa.array(missing), filler, lists.elements)
        value = list_column(filled, lists.counts, lists.nulls, pa.list_(pa.string()))
    return pc.if_else(
        pa.array(nulls), pa.scalar(None, pa.string()), pc.binary_join(value, separator)
    )


FUNCTIONS: dict[str, Function] = all_on_columns(
    {
        "CreateArray": _create,
        "Size": _size,
        "SortArray": _sort,
        "ArrayMin": _extreme(last=False),
        "ArrayMax": _extreme(last=True),
        "Reverse": _reverse,
        "Flatten": _flatten,
        "ArraysZip": _zip,
        "Slice": _slice,
        "ArrayRepeat": _repeat,
        "ArrayInsert": _insert,
        "ArrayJoin": _join,
        "KnownNotContainsNull": lambda call, value: retyped(value, call.type),
    }
)
